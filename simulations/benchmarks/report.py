"""Tables, numbers and pictures of the benchmark on real data, from finished runs of its sweeps.

    fedmf sweep configs/benchmarks/fashion-mnist.toml --out sweeps/fashion-mnist    # and the others
    python simulations/benchmarks/report.py sweeps          # and how long they took
    python simulations/benchmarks/report.py                 # tables and pictures again, from
    docs/results

A sweep that was stopped is reported with the seeds that are there.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from fedmf.figures import COLORS, new_figure, style
from fedmf.sweeps import Cell, Sweep, mean_interval

_ROOT: Final = Path(__file__).parents[2]
#: Of a table: ε, mechanism, mean and range.
_CELL: Final = re.compile(
    r"^\| (\d+) \| ([^|]+) \| \S+ \| ([\d.]+) \(([\d.]+)–([\d.]+)\)", re.MULTILINE
)
_DIRICHLET: Final = {"data.partition": "dirichlet", "data.dirichlet-alpha": 0.1}
#: Folder of finished runs, configuration and what is set over it.
_SWEEPS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("fashion-mnist", "fashion-mnist", {}),
    ("fashion-mnist-dirichlet", "fashion-mnist", _DIRICHLET),
    ("fashion-mnist-cnn", "fashion-mnist-cnn", {}),
    ("shakespeare", "shakespeare", {}),
    ("jme-adam", "jme-adam", {}),
)
#: Tables of the page by heading: head, sweep and point of each column.
_TABLES: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "Fashion-MNIST, MLP": tuple((f"ε = {at}", "fashion-mnist", at) for at in ("1", "2", "4", "8")),
    "Other settings, ε = 8": (
        ("Fashion-MNIST, MLP, Dirichlet 0.1", "fashion-mnist-dirichlet", "8"),
        ("Fashion-MNIST, CNN", "fashion-mnist-cnn", ""),
        ("Shakespeare, LSTM", "shakespeare", ""),
    ),
}
_BASELINE = "independent, Poisson"
_BEGIN = "<!-- by simulations/benchmarks/report.py -->"


@dataclass(frozen=True)
class Row:
    """A cell as far as it was run: its values by seed, the tuned rate, and the score of each
    candidate.
    """

    values: Mapping[str, float]
    rate: float
    tuning: Mapping[float, float]

    def over(self, other: Row) -> list[float]:
        """Estimate and 95 % interval of the difference, paired by seed."""
        return [
            *mean_interval(
                [
                    self.values[seed] - other.values[seed]
                    for seed in self.values
                    if seed in other.values
                ]
            )
        ][:3]

    @property
    def edge(self) -> str:
        """An asterisk where the chosen rate ends those that were tried."""
        return "*" * (self.rate in (min(self.tuning), max(self.tuning)))


Rows = Mapping[tuple[str, str], Row]


def _rows(kept: Mapping[str, Any]) -> dict[tuple[str, str], Row]:
    """By mechanism and point of the grid: its ε and what follows it."""
    found = {}
    for key, row in kept.items():
        variant, _, point = key.partition(", privacy.epsilon=")
        tuning = {float(rate): score for rate, score in row["tuning"].items()}
        found[variant, point] = Row(row["values"], row["η"], tuning)
    return found


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
        made = {str(cell): self._row(cell) for cell in sweep.cells}
        self.rows = {cell: row for cell, row in made.items() if row and row["values"]}

    def _row(self, cell: Cell) -> dict[str, Any] | None:
        sweep = self._sweep
        scores = dict[float, float]()
        for tuned in sweep.candidates:
            values = self._values(cell, tuned, sweep.tuning_seeds)
            if len(values) == len(sweep.tuning_seeds):
                scores[float(tuned[self._name])] = fmean(values.values())
        if len(scores) < 3:
            return None
        rate = max(scores, key=scores.__getitem__)
        return {
            "η": rate,
            "values": self._values(cell, {self._name: rate}, sweep.seeds),
            "tuning": scores,
        }

    def _values(
        self, cell: Cell, tuned: Mapping[str, Any], seeds: Sequence[int]
    ) -> dict[int, float]:
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


def _table(heading: str, kept: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Accuracy of each mechanism and its difference from the baseline, a column for each
    setting.
    """
    columns = [(_rows(kept[folder]), point) for _, folder, point in _TABLES[heading]]
    heads = ["mechanism", *(head for head, *_ in _TABLES[heading]), "η"]
    lines = ["", f"## {heading}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in dict.fromkeys(
        variant for rows, at in columns for variant, point in rows if point == at
    ):
        entries = [name]
        rates = []
        for rows, point in columns:
            row = rows.get((name, point))
            base = rows[_BASELINE, point]
            if row is None:
                entries.append("")
                continue
            rates.append(f"{row.rate:g}{row.edge}")
            difference = "" if row is base else ", " + _interval(row.over(base))
            entries.append(_percent([fmean(row.values.values())])[0] + difference)
        lines.append(f"| {' | '.join([*entries, ', '.join(rates)])} |")
    return lines


def _dots(path: Path, found: Mapping[str, Mapping[float, Sequence[float]]], xlabel: str) -> None:
    """Accuracy in percent (estimate, lower and upper end) by mechanism and ε, the best at the
    top.
    """
    rows = {name: by_epsilon for name, by_epsilon in found.items() if name != "no noise"}
    epsilons = sorted({epsilon for by_epsilon in rows.values() for epsilon in by_epsilon})
    order = sorted(rows, key=lambda name: fmean(mean for mean, *_ in rows[name].values()))
    figure = new_figure(6, 0.36 * len(rows) + 1.5)
    axes = figure.subplots()
    for at, epsilon in enumerate(epsilons):
        marks = {"color": COLORS[at], "fmt": "osD^v"[at % 5], "markersize": 7, "capsize": 3}
        for y, name in enumerate(order):
            if epsilon in rows[name]:
                mean, low, high = rows[name][epsilon]
                face = {"markerfacecolor": "white"} if "amplified" in name else {}
                axes.errorbar(mean, y, xerr=[[mean - low], [high - mean]], **marks, **face)
        axes.errorbar([], [], label=f"ε = {epsilon:g}", **marks)
    if any("amplified" in name for name in rows):
        axes.errorbar(
            [], [], fmt="o", color="0.3", markerfacecolor="white", label="hollow: amplified"
        )
    if "no noise" in found:
        mean = fmean(mean for mean, *_ in found["no noise"].values())
        axes.axvline(mean, color="black", linestyle="--")
        place = {"xytext": (-4, 4), "textcoords": "offset points", "ha": "right"}
        axes.annotate(f"without noise {mean:.1f}", (mean, len(rows) - 0.6), **place)
    axes.set_yticks(range(len(rows)), order)
    axes.set_ylim(-0.6, len(rows) + 0.1)
    style(axes, xlabel=xlabel)
    figure.legend(
        loc="outside upper center", ncols=len(epsilons) + 1, frameon=False, handletextpad=0.3
    )
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
        for epsilon, name, *ends in _CELL.findall(
            (results / f"{page}.md").read_text(encoding="utf-8")
        ):
            put(name, epsilon, [float(end) for end in ends])
        _dots(results / f"{page}.png", found, "test accuracy (%), mean and range of ten seeds")


def _optimizers(kept: Mapping[str, Any]) -> list[str]:
    """Accuracies by ε, adjacency and model, and JME-Adam against the debiased rule and against
    SGD.
    """
    rows = _rows(kept)
    variants = list(dict.fromkeys(variant for variant, _ in rows))
    pairs = [
        ("JME-Adam", "Adam, debiased"),
        ("JME-Adam, by tensor", "Adam, debiased, by tensor"),
        ("JME-Adam", "SGD"),
    ]
    head = ["ε, adjacency, model", *variants, *(f"{a} − {b}" for a, b in pairs)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    count = {pair: Counter[str]() for pair in pairs}
    for point in dict.fromkeys(point for _, point in rows):
        at = {name: rows[name, point] for name in variants}
        entries = [re.sub(r"[\w.]+=", "", point)]
        entries += [_percent([fmean(row.values.values())])[0] + row.edge for row in at.values()]
        for first, second in pairs:
            difference = at[first].over(at[second])
            entries.append(_interval(difference))
            count[first, second][_verdict(*difference[1:])] += 1
        lines.append(f"| {' | '.join(entries)} |")
    lines.append("")
    for (a, b), words in count.items():
        told = ", ".join(f"{word} in {words[word]}" for word in ("ahead", "undecided", "behind"))
        lines.append(f"* {a} over {b}: {told}")
    return ["", *lines]


def _write(path: Path, lines: Sequence[str]) -> None:
    """Replace what stands behind a line of a page, which says by hand what comes before."""
    before, _, _ = path.read_text(encoding="utf-8").partition(_BEGIN)
    path.write_text(before + _BEGIN + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sweeps", nargs="?", type=Path, help="folder with the folders of the sweeps"
    )
    options = parser.parse_args()
    results = _ROOT / "docs" / "results"
    numbers = results / "benchmark.json"
    kept = json.loads(numbers.read_text(encoding="utf-8"))
    if options.sweeps:
        kept |= _finished(options.sweeps)
        numbers.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        kept = json.loads(numbers.read_text(encoding="utf-8"))
    _write(
        results / "benchmark.md", [line for heading in _TABLES for line in _table(heading, kept)]
    )
    _write(results / "jme-adam.md", _optimizers(kept["jme-adam"]))
    _draw(results)


def _finished(sweeps: Path) -> dict[str, Any]:
    """What was run of each sweep; prints how long it took."""
    kept = {}
    for folder, config, keys in _SWEEPS:
        if (sweeps / folder).is_dir():
            sweep = Sweep.from_config(_ROOT / "configs" / "benchmarks" / f"{config}.toml", keys)
            done = Finished(sweeps / folder, sweep)
            kept[folder] = done.rows
            print(f"{folder}: {len(done.seconds)} runs, {sum(done.seconds.values()) / 3600:.2f} h")
    return kept


if __name__ == "__main__":
    main()
