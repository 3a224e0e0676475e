"""The picture of a stream: its released means with their noise, and its last correlations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from fedmf.streaming import PrivateRelease
    from fedmf.streaming.release import Renderer
    from fedmf.streaming.state import Releases

#: Told apart by the colour-blind (Okabe and Ito, 2008), black last.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Releases that are drawn, and that are read at once.
_POINTS, _BLOCK = 1000, 4096
#: Columns whose names fit beside a matrix.
_MOST_NAMES: Final = 15


def draw_stream(
    renderer: Renderer,
    releases: Callable[[int, int], Releases],
    records: int,
    file: Path,
    last: PrivateRelease | None,
) -> None:
    """Draw the released mean of each column with a band of two standard errors of its noise.

    Where the last release has correlations, a second panel shows them, empty where too noisy to say.

    Args:
        renderer: of the stream.
        releases: those from start to stop − 1; about a thousand are drawn, the last among them.
        records: how many there are.
        file: .png, .svg or .pdf.
        last: the last one.

    Raises:
        ValueError: there are none.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    if not records:
        raise ValueError("releases (of the stream) must be at least one for a picture; got none.")
    wanted = np.unique(np.linspace(0, records - 1, min(records, _POINTS)).astype(np.int64))
    parts: dict[str, list[Any]] = {"t": [], "mean": [], "mean_standard_error": [], "timestamp": []}
    for start in range(0, records, _BLOCK):
        stop = min(records, start + _BLOCK)
        chosen = wanted[(start <= wanted) & (wanted < stop)] - start
        fields = renderer.fields(releases(start, stop))
        for name in parts.keys() & fields.keys():
            parts[name].extend(fields[name][chosen])
    beside = last if last is not None and last.correlation is not None and not last.too_few else None
    figure = Figure(figsize=(13 if beside else 8, 4.5), layout="constrained")
    panels = figure.subplots(1, 2 if beside else 1, squeeze=False, width_ratios=(3, 2) if beside else None)[0]
    _draw_means(panels[0], parts, renderer.names)
    if beside:
        _draw_correlations(figure, panels[1], beside, renderer.names)
    figure.savefig(file, dpi=150)


def _draw_means(axes: Any, parts: dict[str, list[Any]], columns: Sequence[str]) -> None:
    mean, error = (np.array(parts[name]) for name in ("mean", "mean_standard_error"))
    low, high = mean - 2 * error, mean + 2 * error
    times, label = _times(parts["t"], parts["timestamp"])
    for i, colour in enumerate(_COLOURS[: len(columns)]):
        axes.plot(times, mean[:, i], color=colour, linewidth=1.4, label=columns[i])
        axes.fill_between(times, low[:, i], high[:, i], color=colour, alpha=0.18, linewidth=0)
    # The noise of the first steps is largest.
    ends = np.stack([low, high])[:, len(mean) // 10 :, : len(_COLOURS)]
    if (ends := ends[np.isfinite(ends)]).size:
        margin = 0.05 * np.ptp(ends) + 1e-9
        axes.set_ylim(ends.min() - margin, ends.max() + margin)
    more = "" if len(columns) <= len(_COLOURS) else f", first {len(_COLOURS)} of {len(columns)} columns"
    axes.set_title(f"released mean, band: ±2 standard errors of its noise{more}", fontsize=10)
    axes.set_xlabel(label)
    axes.legend(fontsize=8, frameon=False)
    axes.grid(alpha=0.25)


def _times(steps: list[int], stamps: list[str]) -> tuple[Any, str]:
    """The axis of time and its label: timestamps that are numbers or dates (with an offset:
    in UTC) and never go back, else steps.

    >>> _times([1, 2], ["3", "5.5"])[0].tolist(), _times([1, 2], ["3", "x"])[0]
    ([3.0, 5.5], [1, 2])
    """
    import pandas as pd

    text: Any = pd.Series(stamps, dtype=str)
    dates = pd.to_datetime(text, errors="coerce", format="mixed", utc=True).dt.tz_localize(None)
    for times in (pd.Series(pd.to_numeric(text, errors="coerce")), dates):
        if stamps and times.is_monotonic_increasing:  # which no missing one is
            return times.to_numpy(), "timestamp"
    return steps, "step t" + (" (its timestamps are no times in order)" if stamps else "")


def _draw_correlations(figure: Any, axes: Any, last: PrivateRelease, columns: Sequence[str]) -> None:
    parts = last.correlation, last.correlation_low, last.correlation_high
    value, low, high = map(np.array, parts)
    d = len(value)
    np.fill_diagonal(value, np.nan)
    image = axes.imshow(value, cmap="RdBu_r", vmin=-1, vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.8, label="correlation")
    told = int(np.isfinite(value).sum()) // 2
    axes.set_title(
        f"correlations after the last step: {told} of {d * (d - 1) // 2} told,\nempty: too noisy to say",
        fontsize=10,
    )
    if d <= _MOST_NAMES:
        axes.set_xticks(range(d), columns, rotation=60, ha="right", fontsize=8)
        axes.set_yticks(range(d), columns, fontsize=8)
        for i, j in zip(*np.nonzero(np.isfinite(value)), strict=True):
            half = (high[i, j] - low[i, j]) / 2
            axes.text(j, i, f"{value[i, j]:.1f}\n±{half:.1f}", ha="center", va="center", fontsize=6)
