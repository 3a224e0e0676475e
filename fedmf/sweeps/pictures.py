"""The pictures of a sweep: cells compared at the end of their runs, and round by round.

Points are means over the reported seeds, bars and bands are 95 % intervals, as in the table.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from fedmf.figures import COLORS, LARGE, label_ends, new_figure, save_figure, style
from fedmf.ledger.durable_files import write_durably
from fedmf.sweeps.results import Interval, MetricColumn, SweepResult
from fedmf.sweeps.sweep import Cell, comma_list, key_label, shown_value

#: Endings of the files of a picture: for screens and slides, and for papers.
_FORMATS: Final = ("png", "pdf")
_MARKERS: Final = "osD^vPX*"
#: Inches. At the width of a column, 3.3 inches, all text is at least 7 points high.
_WIDTH: Final = 5.0
#: Inches between neighboring lines, of one between neighboring values of the key.
_SHIFT: Final = 0.03
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
            save_figure(figure, buffer, ending, dpi=200)
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
    width = _width(_line_name(cell) for cell in panels[names[-1]])
    figure = new_figure(width + 2.2 * (len(names) - 1), 3.4)
    all_axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    ends = []
    for axes, name in zip(all_axes, names, strict=True):
        ends = []
        for at, cell in enumerate(panels[name]):
            color = COLORS[at % len(COLORS)]
            end = _draw_curve(axes, result.metric, by_round[cell], color)
            ends.append((end, _line_name(cell), color))
        style(axes, xlabel="rounds")
        axes.set_title(name, size=LARGE)
    style(all_axes[0], ylabel=result.metric.label)
    drawn = [by_round[cell] for name in names for cell in panels[name]]
    all_axes[0].set_ylim(_limits(result.metric, drawn))
    label_ends(all_axes[-1], ends)
    return figure


def _width(names: Iterable[str]) -> float:
    """Inches of a picture with names next to its axes; longer names make it wider."""
    return max(_WIDTH, 2.4 + 0.1 * max(map(len, names)))


def _panel_name(cell: Cell) -> str:
    """The first key of the grid with its value; empty without a grid."""
    if not cell.point:
        return ""
    key, value = cell.point[0]
    return f"{key_label(key)} = {shown_value(value)}"


def _line_name(cell: Cell) -> str:
    """The variant, and all keys of the grid but the first with their values."""
    others = [f"{key_label(key)} = {shown_value(value)}" for key, value in cell.point[1:]]
    return comma_list(cell.variant, *others)


def _limits(
    metric: MetricColumn, curves: Sequence[Mapping[int, Interval]]
) -> tuple[float | None, float | None]:
    """Limits of an axis that show all means, and the bands at the ends of the curves.

    Few seeds give some bands that are many times as wide.
    """
    heights = list[float]()
    for by_round in curves:
        heights += [interval.estimate for interval in by_round.values()]
        if by_round:
            heights += by_round[max(by_round)][1:3]
    finite = [metric.scale * height for height in heights if math.isfinite(height)]
    if not finite:
        return None, None
    low, high = metric.within_range([min(finite), max(finite)])
    margin = 0.05 * ((high - low) or 1.0)
    return low - margin, high + margin


def _draw_curve(
    axes: Any, metric: MetricColumn, by_round: Mapping[int, Interval], color: str
) -> float:
    """Draw one curve with its band, and return its last value."""
    rounds = sorted(by_round)
    means = np.array([metric.scale * by_round[t].estimate for t in rounds])
    reach = np.array([metric.scale * by_round[t].half_width for t in rounds])
    finite = np.isfinite(means)
    means[~finite] = np.nan  # runs that diverged
    axes.plot(rounds, means, color=color, linewidth=2)
    low = metric.within_range(means - reach)
    high = metric.within_range(means + reach)
    axes.fill_between(rounds, low, high, color=color, alpha=0.2, linewidth=0)
    if not finite.any():
        return np.nan
    return float(means[finite][-1])


def _lines(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each line of a comparison: they differ in the first key of the grid."""
    lines: dict[str, list[Cell]] = {}
    for cell in cells:
        lines.setdefault(_line_name(cell), []).append(cell)
    return lines


def _by_key(result: SweepResult, lines: Mapping[str, Sequence[Cell]]) -> Any:
    """The comparison along the first key of the grid."""
    figure = new_figure(_width(lines), 3.6)
    axes = figure.subplots()
    key = next(iter(result.sweep.grid))
    ends = []
    for at, (name, cells) in enumerate(lines.items()):
        color = COLORS[at % len(COLORS)]
        means, reach = _means(result, cells)
        # A line that the key does not change, such as runs without noise along ε, is a level to
        # compare with.
        linestyle = "-"
        if len(set(means)) == 1:
            linestyle = "--"
        places = np.arange(len(cells)) + _SHIFT * (at - (len(lines) - 1) / 2)
        axes.errorbar(
            places,
            means,
            yerr=reach,
            color=color,
            linestyle=linestyle,
            linewidth=2,
            marker=_MARKERS[at % len(_MARKERS)],
            capsize=3,
        )
        ends.append((means[-1], name, color))
    values = result.sweep.grid[key]
    axes.set_ylim(result.metric.within_range(axes.get_ylim()))
    axes.set_xticks(range(len(values)), [shown_value(value) for value in values])
    style(axes, xlabel=key_label(key), ylabel=result.metric.label)
    label_ends(axes, ends)
    return figure


def _in_rows(result: SweepResult, lines: Mapping[str, Sequence[Cell]]) -> Any:
    """The comparison of variants without a grid: a point and its number for each."""
    width = _width(name + result.shown_metric(cell) for name, (cell, *_) in lines.items())
    figure = new_figure(width, 0.5 * len(lines) + 1.2)
    axes = figure.subplots()
    for at, (name, (cell, *_)) in enumerate(lines.items()):
        color = COLORS[0]
        if cell.variant == result.sweep.baseline:
            color = COLORS[1]
        means, reach = _means(result, [cell])
        axes.errorbar(means, [at], xerr=reach, color=color, fmt="o", markersize=9, capsize=4)
        row = {"xycoords": ("axes fraction", "data"), "va": "center", "size": LARGE}
        axes.annotate(name, (-0.02, at), ha="right", **row)
        axes.annotate(result.shown_metric(cell), (1.02, at), **row)
    axes.set_xlim(result.metric.within_range(axes.get_xlim()))
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
