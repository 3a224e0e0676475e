"""Which runs a figure needs: those that choose learning rates, and the final ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from cells import Cells
from figures import Cell, Figure, Form

__all__ = ["Spot", "compare", "rates", "tuning"]

#: Panel, line and place of a point.
Spot = tuple[str, str, str]


def compare(figure: Figure, form_name: str, cells: Cells, processes: int, seeds: int) -> None:
    """Choose rates, then run the final seeds."""
    form = figure.form(form_name)
    if len(form.rates) > 1:
        cells.make(tuning(figure, form_name), processes)
    chosen = rates(figure, form_name, cells)
    cells.make(
        (
            Cell(figure.name, form_name, *spot, rate, seed)
            for seed in range(seeds)
            for spot, rate in chosen.items()
        ),
        processes,
    )


def tuning(figure: Figure, form_name: str) -> Iterator[Cell]:
    """The runs that choose learning rates."""
    form = figure.form(form_name)
    for spot in form.spots():
        for rate in form.rates:
            for seed in form.tuning_seeds:
                yield Cell(figure.name, form_name, *spot, rate, seed)


def rates(figure: Figure, form_name: str, cells: Cells) -> dict[Spot, float]:
    """The learning rate of each point, the best on the tuning seeds; refused points are left out."""
    form = figure.form(form_name)
    if len(form.rates) == 1:
        return dict.fromkeys(form.spots(), form.rates[0])
    chosen: dict[Spot, float] = {}
    for spot in form.spots():
        scores = {rate: score(figure, form, form_name, cells, spot, rate) for rate in form.rates}
        known = {rate: value for rate, value in scores.items() if value is not None}
        if known:
            chosen[spot] = max(known, key=lambda rate: known[rate])
    return chosen


def score(figure: Figure, form: Form, form_name: str, cells: Cells, spot: Spot, rate: float) -> float | None:
    """Mean on the tuning seeds, larger being better; None where a run is missing or was refused."""
    found = [cells.found.get(Cell(figure.name, form_name, *spot, rate, seed)) for seed in form.tuning_seeds]
    values = [value[figure.y] for value in found if value is not None and figure.y in value]
    if len(values) < len(form.tuning_seeds):
        return None
    return statistics.mean(values) * (1 if figure.y == "accuracy" else -1)
