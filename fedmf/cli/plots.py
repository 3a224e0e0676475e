"""Pictures of a stream: its released means with their noise, and its last density."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.typing import Array

if TYPE_CHECKING:
    from fedmf.streaming import PrivateRelease
    from fedmf.streaming.release import Renderer
    from fedmf.streaming.state import Releases


_SUFFIXES = (".png", ".svg", ".pdf")


def check_picture(option: str, file: Path) -> None:
    """Whether a picture can be drawn there, before anything is computed.

    Raises:
        ValueError: matplotlib is missing, the format is unknown or the folder does not exist.
    """
    if find_spec("matplotlib") is None:
        raise ValueError(f"{option} (picture) needs matplotlib; got none. Install fedmf[report].")
    if file.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"{option} (file) must end in {', '.join(_SUFFIXES)}; got {file.name!r}.")
    if not file.parent.is_dir():
        raise ValueError(f"{option} (file) must lie in a folder that exists; got {file}.")


#: Told apart by the colour-blind (Okabe and Ito, 2008), black last.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: The axis leaves out this share of the first steps, where the noise is largest.
_EARLY: Final = 0.1
#: Releases that are drawn, and that are read at once.
_POINTS: Final = 1000
_BLOCK: Final = 4096
_LABEL_HEIGHT: Final = 0.045
#: Columns whose names fit beside a matrix.
_MOST_NAMES: Final = 15
#: Squared distances within which half and 95 % of a Gaussian plane lie.
_RINGS: Final = ((1.386, "50 %"), (5.991, "95 %"))


@dataclass(frozen=True, eq=False)
class MeanPoints:
    """Released means of some steps.

    Args:
        t: the steps.
        mean: shape (steps, d).
        error: their standard errors, shape (steps, d).
        times: the public timestamps of the steps, as text; None for a stream without them.
    """

    t: NDArray[np.int64]
    mean: Array
    error: Array
    times: list[str] | None


def mean_points(renderer: Renderer, releases: Callable[[int, int], Releases], records: int) -> MeanPoints:
    """Steps, means and standard errors of the means of about a thousand releases, the last among them.

    Args:
        renderer: of the stream.
        releases: those from start to stop − 1.
        records: how many there are.

    Raises:
        ValueError: there are none.
    """
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
    t, mean, error = (np.array(parts[name]) for name in ("t", "mean", "mean_standard_error"))
    return MeanPoints(t, mean, error, parts["timestamp"] or None)


def draw_stream(
    means: MeanPoints, columns: Sequence[str], file: Path, release: PrivateRelease | None = None
) -> None:
    """Draw the released mean of each column with a band of two standard errors of its noise.

    The stream's own times are the axis where it has timestamps that can be read as dates or numbers, and they
    never go back; else steps are. With a covariance, a second panel shows the density of the last release:
    its curve (d = 1), its ellipses (d = 2) or its correlations (d > 2), empty where too noisy to say.

    Args:
        means: as `mean_points` gives them.
        columns: names of the numbers; the first seven are drawn.
        file: .png, .svg or .pdf.
        release: the last one.

    Raises:
        ValueError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    density = None if release is None or release.covariance is None or release.too_few else release
    figure = Figure(figsize=(8 if density is None else 13, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    if density is None:
        _draw_means(figure.subplots(), means, columns)
    else:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_means(left, means, columns)
        _draw_density(figure, right, density, columns)
    try:
        figure.savefig(file, dpi=150)
    except OSError as failure:
        raise ValueError(f"--plot (file) must be writable; got {file}: {failure.strerror}.") from None


def _draw_means(axes: Any, means: MeanPoints, columns: Sequence[str]) -> None:
    mean, error = means.mean, means.error
    times, label = _times(means)
    shown = min(len(columns), len(_COLOURS))
    for i in range(shown):
        axes.plot(times, mean[:, i], color=_COLOURS[i], linewidth=1.4)
        axes.fill_between(
            times,
            mean[:, i] - 2 * error[:, i],
            mean[:, i] + 2 * error[:, i],
            color=_COLOURS[i],
            alpha=0.18,
            linewidth=0,
        )
    late = slice(int(_EARLY * len(mean)), None)
    low, high = _ends(mean[late, :shown], error[late, :shown])
    axes.set_ylim(low, high)
    places = _apart(np.nan_to_num((mean[-1, :shown] - low) / (high - low), nan=0.5).tolist())
    for i, place in enumerate(places):
        axes.text(
            1.01, place, columns[i], color=_COLOURS[i], transform=axes.transAxes, va="center", fontsize=9
        )
    more = "" if shown == len(columns) else f", first {shown} of {len(columns)} columns"
    axes.set_title(f"released mean, band: ±2 standard errors of its noise{more}", fontsize=10)
    axes.set_xlabel(label)
    if isinstance(times[0], datetime):
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        axes.xaxis.set_major_locator(locator := AutoDateLocator(maxticks=7))
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _ends(mean: Array, error: Array) -> tuple[float, float]:
    """Of the axis; means of too few rows to tell are not on it."""
    below, above = mean - 2 * error, mean + 2 * error
    told = np.isfinite(below)
    low, high = (float(below[told].min()), float(above[told].max())) if told.any() else (0.0, 0.0)
    room = 0.05 * (high - low) or 1.0
    return low - room, high + room


def _times(means: MeanPoints) -> tuple[Any, str]:
    """The axis of time and its label.

    >>> from types import SimpleNamespace as Points
    >>> _times(Points(t=[1, 2], times=["3", "5.5"])), _times(Points(t=[1, 2], times=["3", "x"]))[0]
    (([3.0, 5.5], 'timestamp'), [1, 2])
    """
    if means.times is None:
        return means.t, "step t"
    for read in (float, datetime.fromisoformat):
        try:
            times: list[Any] = [read(text) for text in means.times]
            if all(a <= b for a, b in pairwise(times)):
                return times, "timestamp"
        except (ValueError, TypeError):  # no number, no date, dates with and without a zone
            continue
    return means.t, "step t (its timestamps are no times in order)"


def _draw_density(figure: Any, axes: Any, density: PrivateRelease, columns: Sequence[str]) -> None:
    d, variances = len(density.mean), density.covariance
    assert variances is not None
    if d == 1:
        deviation = float(np.sqrt(variances.flat[0]))
        x = density.mean[0] + deviation * np.linspace(-4, 4, 400)
        axes.plot(x, np.exp(-0.5 * density.score(x[:, None])) / deviation / 2.5066, color=_COLOURS[0])
        axes.set(xlabel=columns[0], ylabel="density")
    elif d == 2:
        covariance = variances if variances.ndim == 2 else np.diag(variances)
        turn = np.linspace(0, 2 * np.pi, 200)
        circle = np.linalg.cholesky(covariance) @ np.stack([np.cos(turn), np.sin(turn)])
        for (square, text), line in zip(_RINGS, ("-", "--"), strict=True):
            x, y = density.mean[:, None] + np.sqrt(square) * circle
            axes.plot(x, y, line, color=_COLOURS[0], label=f"{text} of the density")
        low, high = density.mean_low, density.mean_high
        axes.errorbar(
            *density.mean,
            xerr=[[max(0.0, density.mean[0] - low[0])], [max(0.0, high[0] - density.mean[0])]],
            yerr=[[max(0.0, density.mean[1] - low[1])], [max(0.0, high[1] - density.mean[1])]],
            color=_COLOURS[1],
            label="mean, 95 %",
        )
        axes.set(xlabel=columns[0], ylabel=columns[1])
        axes.margins(0.12)
        empty = "upper left" if covariance[0, 1] > 0 else "upper right"  # a corner the ellipse leaves
        axes.legend(frameon=False, fontsize=7, loc=empty)
    elif density.correlation is not None:
        _draw_correlations(figure, axes, density, columns)
        return
    else:
        axes.barh(range(d), np.sqrt(variances), color=_COLOURS[0])
        axes.set(xlabel="standard deviation")
        if d <= _MOST_NAMES:
            axes.set_yticks(range(d), columns)
        axes.invert_yaxis()
    axes.set_title(density.too_noisy or "density after the last step", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _draw_correlations(figure: Any, axes: Any, density: PrivateRelease, columns: Sequence[str]) -> None:
    assert density.correlation is not None
    assert density.correlation_low is not None
    assert density.correlation_high is not None
    value, low, high = density.correlation.copy(), density.correlation_low, density.correlation_high
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


def _apart(places: list[float]) -> list[float]:
    """Heights for labels, in order and never one over another.

    >>> _apart([0.5, 0.5, 0.1])
    [0.5, 0.545, 0.1]
    """
    found, last = list(places), -1.0
    for i in sorted(range(len(places)), key=lambda i: places[i]):
        last = found[i] = max(places[i], last + _LABEL_HEIGHT)
    return found
