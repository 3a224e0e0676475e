"""Which runs a figure needs: those that choose learning rates, and the final ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from cells import Cells
from figures import Cell, Figure

__all__ = ["Spot", "best_rate", "compare", "tried"]

#: Panel, line and place of a point.
Spot = tuple[str, str, str]
#: A grid is made longer at most so often, by two rates each time.
_LONGEST: Final = 8


def compare(figures: Sequence[Figure], form_name: str, cells: Cells) -> Sequence[Figure]:
    """Choose rates, then run the final seeds.

    The grid of a point grows by factors of 2 until its best rate is inside.

    Returns:
        The figures, all of whose runs are there.
    """
    grids: dict[tuple[str, Spot], list[float]] = {}
    by_name = {figure.name: figure for figure in figures}

    def chosen(name: str, spot: Spot) -> float:
        grid = grids[name, spot]
        return grid[0] if len(grid) == 1 else best_rate(by_name[name], form_name, cells, spot)

    for figure in figures:
        form = figure.form(form_name)
        for spot in form.spots():  # what was tried before a comparison was stopped counts
            known = tried(figure, form_name, cells, spot) if len(form.rates) > 1 else {}
            grids[figure.name, spot] = sorted({*form.rates, *known})
    for _ in range(_LONGEST):
        cells.make(
            Cell(name, form_name, *spot, rate, seed)
            for (name, spot), grid in grids.items()
            if len(grid) > 1
            for rate in grid
            for seed in by_name[name].form(form_name).tuning_seeds
        )
        edges = [
            place
            for place, grid in grids.items()
            if len(grid) > 1 and chosen(*place) in (grid[0], grid[-1])
        ]
        if not edges:
            break
        for place in edges:
            grid = grids[place]
            best = chosen(*place)
            factor = 2.0 if best == grid[-1] else 0.5
            grid[:] = sorted([*grid, best * factor, best * factor**2])
    cells.make(
        Cell(name, form_name, *spot, chosen(name, spot), seed)
        for (name, spot) in grids
        for seed in range(by_name[name].form(form_name).seeds)
    )
    return figures


def tried(
    figure: Figure, form_name: str, cells: Cells, spot: Spot
) -> dict[float, tuple[float, float]]:
    """The rates of which all tuning runs are there, each with its mean (y, loss), smaller being
    better.
    """
    form = figure.form(form_name)
    rates = sorted(
        {
            cell.rate
            for cell in cells.found
            if (cell.figure, cell.form, cell.panel, cell.line, cell.place)
            == (figure.name, form_name, *spot)
            and cell.seed in form.tuning_seeds
        }
    )
    found: dict[float, tuple[float, float]] = {}
    for rate in rates:
        runs = [
            cells.found.get(Cell(figure.name, form_name, *spot, rate, s)) for s in form.tuning_seeds
        ]
        if all(runs):
            losses = [math.inf if run["loss"] is None else run["loss"] for run in runs if run]
            loss = statistics.fmean(losses)
            ys = [-run["accuracy"] for run in runs if run] if figure.y == "accuracy" else losses
            found[rate] = statistics.fmean(ys), loss
    return found


def best_rate(figure: Figure, form_name: str, cells: Cells, spot: Spot) -> float:
    """The best on the tuning seeds; of equal ones that of the smaller loss."""
    scores = tried(figure, form_name, cells, spot)
    return min(scores, key=scores.__getitem__)
