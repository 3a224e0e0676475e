"""Tables and pictures of the comparison from its finished cells."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from methods import METHODS
from scipy import stats

__all__ = ["write_tables"]

Found = Mapping[tuple[Any, ...], Mapping[str, Any]]
#: Seeds from here on chose learning rates and are not in the tables.
FIRST_TUNING_SEED = 1000


def write_tables(found: Found, baseline: str, epsilons: Sequence[float], output: Path) -> None:
    """`optimizers.md` with a table a problem, and a picture of the last accuracies of each."""
    lines = [
        "Accuracy (%) after the last round, median and range over seeds; in brackets the 95 % interval",
        f"(Student) of the paired difference to {baseline} by seed. η and ρ were chosen on other seeds.",
    ]
    for problem in dict.fromkeys(key[0] for key in found):
        lines += ["", f"## {problem}", "", *_table(found, problem, baseline, epsilons)]
        _draw(found, problem, epsilons, output / f"optimizers-{problem.replace(' ', '-')}.png")
    (output / "optimizers.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _finals(
    found: Found, problem: str, method: str, epsilon: float
) -> dict[int, tuple[tuple, Mapping[str, Any]]]:
    """Final runs of a row by seed."""
    return {
        key[5]: (key, value)
        for key, value in found.items()
        if key[:3] == (problem, method, epsilon) and key[5] < FIRST_TUNING_SEED
    }


def _table(found: Found, problem: str, baseline: str, epsilons: Sequence[float]) -> list[str]:
    heads = [f"ε = {e:g}: accuracy | gain over {baseline} | η, ρ |" for e in epsilons]
    lines = ["| method | " + " ".join(heads), "|---|" + "---|---|---|" * len(epsilons)]
    for method in METHODS:
        cells = []
        for epsilon in epsilons if METHODS[method].private else epsilons[:1]:
            runs = _finals(found, problem, method, epsilon)
            if not runs:
                cells += ["", "", ""]
                continue
            values = [value["accuracy"] for _, value in runs.values()]
            cells.append(f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})")
            base = _finals(found, problem, baseline, epsilon)
            pairs = [runs[s][1]["accuracy"] - base[s][1]["accuracy"] for s in runs if s in base]
            cells.append("" if method == baseline or not METHODS[method].private else _interval(pairs))
            key = next(iter(runs.values()))[0]
            cells.append(f"{key[3]:.3g}" + (f", {key[4]:g}" if key[4] else ""))
        cells += [""] * (3 * len(epsilons) - len(cells))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


def _interval(differences: Sequence[float]) -> str:
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return f"{mean:+.1f}"
    spread = statistics.stdev(differences) / len(differences) ** 0.5
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * spread
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


#: By the beginning of a name: Okabe and Ito's colours.
_COLOURS = {
    "SGD": "#777777", "momentum": "#222222", "Fed": "#E69F00", "DP-Adam": "#D55E00", "joint": "#7F5F2F",
    "JME": "#0072B2", "block JME": "#009E73", "scale": "#CC79A7",
}  # fmt: skip


def _draw(found: Found, problem: str, epsilons: Sequence[float], path: Path) -> None:
    """A row a method, its seeds as points and their median as a bar; the best above."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    last = {
        (method, epsilon): [
            value["curve"][-1] for _, value in _finals(found, problem, method, epsilon).values()
        ]
        for method in METHODS
        if METHODS[method].private
        for epsilon in epsilons
    }
    methods = [name for name in METHODS if last.get((name, epsilons[0]))]
    methods.sort(key=lambda name: statistics.median(last[name, epsilons[0]]))
    figure = Figure(figsize=(10, 1.2 + 0.27 * len(methods)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(epsilons), sharey=True)
    for axes, epsilon in zip(panels, epsilons, strict=True):
        for row, method in enumerate(methods):
            if values := last[method, epsilon]:
                colour = next(_COLOURS[name] for name in _COLOURS if method.startswith(name))
                axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.5, markersize=5)
                axes.plot([statistics.median(values)], [row], "|", color=colour, markersize=15, mew=2.5)
        axes.set_title(f"{problem}, user-level ε = {epsilon:g}, δ = 1e-5")
        axes.set_xlabel("accuracy after the last round (%)")
        axes.grid(alpha=0.3)
    panels[0].set_yticks(range(len(methods)), methods, fontsize="small")
    for label, method in zip(panels[0].get_yticklabels(), methods, strict=True):
        label.set_color(next(_COLOURS[name] for name in _COLOURS if method.startswith(name)))
    figure.savefig(path, dpi=120)
