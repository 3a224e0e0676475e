"""The pictures of a sweep: cells compared at the end of their runs, and round by round.

Points are means over the reported seeds, bars and bands are 95 % intervals, as in the table.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from fedmf.figures import COLOURS, LARGE, label_ends, new_figure, style
from fedmf.ledger.durable_files import write_durably
from fedmf.sweeps.results import Interval, SweepResult
from fedmf.sweeps.sweep import Cell, comma_list, described, shown_value

#: Endings of the files of a picture: for screens and slides, and for papers.
_FORMATS: Final = ("png", "pdf")
_MARKERS: Final = "osD^vPX*"
_AXIS_LABELS: Final = {"privacy.epsilon": "ε", "privacy.delta": "δ"}
#: Panels of curves next to each other.
_MOST_PANELS: Final = 4


def write_pictures(result: SweepResult, by_round: Mapping[Cell, Mapping[int, Interval]]) -> None:
    """Write both pictures into the sweep's directory, each as PNG and PDF.

    Without matplotlib (the extra ``report``) there are none.

    Args:
        result: the finished sweep.
        by_round: the mean over the seeds of each cell by number of released rounds.
    """
    try:
        figures = {"comparison": comparison_of(result)}
    except ImportError:
        return
    if any(by_round.values()):
        figures["curves"] = _curves(result, by_round)
    for name, figure in figures.items():
        for ending in _FORMATS:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, dpi=200)
            write_durably(result.path / f"{name}.{ending}", buffer.getvalue())


def comparison_of(result: SweepResult) -> Any:
    """The mean of each cell with its interval.

    If the first key of the grid has several values, it is on the x axis, and cells are lines with
    their names at their ends. Otherwise each cell is a point in a row.
    """
    lines = _lines(result.sweep.cells)
    if any(len(cells) > 1 for cells in lines.values()):
        return _by_key(result, lines)
    return _in_rows(result, lines)


def _curves(result: SweepResult, by_round: Mapping[Cell, Mapping[int, Interval]]) -> Any:
    """The mean of each cell round by round with its interval.

    Each value of the first key of the grid has a panel, as long as there is room.
    """
    panels: dict[str, list[Cell]] = {}
    for cell in result.sweep.cells:
        panels.setdefault(_panel_name(cell), []).append(cell)
    names = list(panels)[:_MOST_PANELS]
    figure = new_figure(2.5 + 3.2 * len(names), 3.6)
    all_axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    ends = []
    for axes, name in zip(all_axes, names, strict=True):
        ends = []
        for at, cell in enumerate(panels[name]):
            colour = COLOURS[at % len(COLOURS)]
            end = _draw_curve(axes, result.metric.scale, by_round[cell], colour)
            ends.append((end, comma_list(cell.variant, described(dict(cell.point[1:]))), colour))
        style(axes, xlabel="rounds")
        axes.set_title(name, size=LARGE)
    style(all_axes[0], ylabel=result.metric.label)
    label_ends(all_axes[-1], ends)
    return figure


def _panel_name(cell: Cell) -> str:
    """The first key of the grid with its value; empty without a grid."""
    if not cell.point:
        return ""
    key, value = cell.point[0]
    return f"{_AXIS_LABELS.get(key, key)} = {shown_value(value)}"


def _draw_curve(axes: Any, scale: float, by_round: Mapping[int, Interval], colour: str) -> float:
    """Draw one curve with its band, and return its last value."""
    rounds = sorted(by_round)
    means = np.array([scale * by_round[t].estimate for t in rounds])
    reach = np.array([scale * by_round[t].half_width for t in rounds])
    finite = np.isfinite(means)
    means[~finite] = np.nan  # runs that diverged
    axes.plot(rounds, means, color=colour, linewidth=2)
    axes.fill_between(rounds, means - reach, means + reach, color=colour, alpha=0.2, linewidth=0)
    if not finite.any():
        return np.nan
    return float(means[finite][-1])


def _lines(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each line of a comparison: they differ in the first key of the grid."""
    lines: dict[str, list[Cell]] = {}
    for cell in cells:
        name = comma_list(cell.variant, described(dict(cell.point[1:])))
        lines.setdefault(name, []).append(cell)
    return lines


def _by_key(result: SweepResult, lines: Mapping[str, Sequence[Cell]]) -> Any:
    """The comparison along the first key of the grid."""
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    key = next(iter(result.sweep.grid))
    ends = []
    for at, (name, cells) in enumerate(lines.items()):
        colour = COLOURS[at % len(COLOURS)]
        means, reach = _means(result, cells)
        # A line that the key does not change, such as runs without noise along ε, is a level to
        # compare with.
        linestyle = "-"
        if len(set(means)) == 1:
            linestyle = "--"
        places = np.arange(len(cells)) + 0.03 * (at - len(lines) / 2)
        axes.errorbar(
            places,
            means,
            yerr=reach,
            color=colour,
            linestyle=linestyle,
            linewidth=2,
            marker=_MARKERS[at % len(_MARKERS)],
            capsize=3,
        )
        ends.append((means[-1], name, colour))
    values = result.sweep.grid[key]
    axes.set_xticks(range(len(values)), [shown_value(value) for value in values])
    style(axes, xlabel=_AXIS_LABELS.get(key, key), ylabel=result.metric.label)
    label_ends(axes, ends)
    return figure


def _in_rows(result: SweepResult, lines: Mapping[str, Sequence[Cell]]) -> Any:
    """The comparison of variants without a grid: a point and its number for each."""
    figure = new_figure(8, 0.5 * len(lines) + 1.2)
    axes = figure.subplots()
    for at, (name, (cell, *_)) in enumerate(lines.items()):
        colour = COLOURS[0]
        if cell.variant == result.sweep.baseline:
            colour = COLOURS[1]
        means, reach = _means(result, [cell])
        axes.errorbar(means, [at], xerr=reach, color=colour, fmt="o", markersize=9, capsize=4)
        row = {"xycoords": ("axes fraction", "data"), "va": "center", "size": LARGE}
        axes.annotate(name, (-0.02, at), ha="right", **row)
        axes.annotate(result.shown_metric(cell), (1.02, at), **row)
    axes.set(ylim=(len(lines) - 0.5, -0.5), yticks=[])
    style(axes, xlabel=result.metric.label)
    axes.spines["left"].set_visible(False)
    return figure


def _means(result: SweepResult, cells: Sequence[Cell]) -> tuple[list[float], list[float]]:
    """Means of cells and the half widths of their intervals, in the unit of the picture."""
    means = []
    reach = []
    for cell in cells:
        interval = result.interval(cell)
        means.append(result.metric.scale * interval.estimate)
        reach.append(result.metric.scale * interval.half_width)
    return means, reach
