"""Page, numbers and picture of the benchmark on real data, from finished runs of its sweeps.

    fedmf sweep configs/benchmarks/fashion-mnist.toml --out sweeps/fashion-mnist    # and the others
    python simulations/benchmarks/report.py sweeps --hardware "16 cores of a Xeon"

A sweep that was stopped is reported with the seeds that are there. Verdicts are computed from paired 95 %
intervals alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from fedmf.sweeps import Cell, Sweep, mean_interval

_ROOT: Final = Path(__file__).parents[2]
_DIRICHLET: Final = {"data.partition": "dirichlet", "data.dirichlet-alpha": 0.1}
#: Folder of finished runs, configuration and what is set over it, and the heading of its tables.
_SWEEPS: Final[tuple[tuple[str, str, dict[str, Any], str], ...]] = (
    ("fashion-mnist", "fashion-mnist", {}, "Fashion-MNIST, MLP"),
    ("fashion-mnist-dirichlet", "fashion-mnist", _DIRICHLET, "Fashion-MNIST, MLP, Dirichlet 0.1"),
    ("fashion-mnist-cnn", "fashion-mnist-cnn", {}, "Fashion-MNIST, CNN"),
    ("shakespeare", "shakespeare", {}, "Shakespeare, next character"),
)


@dataclass(frozen=True)
class Row:
    """A cell as far as it was run: its values by seed, what was tuned, and the score of each candidate."""

    cell: Cell
    values: Mapping[int, float]
    rate: float
    tuning: Mapping[float, float]

    def over(self, other: Row) -> list[float]:
        """Estimate and 95 % interval of the difference, paired by seed."""
        return [
            *mean_interval(
                [self.values[seed] - other.values[seed] for seed in self.values if seed in other.values]
            )
        ][:3]

    @property
    def at_the_edge(self) -> bool:
        """Whether the chosen rate ends those that were tried."""
        return self.rate in (min(self.tuning), max(self.tuning))


class Finished:
    """The rows of one sweep.

    Args:
        folder: of the sweep, or where it was stopped.
        sweep: what was asked for.
    """

    def __init__(self, folder: Path, sweep: Sweep) -> None:
        self.runs, self.seconds = 0, 0.0
        self._kept = {
            file.stem: json.loads(file.read_text()) for file in (folder / "finished").glob("*.json")
        }
        self._sweep = sweep
        (self._name,) = sweep.tuned
        made = [self._row(cell) for cell in sweep.cells]
        self.rows = {row.cell: row for row in made if row and row.values}

    def _row(self, cell: Cell) -> Row | None:
        sweep, scores = self._sweep, dict[float, float]()
        for tuned in sweep.candidates:
            values = self._values(cell, tuned, sweep.tuning_seeds)
            if len(values) == len(sweep.tuning_seeds):
                scores[float(tuned[self._name])] = fmean(values.values())
        if len(scores) < 3:
            return None
        rate = max(scores, key=scores.__getitem__)
        return Row(cell, self._values(cell, {self._name: rate}, sweep.seeds), rate, scores)

    def _values(self, cell: Cell, tuned: Mapping[str, Any], seeds: Sequence[int]) -> dict[int, float]:
        found = {}
        for seed in seeds:
            if kept := self._kept.get(self._sweep.planned(cell, tuned, seed).digest):
                value = kept["metrics"][-1].get(kept["columns"][self._sweep.metric]["column"])
                found[seed] = -1.0 if value is None or math.isnan(value) else value
                self.runs, self.seconds = self.runs + 1, self.seconds + kept.get("seconds", 0.0)
        return found


def _percent(values: Sequence[float], sign: str = "") -> list[str]:
    return [f"{100 * value:{sign}.1f}" for value in values]


def _verdict(low: float, high: float) -> str:
    return "ahead" if low > 0 else "behind" if high < 0 else "undecided"


def _interval(values: Sequence[float]) -> str:
    shown = _percent(values, "+")
    return f"{shown[0]} [{shown[1]}, {shown[2]}]" if math.isfinite(values[1]) else shown[0]


def _sections(heading: str, done: Finished, baseline: str) -> list[str]:
    """A table for each point of the grid."""
    lines = []
    for point in dict.fromkeys(cell.point for cell in done.rows):
        rows = [row for row in done.rows.values() if row.cell.point == point]
        base = done.rows.get(Cell(baseline, point))
        if len(rows) < 2:
            continue
        lines += ["", f"## {heading}, ε = {dict(point).get('privacy.epsilon', 8.0):g}", ""]
        lines += [
            f"| mechanism | accuracy (%) | 95 % interval | − {baseline} | verdict | η | seeds |",
            "|---|" + "---|" * 6,
        ]
        for row in rows:
            mean, low, high, seeds = mean_interval([*row.values.values()])
            ends = " to ".join(_percent((low, high))) if seeds > 1 else ""
            difference = row.over(base) if base and row is not base else None
            told = _verdict(*difference[1:]) if difference else "baseline" if row is base else ""
            rate = f"{row.rate:g}{'*' if row.at_the_edge else ''}"
            shown = _interval(difference) if difference else ""
            entries = [row.cell.variant, _percent([mean])[0], ends, shown, told, rate, str(seeds)]
            lines.append(f"| {' | '.join(entries)} |")
    return lines


def _picture(path: Path, panels: Mapping[str, Sequence[Row]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(panels), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, rows) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        for at, row in enumerate(reversed(rows)):
            mean, low, _, seeds = mean_interval([*row.values.values()])
            name = row.cell.variant
            colour = (
                "#D55E00"
                if name.startswith("independent")
                else "#000000"
                if name == "no noise"
                else "#0072B2"
            )
            reach = 100 * (mean - low) if seeds > 1 else 0.0
            axes.errorbar(100 * mean, at, xerr=reach, fmt="o", color=colour, capsize=3)
        axes.set_yticks(range(len(rows)), [row.cell.variant for row in reversed(rows)], fontsize=8)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("test accuracy (%), 95 % intervals", fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def _optimizers(done: Finished) -> list[str]:
    """Accuracies by ε, adjacency and model, and JME-Adam against the debiased rule and against SGD."""
    variants = list(dict.fromkeys(cell.variant for cell in done.rows))
    pairs = [
        ("JME-Adam", "Adam, debiased"),
        ("JME-Adam, by tensor", "Adam, debiased, by tensor"),
        ("JME-Adam", "SGD"),
    ]
    head = ["ε, adjacency, model", *variants, *(f"{a} − {b}" for a, b in pairs), "seeds"]
    lines, count = (
        [f"| {' | '.join(head)} |", "|---" * len(head) + "|"],
        {pair: dict[str, int]() for pair in pairs},
    )
    for point in dict.fromkeys(cell.point for cell in done.rows):
        at = {name: done.rows.get(Cell(name, point)) for name in variants}
        entries = [f"{dict(point)['privacy.epsilon']:g}, " + ", ".join(str(value) for _, value in point[1:])]
        entries += [
            _percent([fmean(row.values.values())])[0] + "*" * row.at_the_edge if row else ""
            for row in at.values()
        ]
        for pair in pairs:
            first, second = (at.get(name) for name in pair)
            difference = first.over(second) if first and second else [math.nan] * 3
            entries.append("" if math.isnan(difference[0]) else _interval(difference))
            if math.isfinite(difference[1]):
                word = _verdict(*difference[1:])
                count[pair][word] = count[pair].get(word, 0) + 1
        lines.append(f"| {' | '.join(entries)} | {min(len(row.values) for row in at.values() if row)} |")
    lines.append("")
    for (a, b), words in count.items():
        lines.append(
            f"* {a} over {b}: "
            + ", ".join(f"{word} in {words.get(word, 0)}" for word in ("ahead", "undecided", "behind"))
        )
    return lines


def _write(path: Path, begin: str, lines: Sequence[str]) -> None:
    """Replace what stands behind a line of a page, which says by hand what comes before."""
    before, _, _ = path.read_text(encoding="utf-8").partition(begin)
    path.write_text(before + begin + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", type=Path, help="folder with the folders of the sweeps")
    parser.add_argument("--hardware", required=True, help="what they ran on, for the page")
    options = parser.parse_args()
    results, lines, kept, panels = (
        _ROOT / "docs" / "results",
        list[str](),
        dict[str, Any](),
        dict[str, list[Row]](),
    )
    cost: dict[str, tuple[int, float]] = {}
    for folder, config, keys, heading in (*_SWEEPS, ("jme-adam", "jme-adam", {}, "")):
        if not (options.sweeps / folder).is_dir():
            continue
        sweep = Sweep.from_config(_ROOT / "configs" / "benchmarks" / f"{config}.toml", keys)
        done = Finished(options.sweeps / folder, sweep)
        cost[folder] = done.runs, done.seconds / 3600
        kept[folder] = {
            str(row.cell): {"η": row.rate, "values": row.values, "tuning": row.tuning}
            for row in done.rows.values()
        }
        if heading:
            lines += _sections(heading, done, sweep.baseline)
            for row in done.rows.values():
                epsilon = dict(row.cell.point).get("privacy.epsilon", 8.0)
                if epsilon in (2.0, 8.0) and "Dirichlet" not in heading:
                    panels.setdefault(f"{heading}, ε = {epsilon:g}", []).append(row)
        else:
            _write(
                results / "jme-adam.md",
                "<!-- by simulations/benchmarks/report.py -->",
                ["", *_optimizers(done)],
            )
    told = "; ".join(f"{name} {runs} runs, {hours:.2f} h" for name, (runs, hours) in cost.items())
    lines += [
        "",
        "## Cost",
        "",
        f"Runs, tuning included, and hours of a processor: {told}. {options.hardware}.",
    ]
    _write(results / "benchmark.md", "<!-- by simulations/benchmarks/report.py -->", lines)
    (results / "benchmark.json").write_text(
        json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    _picture(results / "benchmark.png", panels)


if __name__ == "__main__":
    main()
