"""The result of a sweep, as tables, pictures and a file of all evaluations.

Each cell has its metric by seed, a confidence interval, and a comparison with the baseline.
`run_sweep` makes a `SweepResult` of the finished runs and writes it into the sweep's directory.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedmf.accounting.gaussian import gaussian_epsilon, gaussian_sigma
from fedmf.accounting.rounding import at_least
from fedmf.figures import html_table
from fedmf.ledger.durable_files import write_durably
from fedmf.matrices.arrays import Vector
from fedmf.statements.privacy import UserLevel
from fedmf.sweeps.latex import latex_table
from fedmf.sweeps.sweep import Cell, Sweep, key_label, shown_value

_CONFIDENCE: Final = 0.95
#: In place of an interval that says nothing about other seeds.
_ALL_EQUAL: Final = "(all equal)"


class Interval(NamedTuple):
    """An estimate from independent values, how many they are, and a confidence interval."""

    estimate: float
    low: float
    high: float
    size: int

    @property
    def half_width(self) -> float:
        """Length of an error bar: half of the interval's width, and 0 for less than two values."""
        if self.size < 2:
            return 0.0
        return self.high - self.estimate


def mean_interval(values: Sequence[float]) -> Interval:
    """x̄ ± t_{m−1}·s/√m of x_1 … x_m, the 95 % interval; infinite for one value, NaN for none.

    >>> mean_interval([1.0, 2.0, 3.0])
    Interval(estimate=2.0, low=-0.48..., high=4.48..., size=3)
    """
    from scipy import stats

    x = np.asarray(values, dtype=np.float64)
    if not x.size:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(x.mean())
    reach = math.inf
    if x.size > 1:
        with np.errstate(invalid="ignore"):  # runs that diverged
            reach = float(stats.t.ppf((1 + _CONFIDENCE) / 2, x.size - 1) * stats.sem(x))
    return Interval(mean, mean - reach, mean + reach, x.size)


@dataclass(frozen=True)
class MetricColumn:
    """The metric that a sweep compares: its name, its column, and how it is shown."""

    name: str
    column: str
    higher_is_better: bool = False
    is_share: bool = False

    @property
    def scale(self) -> float:
        """Factor from the column to the shown value: shares are shown in percent."""
        return 100.0 if self.is_share else 1.0

    @property
    def label(self) -> str:
        """The column in words, with its unit."""
        words = self.column.replace("_", " ")
        return f"{words} (%)" if self.is_share else words

    def among(self, values: ArrayLike) -> MetricColumn:
        """The column as it is shown among these values: not in percent if one is no share."""
        numbers = np.asarray(values, dtype=np.float64)
        if ((numbers < 0) | (numbers > 1)).any():
            return replace(self, is_share=False)
        return self

    def within_range(self, values: ArrayLike) -> Vector:
        """Shown values, cut to 0 to 100 if they are percentages."""
        if self.is_share:
            return np.clip(values, 0.0, 100.0)
        return np.asarray(values)

    def shown(self, value: float, sign: str = "") -> str:
        """A value as the table shows it."""
        if value == math.inf:
            return "∞"
        if value == -math.inf:
            return "−∞"
        digits = ".1f" if self.is_share else ".4g"
        text = f"{self.scale * value:{sign}{digits}}"
        if text.startswith("-"):
            return f"−{text[1:]}"
        return text


@dataclass(frozen=True, eq=False)
class SweepResult:
    """A finished sweep.

    Attributes:
        path: its directory.
        sweep: the configurations that were compared.
        metric: the metric that is compared.
        runs: a row for each run of each cell: variant, keys, part ("tuning" or "reported"), seed,
            digest, and its metric as ``value``, NaN where it failed.
        failures: a line for each run that failed.
    """

    path: Path
    sweep: Sweep
    metric: MetricColumn
    runs: pd.DataFrame
    failures: tuple[str, ...]

    def __repr__(self) -> str:
        """The directory and the numbers of cells and runs in one line."""
        cells = len(self.sweep.cells)
        return f"SweepResult({str(self.path)!r}, {cells} cells, {len(self.runs)} runs)"

    def _repr_html_(self) -> str:
        notes = [("note", warning) for warning in self.warnings]
        notes += [("failed", failure) for failure in self.failures]
        table: str = self.table.to_html(index=False)
        return table + html_table([*notes, ("privacy", privacy_together(self.sweep))])

    def _reported(self, cell: Cell) -> pd.DataFrame:
        return self.runs.loc[(self.runs["cell"] == str(cell)) & (self.runs["part"] == "reported")]

    def values(self, cell: Cell) -> dict[int, float]:
        """The metric of a cell by reported seed, without the runs that failed."""
        return self._reported(cell).dropna(subset="value").set_index("seed")["value"].to_dict()

    def tuned(self, cell: Cell) -> dict[str, Any]:
        """The tuned values that were chosen for a cell."""
        return self._reported(cell).iloc[0].reindex([*self.sweep.tuned]).dropna().to_dict()

    def interval(self, cell: Cell) -> Interval:
        """The mean over the reported seeds."""
        return mean_interval(list(self.values(cell).values()))

    def against_baseline(self, cell: Cell) -> Interval | None:
        """The mean difference from the baseline at the same point, paired by seed.

        None for a cell of the baseline itself.
        """
        if cell.variant == self.sweep.baseline:
            return None
        baseline = self.values(Cell(self.sweep.baseline, cell.point))
        differences = []
        for seed, value in self.values(cell).items():
            if seed in baseline:
                differences.append(value - baseline[seed])
        return mean_interval(differences)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row of strings per cell: point, variant, tuned values, metric, comparison, seeds."""
        rows = []
        for cell in self.sweep.cells:
            row: dict[str, str] = {}
            for name, value in cell.point:
                row[name] = shown_value(value)
            row["variant"] = cell.variant
            chosen = self.tuned(cell)
            for name in self.sweep.tuned:
                row[name] = shown_value(chosen.get(name, ""))
            row[self.metric.label] = self.shown_metric(cell)
            if len(self.sweep.variants) > 1:
                row[f"− {self.sweep.baseline}"] = self._shown_comparison(cell)
            row["seeds"] = str(len(self.values(cell)))
            rows.append(row)
        return pd.DataFrame(rows)

    def shown_metric(self, cell: Cell) -> str:
        """The mean of a cell with its interval."""
        interval = self.interval(cell)
        if not interval.size:
            return "failed"
        return self._shown_interval(interval)

    def _shown_comparison(self, cell: Cell) -> str:
        """The difference from the baseline with its interval; empty if there is none."""
        difference = self.against_baseline(cell)
        if difference is None or not difference.size:
            return ""
        return self._shown_interval(difference, "+")

    def _shown_interval(self, interval: Interval, sign: str = "") -> str:
        """A mean and half the width of its interval, which one value does not have."""
        mean = self.metric.shown(interval.estimate, sign)
        if interval.size < 2:
            return mean
        if interval.half_width <= 1e-9 * abs(interval.estimate):
            return f"{mean} {_ALL_EQUAL}"
        return f"{mean} ± {self.metric.shown(interval.half_width)}"

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to distrust the table.

        These are a metric that no ε covers, chosen values at an end of their lists, and cells
        without some of the seeds.
        """
        lines = []
        if self.metric.column != self.metric.name:
            lines.append(
                f"{self.metric.label} is computed on users' own rows: no epsilon covers it, or the"
                " values that it chose"
            )
        lines.extend(self._at_ends())
        for cell in self.sweep.cells:
            values = self.values(cell)
            missing = [seed for seed in self.sweep.seeds if seed not in values]
            if missing:
                lines.append(f"{cell}: without seeds {missing}: their runs failed")
        return tuple(lines)

    def _at_ends(self) -> list[str]:
        """A note for each tuned key with values at an end of its list, which names their cells."""
        cells: dict[str, list[str]] = {}
        for cell in self.sweep.cells:
            for name, value in self.tuned(cell).items():
                if _ends_list(value, self.sweep.tuned[name]):
                    cells.setdefault(name, []).append(f"{cell} ({value:g})")
        lines = []
        for name, ending in cells.items():
            lines.append(
                f"{name} is at an end of its list in {len(ending)} of {len(self.sweep.cells)}"
                f" cells; better values may lie beyond: {', '.join(ending)}"
            )
        return lines

    def text(self) -> str:
        """The table in Markdown, then warnings, failures, and what all runs cost one user."""
        header = list(self.table.columns)
        rows = [header, ["---"] * len(header), *self.table.to_numpy().tolist()]
        lines = [_markdown_row(row) for row in rows]
        lines.append(f"\n{self._legend}\n\n")
        lines.extend(f"note: {warning}\n" for warning in self.warnings)
        lines.extend(f"note: failed: {failure}\n" for failure in self.failures)
        privacy = privacy_together(self.sweep)
        lines.append(f"Privacy of the whole sweep, tuning included: {privacy}\n")
        return "".join(lines)

    @property
    def _legend(self) -> str:
        """The meaning of the numbers in the tables."""
        text = f"Mean over the seeds ± {100 * _CONFIDENCE:g} % (Student)"
        if len(self.sweep.variants) > 1:
            text += f"; differences from {self.sweep.baseline} are paired by seed"
        if self.table.map(lambda entry: entry.endswith(_ALL_EQUAL)).to_numpy().any():
            text += f"; {_ALL_EQUAL}: every seed gave the same value"
        return f"{text}."

    def write(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the tables and the evaluations into the sweep's directory.

        Args:
            records: the record of each finished run, by digest.
        """
        write_durably(self.path / "table.md", self.text().encode())
        table = self.table.rename(columns=key_label)
        write_durably(self.path / "table.tex", latex_table(table, self._legend).encode())
        if records:
            write_durably(self.path / "runs.parquet", self._evaluations(records))

    def by_round(self, records: Mapping[str, Mapping[str, Any]]) -> dict[Cell, dict[int, Interval]]:
        """The mean over the reported seeds of each cell, by number of released rounds."""
        by_round = {}
        for cell in self.sweep.cells:
            values: dict[int, list[float]] = {}
            for digest in self._reported(cell)["run"]:
                for row in records.get(digest, {"metrics": []})["metrics"]:
                    value = row.get(self.metric.column)
                    if value is not None:
                        values.setdefault(row["round"], []).append(value)
            by_round[cell] = {t: mean_interval(values[t]) for t in sorted(values)}
        return by_round

    def _evaluations(self, records: Mapping[str, Mapping[str, Any]]) -> bytes:
        """Every evaluation of every run with its keys, as a Parquet file."""
        evaluations = []
        for digest, record in records.items():
            evaluations.extend({"run": digest, **metrics} for metrics in record["metrics"])
        runs = self.runs.drop(columns="value")
        buffer = io.BytesIO()
        runs.merge(pd.DataFrame(evaluations), on="run").to_parquet(buffer, index=False)
        return buffer.getvalue()


def _ends_list(value: object, candidates: Sequence[object]) -> bool:
    """Whether a chosen number is the smallest or the largest of several candidates."""
    numbers = [candidate for candidate in candidates if isinstance(candidate, int | float)]
    return len(numbers) > 1 and value in (min(numbers), max(numbers))


def _markdown_row(entries: Sequence[object]) -> str:
    """A row of a Markdown table."""
    cells = [str(entry).replace("|", "\\|") for entry in entries]
    return f"| {' | '.join(cells)} |\n"


def privacy_together(sweep: Sweep) -> str:
    """The ε of all runs together for one user, if their noise had come from secret keys.

    It is the Gaussian composition of the largest ε of each run.
    """
    runs: list[list[UserLevel]] = []
    for alternatives in sweep.promises:
        levels = [privacy for privacy in alternatives if isinstance(privacy, UserLevel)]
        if len(levels) == len(alternatives):
            runs.append(levels)
    count = len(sweep.promises)
    if len(runs) < count:
        return f"none: {count - len(runs)} of {count} runs add no noise."
    seeded = (
        "; the noise of a sweep comes from public seeds, which give no privacy on private data."
    )
    every = list(itertools.chain.from_iterable(runs))
    if any(level.amplified for level in every):
        return f"the epsilons and deltas of the {count} runs add up, as some are amplified{seeded}"
    losses = []
    for levels in runs:
        sigma = min(gaussian_sigma(level.epsilon, level.delta) for level in levels)
        losses.append(1 / sigma)
    mu = math.hypot(*losses)
    delta = min(level.delta for level in every)
    epsilon = gaussian_epsilon((1 - 1e-9) / mu, delta)
    return f"({at_least(epsilon)}, {at_least(delta)}) for all {count} runs with secret keys{seeded}"
