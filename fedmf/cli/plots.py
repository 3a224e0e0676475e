"""The picture of a stream: its released means with their noise, and its last correlations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedmf.figures import COLORS, new_figure, save_figure, style

if TYPE_CHECKING:
    from fedmf.streaming import PrivateRelease
    from fedmf.streaming.private_release import Renderer
    from fedmf.streaming.state import ReleaseBlock

#: Columns that have a panel each.
_PANELS: Final = 6
#: Releases that are drawn.
_POINTS = 1000
#: Releases that are read at once.
_BLOCK = 4096
#: Most dates below an axis, which then do not overlap.
_MOST_DATES: Final = 7
#: Most columns with names that fit next to a matrix.
_MOST_NAMES: Final = 15


def draw_stream(
    renderer: Renderer,
    releases: Callable[[int, int], ReleaseBlock],
    records: int,
    file: Path,
    last: PrivateRelease | None,
) -> None:
    """Draw the released mean of each column in a panel, with two standard errors of its noise.

    Correlations of the last release are below the means, if any of them exceeds the noise.

    Args:
        renderer: renderer of the stream.
        releases: returns the releases from start to stop − 1; about a thousand are drawn, including
            the last.
        records: number of releases.
        file: .png, .svg or .pdf.
        last: the last release.

    Raises:
        ValueError: there are none.
        OSError: the file cannot be written.
    """
    if not records:
        raise ValueError("releases (of the stream) must be at least one for a picture; got none.")
    wanted = np.unique(np.linspace(0, records - 1, min(records, _POINTS)).astype(np.int64))
    parts: dict[str, list[Any]] = {"t": [], "mean": [], "mean_standard_error": []}
    parts |= {"timestamp": [], "end": []}
    for start in range(0, records, _BLOCK):
        stop = min(records, start + _BLOCK)
        chosen = wanted[(start <= wanted) & (wanted < stop)] - start
        fields = renderer.fields(releases(start, stop))
        for name in parts.keys() & fields.keys():
            parts[name].extend(fields[name][chosen])
    panels = min(len(renderer.names), _PANELS)
    means_height = max(1.7 * panels + 0.8, 3.2)
    if last is not None and _any_correlation(last):
        matrix_height = min(2.4 + 0.3 * len(renderer.names), 7.0)
        figure = new_figure(7, means_height + matrix_height)
        means, matrix = figure.subfigures(2, 1, height_ratios=(means_height, matrix_height))
        _draw_correlations(matrix, last, renderer.names)
    else:
        figure = new_figure(7, means_height)
        means = figure
    _draw_means(means, parts, renderer.names[:panels], len(renderer.names))
    save_figure(figure, file)


def _any_correlation(release: PrivateRelease) -> bool:
    """Return whether the noise lets any correlation be estimated."""
    matrix = release.correlation
    if matrix is None:
        return False
    return bool(np.isfinite(matrix[np.triu_indices(len(matrix), 1)]).any())


def _draw_means(
    figure: Any, parts: dict[str, list[Any]], columns: Sequence[str], all_columns: int
) -> None:
    from matplotlib.dates import AutoDateLocator

    mean = np.array(parts["mean"])
    error = np.array(parts["mean_standard_error"])
    low = mean - 2 * error
    high = mean + 2 * error
    times, label = _times(parts["t"], parts["timestamp"], parts["end"])
    panels = figure.subplots(len(columns), sharex=True, squeeze=False)[:, 0]
    for i, (axes, name) in enumerate(zip(panels, columns, strict=True)):
        axes.plot(times, mean[:, i], color=COLORS[0], linewidth=1.4)
        axes.fill_between(times, low[:, i], high[:, i], color=COLORS[0], alpha=0.18, linewidth=0)
        # The first steps have the largest noise, so they do not set the limits of the axis.
        ends = np.stack([low, high])[:, len(mean) // 10 :, i]
        ends = ends[np.isfinite(ends)]
        if ends.size:
            margin = 0.05 * np.ptp(ends) + 1e-9
            axes.set_ylim(ends.min() - margin, ends.max() + margin)
        style(axes, ylabel=name)
    panels[-1].set_xlabel(label)
    if np.asarray(times).dtype.kind == "M":
        panels[-1].xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=_MOST_DATES))
    figure.align_ylabels()
    title = "Released means (band: ±2 standard errors of the noise)"
    if len(columns) < all_columns:
        title += f", first {len(columns)} of {all_columns} columns"
    figure.suptitle(title, fontsize=11)


def _times(steps: list[int], stamps: list[str], ends: list[str]) -> tuple[Any, str]:
    """Return the values of the time axis and its label.

    They are the ends of periods, if there are any; else the timestamps if these are numbers or
    dates (converted to UTC if they have an offset) in ascending order, else the steps.

    >>> _times([1, 2], ["3", "5.5"], [])[0].tolist(), _times([1, 2], ["3", "x"], [])[0]
    ([3.0, 5.5], [1, 2])
    >>> _times([1, 2], [], ["2026-01-12T00:00:00", "2026-01-19T00:00:00"])[1]
    'end of the period'
    """
    import pandas as pd

    if ends:
        return pd.to_datetime(pd.Series(ends)).dt.tz_localize(None).to_numpy(), "end of the period"
    text: Any = pd.Series(stamps, dtype=str)
    dates = pd.to_datetime(text, errors="coerce", format="mixed", utc=True).dt.tz_localize(None)
    for times in (pd.Series(pd.to_numeric(text, errors="coerce")), dates):
        if stamps and times.is_monotonic_increasing:  # False if any value is missing
            return times.to_numpy(), "timestamp"
    if stamps:
        return steps, "row of the stream (timestamps are not ordered times)"
    return steps, "row of the stream"


def _draw_correlations(figure: Any, last: PrivateRelease, columns: Sequence[str]) -> None:
    value = np.array(last.correlation)
    low = np.array(last.correlation_low)
    high = np.array(last.correlation_high)
    d = len(value)
    axes = figure.subplots()
    np.fill_diagonal(value, 1.0)
    axes.set_facecolor("0.92")
    image = axes.imshow(value, cmap="RdBu_r", vmin=-1, vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.7, label="correlation")
    title = "Correlations in the last release"
    if not np.isfinite(value).all():
        title += "\n(gray: too noisy to say)"
    axes.set_title(title, fontsize=11)
    if d <= _MOST_NAMES:
        axes.set_xticks(range(d), columns, rotation=30, ha="right", fontsize=9)
        axes.set_yticks(range(d), columns, fontsize=9)
        for i, j in zip(*np.nonzero(np.isfinite(value) & ~np.eye(d, dtype=bool)), strict=True):
            half = (high[i, j] - low[i, j]) / 2
            text = axes.text(
                j, i, f"{value[i, j]:.2f}\n±{half:.2f}", ha="center", va="center", fontsize=8
            )
            if abs(value[i, j]) > 0.7:
                text.set_color("white")  # on a dark cell
