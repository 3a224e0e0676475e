"""Shared by the scripts of simulations/: errors of a mechanism, and curves as a picture and as
numbers.

python simulations/design/pictures.py [NAME]...     # pictures again from docs/results/NAME.json
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from style import look, name_at_ends, number, plain_logarithms

from fedmf.figures import new_figure, style
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
#: Points (x, y) of each curve, or (x, y, half the width of an interval).
Curves = Mapping[str, Sequence[tuple[float, ...]]]
#: Curves, x label, y label and, where a panel has its own, which axes are logarithmic.
Panel = tuple[Curves, str, str] | tuple[Curves, str, str, str]


def rmse_of(C: Factorization, contract: Participation) -> float:
    """RMSE of prefix sums, sensitivity included, noise multiplier left out."""
    return errors(C, prefix(C.rounds), sensitivity_of(C, contract)).rmse


def rmse(name: str, contract: Participation, **params: float) -> float:
    """The same for a mechanism by name; parameters not given are optimized."""
    return rmse_of(build(name, contract, params=params).factorization, contract)


def ratios(curves: Curves) -> dict[str, list[tuple[float, float]]]:
    """Every curve divided by the lowest one at the same place."""
    best: dict[float, float] = {}
    for points in curves.values():
        for x, y in points:
            best[x] = min(y, best.get(x, y))
    return {label: [(x, y / best[x]) for x, y in points] for label, points in curves.items()}


def epochs(k: int) -> str:
    """A label."""
    return "1 epoch" if k == 1 else f"{k} epochs"


def draw(name: str, panels: Mapping[str, Panel], log: str = "x") -> None:
    """Keep the numbers as docs/results/NAME.json and draw them.

    Args:
        name: of the files.
        panels: by title.
        log: which axes are logarithmic: "x", "y", "xy" or none.
    """
    kept = {
        title: {
            "x": xlabel,
            "y": ylabel,
            "log": own[0] if own else log,
            "curves": {
                label: [
                    [float(x), *(float(f"{value:.5g}") for value in rest)] for x, *rest in points
                ]
                for label, points in curves.items()
            },
        }
        for title, (curves, xlabel, ylabel, *own) in panels.items()
    }
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":")) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    redraw(name)


def redraw(name: str) -> None:
    """Save docs/results/NAME.png from the numbers: panels with the same curves, or of three and
    more, in two columns with a common legend, others one above the other with names at the lines'
    ends.
    """
    panels = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    labels = [list(panel["curves"]) for panel in panels.values()]
    common = len(panels) > 1 and (len(panels) > 2 or labels[0] == labels[1])
    columns = 2 if common else 1
    rows = -(-len(panels) // columns)
    figure = new_figure(7, 3.8 if len(panels) == 1 else 3.1 * rows + 0.6 * common)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    order = list(dict.fromkeys(label for one in labels for label in one))
    drawn: dict[str, Any] = {}
    for at, (title, panel) in enumerate(panels.items()):
        print(f"# {name}: {title}")
        found = _panel(axes[at], panel, order if common else labels[at])
        left = at % columns == 1 and panel["y"] == list(panels.values())[at - 1]["y"]
        style(axes[at], xlabel=panel["x"], ylabel="" if left else panel["y"])
        axes[at].set_title(title, fontsize=11)
        if not common:
            name_at_ends(axes[at], [(label, *end) for label, (_, *end) in found.items()])
        drawn = {label: line for label, (line, *_) in found.items()} | drawn
    # A lower bound looks like the curve itself.
    order = [label for label in order if not label.endswith("at least")]
    lines = [drawn[label] for label in order]
    if common and len(panels) % 2:
        axes[-1].axis("off")
        axes[-1].legend(lines, order, loc="center", frameon=False)
    elif common:
        beside = 2 if max(map(len, order)) > 24 else 3
        figure.legend(lines, order, loc="outside lower center", ncols=beside, frameon=False)
    figure.savefig(RESULTS / f"{name}.png", dpi=150)


def _panel(axes: Any, panel: Mapping[str, Any], order: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Its curves: by label the line, and x, y and color of the end."""
    found = {}
    for label, points in panel["curves"].items():
        shown = points[:: 1 + len(points) // 20]
        print(
            f"{label}: "
            + ", ".join("(" + ", ".join(f"{z:.4g}" for z in point) + ")" for point in shown)
        )
        at = order.index(label)
        seen = look(label, at)
        x, y, *half = zip(*points, strict=True)
        dense = len(points) > 40
        plain = {"color": seen.color, "zorder": 3 - 0.1 * at, "markersize": 5, "capsize": 2}
        plain |= {"marker": "" if dense or seen.line == "--" else seen.marker}
        plain |= {"linestyle": "" if f"{label}, exact" in panel["curves"] else seen.line}
        line = axes.errorbar(x, y, half[0] if half and not dense else None, **plain)
        found[label] = (line, *max(points)[:2], seen.color)
        if half and dense:
            low, high = (
                [a + sign * b for a, b in zip(y, half[0], strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(x, low, high, alpha=0.25, color=seen.color, linewidth=0)
    if "y" in panel["log"]:
        axes.set_yscale("log")
        plain_logarithms(axes.yaxis)
    if "x" in panel["log"]:
        axes.set_xscale("log")
        plain_logarithms(axes.xaxis)
        xs = sorted({point[0] for points in panel["curves"].values() for point in points})
        if len(xs) <= 16 and all(math.log2(x) % 1 == 0 or x == float(f"{x:.2g}") for x in xs):
            xs = xs[:: 1 if len(xs) < 8 else 2]
            axes.set_xticks(xs, [number(x) for x in xs])
            axes.set_xticks([], minor=True)
    return found


def main() -> None:
    for name in sys.argv[1:]:
        redraw(name)


if __name__ == "__main__":
    main()
