"""The picture of a stream: its released means over time with their noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fedmf.typing import Array

__all__ = ["draw_means"]

#: Told apart by the colour-blind (Okabe and Ito, 2008), black last.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: t, means, shape (steps, d), and their standard errors.
Means = tuple[Array, Array, Array]
#: The axis leaves out this share of the first steps, where the noise is largest.
_EARLY: Final = 0.1
_LABEL_HEIGHT: Final = 0.045


def draw_means(means: Means, columns: Sequence[str], file: Path) -> None:
    """Draw the released mean of each column with a band of two standard errors of its noise.

    Args:
        means: as `StreamRun.means` gives them.
        columns: names of the numbers; the first seven are drawn.
        file: .png, .svg or .pdf.

    Raises:
        ValueError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    t, mean, error = means
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    shown = min(len(columns), len(_COLOURS))
    for i in range(shown):
        axes.plot(t, mean[:, i], color=_COLOURS[i], linewidth=1.4)
        axes.fill_between(
            t, mean[:, i] - 2 * error, mean[:, i] + 2 * error, color=_COLOURS[i], alpha=0.18, linewidth=0
        )
    late = slice(int(_EARLY * len(t)), None)
    low = float((mean[late, :shown].min(axis=1) - 2 * error[late]).min())
    high = float((mean[late, :shown].max(axis=1) + 2 * error[late]).max())
    room = 0.05 * (high - low) or 1.0
    low, high = low - room, high + room
    axes.set_ylim(low, high)
    places = _apart(((mean[-1, :shown] - low) / (high - low)).tolist())
    for i, place in enumerate(places):
        axes.text(
            1.01, place, columns[i], color=_COLOURS[i], transform=axes.transAxes, va="center", fontsize=9
        )
    more = "" if shown == len(columns) else f", first {shown} of {len(columns)} columns"
    axes.set_title(f"released mean, band: ±2 standard errors of its noise{more}", fontsize=10)
    axes.set_xlabel("step t")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    try:
        figure.savefig(file, dpi=150)
    except OSError as failure:
        raise ValueError(f"--plot (file) must be writable; got {file}: {failure.strerror}.") from None


def _apart(places: list[float]) -> list[float]:
    """Heights for labels, in order and never one over another.

    >>> _apart([0.5, 0.5, 0.1])
    [0.5, 0.545, 0.1]
    """
    found, last = list(places), -1.0
    for i in sorted(range(len(places)), key=lambda i: places[i]):
        last = found[i] = max(places[i], last + _LABEL_HEIGHT)
    return found
