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
    """`optimizers.md` with a table a problem, and a picture of the learning curves of each."""
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


def _draw(found: Found, problem: str, epsilons: Sequence[float], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(epsilons), sharey=True)
    for axes, epsilon in zip(panels, epsilons, strict=True):
        for at, method in enumerate(name for name in METHODS if METHODS[name].private):
            curves = [value["curve"] for _, value in _finals(found, problem, method, epsilon).values()]
            if curves:
                mean = [statistics.mean(points) for points in zip(*curves, strict=False)]
                axes.plot(
                    [100 * (i + 1) / len(mean) for i in range(len(mean))],
                    mean,
                    ("-", "--", ":")[at // 7 % 3],
                    color=f"C{at % 7}",
                    label=method,
                )
        axes.set_title(f"{problem}, user-level ε = {epsilon:g}, δ = 1e-5")
        axes.set_xlabel("rounds (% of the horizon)")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy (%), mean over seeds")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=110)
