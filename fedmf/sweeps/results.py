"""What a sweep found: each cell's values by seed, its interval, and its comparison with the
baseline.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from fedmf.accounting.gaussian import gaussian_epsilon, gaussian_sigma
from fedmf.accounting.rounding import at_least
from fedmf.figures import COLOURS, new_figure, style
from fedmf.ledger.durable_files import write_durably
from fedmf.statements.privacy import UserLevel
from fedmf.sweeps.sweep import Cell, Sweep, described

_CONFIDENCE: Final = 0.95


class Interval(NamedTuple):
    """An estimate from so many independent values, and an interval that covers what it
    estimates.
    """

    estimate: float
    low: float
    high: float
    size: int


def mean_interval(values: Sequence[float]) -> Interval:
    """x̄ ± t_{m−1}·s/√m of x_1 … x_m, the 95 % interval; infinite for one value, NaN for none.

    >>> mean_interval([1.0, 2.0, 3.0])
    Interval(estimate=2.0, low=-0.48..., high=4.48..., size=3)
    """
    from scipy import stats

    x = np.asarray(values, dtype=np.float64)
    mean, reach = (float(x.mean()), math.inf) if x.size else (math.nan, math.nan)
    if x.size > 1:
        with np.errstate(invalid="ignore"):  # of runs that diverged
            reach = float(stats.t.ppf((1 + _CONFIDENCE) / 2, x.size - 1) * stats.sem(x))
    return Interval(mean, mean - reach, mean + reach, x.size)


@dataclass(frozen=True)
class MetricColumn:
    """The metric that a sweep compares: its name and column, and how people read it."""

    name: str
    column: str
    higher_is_better: bool = False
    is_share: bool = False

    @property
    def scale(self) -> float:
        """From the column to what people read: shares in percent."""
        return 100.0 if self.is_share else 1.0

    @property
    def label(self) -> str:
        """With its unit."""
        return self.column.replace("_", " ") + (" (%)" if self.is_share else "")

    def shown(self, value: float, sign: str = "") -> str:
        """A value for people."""
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        return f"{self.scale * value:{sign}{'.1f' if self.is_share else '.4g'}}"


@dataclass(frozen=True, eq=False)
class SweepResult:
    """A finished sweep.

    Attributes:
        path: its directory.
        sweep: what was asked for.
        metric: that is compared.
        runs: a row for each run of each cell: variant, keys, part ("tuning" or "reported"), seed,
            digest, and its metric as ``value``, NaN where it failed.
        failures: a line for each run that failed.
    """

    path: Path
    sweep: Sweep
    metric: MetricColumn
    runs: pd.DataFrame
    failures: tuple[str, ...]

    def _reported(self, cell: Cell) -> pd.DataFrame:
        return self.runs.loc[(self.runs["cell"] == str(cell)) & (self.runs["part"] == "reported")]

    def values(self, cell: Cell) -> dict[int, float]:
        """The metric of a cell by reported seed, of the runs that did not fail."""
        return self._reported(cell).dropna(subset="value").set_index("seed")["value"].to_dict()

    def tuned(self, cell: Cell) -> dict[str, Any]:
        """What was chosen for a cell."""
        return self._reported(cell).iloc[0].reindex([*self.sweep.tuned]).dropna().to_dict()

    def interval(self, cell: Cell) -> Interval:
        """The mean over the reported seeds."""
        return mean_interval([*self.values(cell).values()])

    def against_baseline(self, cell: Cell) -> Interval | None:
        """The mean difference from the baseline at the same point, by seed; None for the baseline
        itself.
        """
        if cell.variant == self.sweep.baseline:
            return None
        mine = self.values(cell)
        baseline = self.values(Cell(self.sweep.baseline, cell.point))
        return mean_interval([mine[seed] - baseline[seed] for seed in mine if seed in baseline])

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each cell as people read it: point, variant, tuned values, metric, comparison,
        seeds.
        """
        rows = []
        show = self.metric.shown
        for cell in self.sweep.cells:
            values = [*self.values(cell).values()]
            against = self.against_baseline(cell)
            tuned = {**dict.fromkeys(self.sweep.tuned, ""), **self.tuned(cell)}
            row = {
                **dict(cell.point),
                "variant": cell.variant,
                **tuned,
                self.metric.label: "failed",
            }
            if values:
                ends = f"({show(min(values))}–{show(max(values))})"
                row[self.metric.label] = f"{show(self.interval(cell).estimate)} {ends}"
            if len(self.sweep.variants) > 1:
                ends = [show(end, "+") for end in against[:3]] if against and against.size else []
                name = f"− {self.sweep.baseline}, paired, {100 * _CONFIDENCE:g} %"
                row[name] = f"{ends[0]} [{ends[1]}, {ends[2]}]" if ends else ""
            rows.append({name: f"{v:g}" if type(v) is float else str(v) for name, v in row.items()})
            rows[-1]["seeds"] = str(len(values))
        return pd.DataFrame(rows)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """A metric that no ε covers, chosen values at the edge of their lists, cells with missing
        seeds.
        """
        said = f"{self.metric.label} is of users' own rows: no epsilon covers it, nor what it chose"
        lines = [said] * (self.metric.column != self.metric.name)
        for cell in self.sweep.cells:
            for name, value in self.tuned(cell).items():
                numbers = [x for x in self.sweep.tuned[name] if isinstance(x, int | float)]
                if len(numbers) > 1 and value in (min(numbers), max(numbers)):
                    lines.append(
                        f"{cell}: {name} = {value:g} ends its list; a better one may lie beyond"
                    )
            if missing := [seed for seed in self.sweep.seeds if seed not in self.values(cell)]:
                lines.append(f"{cell}: without seeds {missing}: their runs failed")
        return tuple(lines)

    def text(self) -> str:
        """The table as GitHub reads it, then warnings, failures, and what all runs cost one
        user.
        """
        lines = [
            [*self.table.columns],
            ["---"] * len(self.table.columns),
            *self.table.to_numpy().tolist(),
        ]
        cells = [[str(entry).replace("|", "\\|") for entry in line] for line in lines]
        rows = "".join(f"| {' | '.join(line)} |\n" for line in cells)
        notes = [
            f"note: {line}"
            for line in (*self.warnings, *(f"failed: {one}" for one in self.failures))
        ]
        notes.append(f"Privacy of the whole sweep, tuning included: {privacy_together(self.sweep)}")
        return "\n".join([rows, *notes, ""])

    def write(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the table, evaluations and the picture into the sweep's directory.

        Args:
            kept: of each run, by digest.
        """
        write_durably(self.path / "table.md", self.text().encode())
        if kept:
            rows = [
                {"run": digest, **row} for digest, one in kept.items() for row in one["metrics"]
            ]
            every = self.runs.drop(columns="value").merge(pd.DataFrame(rows), on="run")
            every.to_parquet(parquet := io.BytesIO(), index=False)
            write_durably(self.path / "runs.parquet", parquet.getvalue())
        if picture := self.picture():
            write_durably(self.path / "comparison.png", picture)

    def picture(self) -> bytes:
        """Means and intervals of all cells along the first key of the grid, or of the variants, as
        PNG.

        Empty where matplotlib (the extra ``report``) is not installed.
        """
        try:
            figure = new_figure(7, 4)
        except ImportError:
            return b""
        axes = figure.subplots()
        lines = dict[str, list[Cell]]()
        key = next(iter(self.sweep.grid), "")
        for cell in self.sweep.cells:
            name = ", ".join(filter(None, (cell.variant, described(dict(cell.point[1:])))))
            lines.setdefault(name, []).append(cell)
        for at, (name, cells) in enumerate(lines.items()):
            means = [self.interval(cell) for cell in cells]
            scale = self.metric.scale
            xs = [i + 0.03 * at for i in range(len(cells))] if key else [at]
            reach = [scale * (one.high - one.estimate) if one.size > 1 else 0.0 for one in means]
            marks = {
                "marker": "osD^vPX*"[at % 8],
                "capsize": 3,
                "color": COLOURS[at % len(COLOURS)],
            }
            # What the key does not change, such as a run without noise along ε, is a level to
            # compare with.
            marks["linestyle"] = "--" if len({one.estimate for one in means}) == 1 else "-"
            axes.errorbar(
                xs, [scale * one.estimate for one in means], yerr=reach, label=name, **marks
            )
        ticks = self.sweep.grid.get(key) or lines
        slant: dict[str, Any] = {} if key else {"rotation": 25, "ha": "right"}
        axes.set_xticks(
            range(len(ticks)), [str(tick).removesuffix(".0") for tick in ticks], **slant
        )
        label = "privacy loss ε" if key == "privacy.epsilon" else key
        style(
            axes,
            xlabel=label,
            ylabel=f"{self.metric.label}, mean and {100 * _CONFIDENCE:g} % interval",
        )
        if len(lines) > 1 and key:
            figure.legend(loc="outside right upper", fontsize=9, frameon=False)
        figure.savefig(buffer := io.BytesIO(), format="png", dpi=150)
        return buffer.getvalue()


def privacy_together(sweep: Sweep) -> str:
    """The ε that all runs together would have for one user with secret keys, by Gaussian
    composition of the largest ε of each.
    """
    runs = sweep.promises
    count = len(sweep.promises)
    noiseless = sum(not all(isinstance(one, UserLevel) for one in run) for run in runs)
    if noiseless:
        return f"none: {noiseless} of {count} runs add no noise."
    asked = [[one for one in run if isinstance(one, UserLevel)] for run in runs]
    every = [one for run in asked for one in run]
    seeded = (
        "; the noise of a sweep comes from public seeds, which give no privacy on private data."
    )
    if any(one.amplified for one in every):
        return f"the epsilons and deltas of the {count} runs add up, as some are amplified{seeded}"
    delta = min(one.delta for one in every)
    mu = math.hypot(
        *(1 / min(gaussian_sigma(one.epsilon, one.delta) for one in run) for run in asked)
    )
    epsilon = gaussian_epsilon((1 - 1e-9) / mu, delta)
    return f"({at_least(epsilon)}, {at_least(delta)}) for all {count} runs with secret keys{seeded}"
