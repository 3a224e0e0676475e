"""Shared by the scripts of this folder: errors of a mechanism, and curves as a picture and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from style import look, name_at_ends

from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
Curves = Mapping[str, Sequence[tuple[float, float]]]


def rmse_of(C: Factorization, contract: Participation) -> float:
    """RMSE of prefix sums, sensitivity included, noise multiplier left out."""
    return errors(C, prefix(C.rounds), stated_sensitivity(C, contract)).rmse


def rmse(name: str, contract: Participation, **params: float) -> float:
    """The same for a mechanism by name; parameters not given are optimised."""
    return rmse_of(build(name, contract, params=params).factorization, contract)


def ratios(curves: Curves) -> dict[str, list[tuple[float, float]]]:
    """Every curve divided by the lowest one at the same place."""
    best: dict[float, float] = {}
    for points in curves.values():
        for x, y in points:
            best[x] = min(y, best.get(x, y))
    return {label: [(x, y / best[x]) for x, y in points] for label, points in curves.items()}


def draw(
    name: str, panels: Mapping[str, tuple[Curves, str, str]], logx: bool = True, logy: bool = False
) -> None:
    """Save docs/results/NAME.png, a panel for each (curves, x label, y label), and its numbers as JSON."""
    numbers = {
        title: {label: [[float(x), float(f"{y:.5g}")] for x, y in points] for label, points in curves.items()}
        for title, (curves, *_) in panels.items()
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps(numbers, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = -(-len(panels) // 2) if len(panels) > 3 else 1
    columns = -(-len(panels) // rows)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5.8 * columns, 4.0 * rows), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, (curves, xlabel, ylabel)) in zip(axes.flat, panels.items(), strict=False):
        print(f"# {name}: {title}")
        ends = []
        for at, (label, points) in enumerate(curves.items()):
            shown = points[:: 1 + len(points) // 20]
            print(f"{label}: " + ", ".join(f"({x:g}, {y:.4g})" for x, y in shown))
            seen = look(label, at)
            axis.plot(
                *zip(*points, strict=True), color=seen.colour, linestyle=seen.line, markersize=5,
                marker="" if len(points) > 40 else seen.marker, zorder=3 - 0.1 * at,
            )  # fmt: skip
            ends.append((label, *max(points), seen.colour))
        if logx:
            axis.set_xscale("log", base=2)
            xs = sorted({x for points in curves.values() for x, _ in points})
            if len(xs) <= 9:
                axis.set_xticks(xs, [f"{x:g}" for x in xs])
        if logy:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            low, high = axis.get_ylim()
            # Over less than a decade and a half the major ticks alone are too few.
            axis.yaxis.set_minor_formatter("{x:g}" if high < 30 * low else "")
            axis.tick_params(axis="y", which="minor", labelsize=7)
        axis.set(title=title, xlabel=xlabel, ylabel=ylabel)
        axis.grid(alpha=0.3)
        name_at_ends(axis, ends)
    figure.savefig(RESULTS / f"{name}.png", dpi=130)
    plt.close(figure)
