"""Shared by the scripts of this folder: errors of a mechanism, and curves as a picture and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmf.factorization.matrices.strategy_matrix import Factorization
from fedmf.factorization.mechanisms.catalogue import build
from fedmf.factorization.objectives.error import errors
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.participation import Participation
from fedmf.workload.toeplitz import prefix

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
    """Save docs/results/NAME.png with a panel for each (curves, x label, y label), and print the numbers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(panels), figsize=(5.5 * len(panels), 4.2), layout="constrained", squeeze=False
    )
    for axis, (title, (curves, xlabel, ylabel)) in zip(axes[0], panels.items(), strict=True):
        print(f"# {name}: {title}")
        for at, (label, points) in enumerate(curves.items()):
            shown = points[:: 1 + len(points) // 20]
            print(f"{label}: " + ", ".join(f"({x:g}, {y:.4g})" for x, y in shown))
            marker = "" if len(points) > 40 else "os^Dv*P<>X"[at % 10]
            axis.plot(*zip(*points, strict=True), marker=marker, markersize=4, label=label)
        if logx:
            axis.set_xscale("log", base=2)
        if logy:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            low, high = axis.get_ylim()
            # Over less than a decade and a half the major ticks alone are too few.
            axis.yaxis.set_minor_formatter("{x:g}" if high < 30 * low else "")
            axis.tick_params(axis="y", which="minor", labelsize=7)
        axis.set(title=title, xlabel=xlabel, ylabel=ylabel)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / f"{name}.png", dpi=130)
    plt.close(figure)
