"""What a sweep writes: results for programs, a long table, tables for papers, a picture."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fedmf.records import write_durably
from fedmf.runs import Scalar
from fedmf.sweeps.results import CellResult, SweepResult, privacy_together
from fedmf.sweeps.sweep import described
from fedmf.sweeps.table import Table, result_table

#: Okabe and Ito (2008): told apart with any kind of colour vision.
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
_MARKERS: Final = "osD^vPX*"
_FEWEST: Final = 3


def draw(result: SweepResult, *paths: Path) -> bool:
    """Draw all cells.

    A key of the grid with three or more numbers is the horizontal axis, with a line a variant; without one
    variants stand side by side with their seeds. Other points of the grid have panels of their own.

    Args:
        result: of the sweep.
        paths: of the picture, in the format that each ends in.

    Returns:
        False if matplotlib (the extra ``report``) is not installed; nothing is drawn then.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    axis = _axis(result)
    panels: dict[tuple[tuple[str, Scalar], ...], list[CellResult]] = {}
    for found in result.cells:
        rest = tuple((name, value) for name, value in found.cell.point if name != axis)
        panels.setdefault(rest, []).append(found)
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(1.5 + 3.6 * across, 0.6 + 3.4 * down), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, sharey=True, squeeze=False)
    for axes, (rest, cells) in zip(grid.flat, panels.items(), strict=False):
        if axis is None:
            _side_by_side(axes, result, cells)
        else:
            _lines(axes, result, cells, axis)
        axes.set_title(described(dict(rest)), fontsize=9)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(f"{result.metric.label}, {100 * result.sweep.confidence:g} % intervals", fontsize=9)
    for path in paths:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], dpi=130)
        write_durably(path, buffer.getvalue())
    return True


def _axis(result: SweepResult) -> str | None:
    def numeric(values: Sequence[Scalar]) -> bool:
        numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
        return len(numbers) == len(values) >= _FEWEST

    return next((name for name, values in result.sweep.grid.items() if numeric(values)), None)


def _style(result: SweepResult, variant: str) -> tuple[str, str]:
    at = [*result.sweep.variants].index(variant)
    return _COLOURS[at % len(_COLOURS)], _MARKERS[at % len(_MARKERS)]


def _ends(result: SweepResult, found: CellResult) -> tuple[float, float, float]:
    """Mean, and how far the interval reaches below and above; nowhere for one seed."""
    scale, interval = 100.0 if result.metric.is_share else 1.0, result.interval(found)
    reach = scale * (interval.high - interval.estimate) if interval.count > 1 else 0.0
    return scale * interval.estimate, reach, reach


def _side_by_side(axes: Any, result: SweepResult, cells: Sequence[CellResult]) -> None:
    scale = 100.0 if result.metric.is_share else 1.0
    for x, found in enumerate(cells):
        colour, marker = _style(result, found.cell.variant)
        values = [scale * value for value in found.values.values()]
        axes.plot([x - 0.15] * len(values), values, marker, color=colour, alpha=0.4, markersize=4)
        mean, low, high = _ends(result, found)
        axes.errorbar([x + 0.1], [mean], yerr=[[low], [high]], fmt=marker, color=colour, capsize=4)
    names = [found.cell.variant for found in cells]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)


def _lines(axes: Any, result: SweepResult, cells: Sequence[CellResult], axis: str) -> None:
    for variant in result.sweep.variants:
        mine = sorted(
            (dict(found.cell.point)[axis], _ends(result, found))
            for found in cells
            if found.cell.variant == variant and found.values
        )
        if not mine:
            continue
        colour, marker = _style(result, variant)
        xs = [x for x, _ in mine]
        means, lows, highs = zip(*(ends for _, ends in mine), strict=True)
        axes.errorbar(xs, means, yerr=[lows, highs], marker=marker, color=colour, capsize=3, label=variant)
    positive = [float(x) for x in result.sweep.grid[axis]]
    if min(positive) > 0 and max(positive) / min(positive) >= 8:
        axes.set_xscale("log")
    axes.set_xlabel(_WRITTEN.get(axis, axis))
    axes.legend(fontsize=8)


RESULTS, RUNS = "results.json", "runs.parquet"
TABLE_MARKDOWN, TABLE_LATEX, PICTURE = "table.md", "table.tex", "comparison.png"
#: The same for papers.
_PICTURES: Final = (PICTURE, "comparison.svg", "comparison.pdf")
#: How keys are written on an axis; others as they are.
_WRITTEN: Final = {
    "privacy.epsilon": "ε, the privacy of a user",
    "privacy.delta": "δ",
    "privacy.clip-norm": "clip norm ζ",
    "cohorts.rounds": "rounds n",
    "cohorts.users-per-round": "users a round",
    "data.users": "users",
    "mechanism.bands": "bands p",
    "server.learning-rate": "learning rate of the server",
    "client.learning-rate": "learning rate of users",
}
NOT_COVERED: Final = (
    "what was chosen by looking at this sweep, beyond its tuned keys",
    "metrics, which are not noised unless their column ends in _private",
    "sweeps and runs before and after this one",
)


def write_reports(result: SweepResult, kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Write everything into the sweep's directory.

    Args:
        result: of the sweep.
        kept: what is kept of each run, by digest.
    """
    table = result_table(result)
    write_durably(result.path / TABLE_MARKDOWN, table.markdown().encode())
    write_durably(result.path / TABLE_LATEX, table.latex().encode())
    write_durably(result.path / RESULTS, (json.dumps(_json(result, table), indent=1) + "\n").encode())
    _write_runs(result, kept)
    draw(result, *(result.path / name for name in _PICTURES))


def _json(result: SweepResult, table: Table) -> dict[str, Any]:
    return _without_infinities(
        {
            "sweep": result.sweep.to_dict(),
            "metric": asdict(result.metric),
            "cells": [_cell(result, cell) for cell in result.cells],
            "table": {"header": table.header, "rows": table.rows},
            "warnings": result.warnings,
            "failures": result.failures,
            "privacy": {"text": privacy_together(result.sweep), "not_covered": NOT_COVERED},
            "seconds": result.seconds,
        }
    )


def _cell(result: SweepResult, found: CellResult) -> dict[str, Any]:
    against = result.against_baseline(found)
    return {
        "variant": found.cell.variant,
        "point": dict(found.cell.point),
        "tuned": found.tuned,
        "tuning": [
            {**candidate, "mean": mean}
            for candidate, mean in zip(result.sweep.candidates, found.tuning, strict=False)
        ],
        "values": {str(seed): value for seed, value in found.values.items()},
        "mean": asdict(result.interval(found)),
        "against_baseline": None if against is None else asdict(against),
        "runs": {str(seed): digest for seed, digest in found.runs.items()},
    }


def _without_infinities(value: Any) -> Any:
    """JSON has none: null stands for them and for NaN."""
    if isinstance(value, Mapping):
        return {name: _without_infinities(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_runs(result: SweepResult, kept: Mapping[str, Mapping[str, Any]]) -> None:
    """A row for each evaluation of each run of each cell."""
    import pandas as pd

    rows = [row for cell in result.cells for row in _rows(result, cell, kept)]
    buffer = io.BytesIO()
    pd.DataFrame(rows).to_parquet(buffer, index=False)
    write_durably(result.path / RUNS, buffer.getvalue())


def _rows(
    result: SweepResult, found: CellResult, kept: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    candidates = result.sweep.candidates
    runs = [(digest, "tuning", seed, candidates[i]) for digest, (i, seed) in found.tuning_runs.items()]
    runs += [(digest, "reported", seed, found.tuned or {}) for seed, digest in found.runs.items()]
    for digest, part, seed, tuned in runs:
        for t, metrics in sorted(kept[digest]["metrics"].items()) if digest in kept else ():
            yield {
                "variant": found.cell.variant,
                **dict(found.cell.point),
                **result.sweep.tuned_of(found.cell, tuned),
                "part": part,
                "seed": seed,
                "run": digest,
                "round": t,
                **metrics,
            }
