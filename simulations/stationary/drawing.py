"""Curves of this folder: one colour and marker an algorithm, names at the lines' ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmf.typing import Vector

__all__ = ["FTRL", "LOWEST", "OPTIMAL_CC", "PGD", "SGD", "Panel", "draw"]

SGD, FTRL, PGD, LOWEST = "Noisy-SGD", "ν-Noisy-FTRL", "anti-PGD, damped", "best Toeplitz noise"
OPTIMAL_CC = "ν = 0"
#: Okabe and Ito's colours, which the colour-blind can tell apart.
STYLE = {
    SGD: ("#555555", "o"), FTRL: ("#0072B2", "s"), PGD: ("#D55E00", "^"), LOWEST: ("#009E73", "D"),
    OPTIMAL_CC: ("#CC79A7", "v"),
}  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """One picture.

    Args:
        title: above it.
        x: label of the x axis.
        y: label of the y axis.
        lines: by algorithm, (x, y) as a line, or (x, y, half widths) as points.
        bounds: dashed lines, by algorithm.
        log: which axes are logarithmic: "x", "y" or both.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Vector]]
    bounds: Mapping[str, Sequence[Vector]] | None = None
    log: str = "xy"


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Save the panels side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.6 * len(panels), 3.9), layout="constrained", squeeze=False
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        ticks: list[float] = []
        for name, (x, y, *width) in panel.lines.items():
            colour, marker = STYLE[name]
            axis.errorbar(
                x, y, width[0] if width else None, color=colour, marker=marker if len(x) < 40 else "",
                markersize=5, linestyle="" if width else "-", capsize=2,
            )  # fmt: skip
            _name(axis, name, x, y, 7)
            if len(x) <= 6:
                ticks = list(x)
        for name, (x, y) in (panel.bounds or {}).items():
            axis.plot(x, y, color=STYLE[name][0], linestyle="--", linewidth=1)
            if name not in panel.lines:
                _name(axis, name, x, y, -14)
        if "x" in panel.log:
            axis.set_xscale("log")
            if ticks:
                axis.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
                axis.xaxis.set_minor_formatter("")
        if "y" in panel.log:
            axis.set_yscale("log")
        axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        axis.grid(alpha=0.3, which="both", linewidth=0.5)
        axis.margins(y=0.15)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _name(axis: Any, name: str, x: Vector, y: Vector, above: int) -> None:
    """Beside the end of a rising line, and the beginning of a falling one."""
    at, side = (-1, "right") if y[-1] >= y[0] else (0, "left")
    axis.annotate(
        name, (x[at], y[at]), xytext=(0, above), textcoords="offset points", color=STYLE[name][0],
        fontsize=8, ha=side,
    )  # fmt: skip
