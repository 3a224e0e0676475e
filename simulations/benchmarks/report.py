"""Page, numbers and picture of the benchmark on real data, from finished runs of its sweeps.

    fedmf sweep configs/benchmarks/fashion-mnist.toml --out sweeps/fashion-mnist    # and the others
    python simulations/benchmarks/report.py sweeps --hardware "16 cores of a Xeon"
    python simulations/benchmarks/report.py                 # the pictures again, from docs/results

A sweep that was stopped is reported with the seeds that are there. Verdicts are computed from paired 95 %
intervals alone.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from fedmf.figures import COLOURS, new_figure, style
from fedmf.sweeps import Cell, Sweep, mean_interval

_ROOT: Final = Path(__file__).parents[2]
#: Of a table: ε, mechanism, mean and range.
_CELL: Final = re.compile(r"^\| (\d+) \| ([^|]+) \| \S+ \| ([\d.]+) \(([\d.]+)–([\d.]+)\)", re.MULTILINE)
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
        self.seconds: dict[str, float] = {}
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
            digest = self._sweep.planned(cell, tuned, seed).digest
            if kept := self._kept.get(digest):
                value = kept["metrics"][-1].get(kept["columns"][self._sweep.metric]["column"])
                found[seed] = -1.0 if value is None or math.isnan(value) else value
                self.seconds[digest] = kept.get("seconds", 0.0)
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


def _dots(path: Path, found: Mapping[str, Mapping[float, Sequence[float]]], xlabel: str) -> None:
    """Accuracy in percent (estimate, lower and upper end) by mechanism and ε, the best at the top."""
    rows = {name: by_epsilon for name, by_epsilon in found.items() if name != "no noise"}
    epsilons = sorted({epsilon for by_epsilon in rows.values() for epsilon in by_epsilon})
    order = sorted(rows, key=lambda name: fmean(mean for mean, *_ in rows[name].values()))
    figure = new_figure(6, 0.36 * len(rows) + 1.5)
    axes = figure.subplots()
    for at, epsilon in enumerate(epsilons):
        marks = {"color": COLOURS[at], "fmt": "osD^v"[at % 5], "markersize": 7, "capsize": 3}
        for y, name in enumerate(order):
            if epsilon in rows[name]:
                mean, low, high = rows[name][epsilon]
                face = {"markerfacecolor": "white"} if "amplified" in name else {}
                axes.errorbar(mean, y, xerr=[[mean - low], [high - mean]], **marks, **face)
        axes.errorbar([], [], label=f"ε = {epsilon:g}", **marks)
    if any("amplified" in name for name in rows):
        axes.errorbar([], [], fmt="o", color="0.3", markerfacecolor="white", label="hollow: amplified")
    if "no noise" in found:
        mean = fmean(mean for mean, *_ in found["no noise"].values())
        axes.axvline(mean, color="black", linestyle="--")
        place = {"xytext": (-4, 4), "textcoords": "offset points", "ha": "right"}
        axes.annotate(f"without noise {mean:.1f}", (mean, len(rows) - 0.6), **place)
    axes.set_yticks(range(len(rows)), order)
    axes.set_ylim(-0.6, len(rows) + 0.1)
    style(axes, xlabel=xlabel)
    figure.legend(loc="outside upper center", ncols=len(epsilons) + 1, frameon=False, handletextpad=0.3)
    figure.savefig(path, dpi=170)


def _draw(results: Path) -> None:
    """The pictures, from what is committed."""
    words = {"Sgd": "SGD with momentum", "independent": "independent noise"}
    found: dict[str, dict[float, Sequence[float]]] = {}

    def put(name: str, epsilon: str, ends: Sequence[float]) -> None:
        for sampling in ("Poisson", "Balls-in-Bins"):
            name = name.replace(f", {sampling}", f", amplified ({sampling})")
        found.setdefault(words.get(name, name), {})[float(epsilon)] = ends

    kept = json.loads((results / "benchmark.json").read_text(encoding="utf-8"))["fashion-mnist"]
    for key, row in kept.items():
        name, epsilon = key.split(", privacy.epsilon=")
        put(name, epsilon, [100 * end for end in mean_interval([*row["values"].values()])[:3]])
    _dots(results / "benchmark.png", found, "test accuracy (%), mean and 95 % interval")
    for page in ("jme-adam", "compare_mechanisms"):
        found.clear()
        for epsilon, name, *ends in _CELL.findall((results / f"{page}.md").read_text(encoding="utf-8")):
            put(name, epsilon, [float(end) for end in ends])
        _dots(results / f"{page}.png", found, "test accuracy (%), mean and range of ten seeds")


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
    parser.add_argument("sweeps", nargs="?", type=Path, help="folder with the folders of the sweeps")
    parser.add_argument("--hardware", default="", help="what they ran on, for the page")
    options = parser.parse_args()
    results = _ROOT / "docs" / "results"
    if options.sweeps:
        _report(options.sweeps, options.hardware, results)
    _draw(results)


def _report(sweeps: Path, hardware: str, results: Path) -> None:
    """Page and numbers."""
    lines, kept = list[str](), dict[str, Any]()
    cost: dict[str, tuple[int, float]] = {}
    for folder, config, keys, heading in (*_SWEEPS, ("jme-adam", "jme-adam", {}, "")):
        if not (sweeps / folder).is_dir():
            continue
        sweep = Sweep.from_config(_ROOT / "configs" / "benchmarks" / f"{config}.toml", keys)
        done = Finished(sweeps / folder, sweep)
        cost[folder] = len(done.seconds), sum(done.seconds.values()) / 3600
        kept[folder] = {
            str(row.cell): {"η": row.rate, "values": row.values, "tuning": row.tuning}
            for row in done.rows.values()
        }
        if heading:
            lines += _sections(heading, done, sweep.baseline)
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
        f"Runs, tuning included, and hours of a processor: {told}. {hardware}.",
    ]
    _write(results / "benchmark.md", "<!-- by simulations/benchmarks/report.py -->", lines)
    (results / "benchmark.json").write_text(
        json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
