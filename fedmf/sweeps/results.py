"""What a sweep found: each cell's values by seed, its interval, and its comparison with the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from fedmf.accounting import UserLevel, at_least, gaussian_epsilon, gaussian_sigma
from fedmf.errors import ConfigError
from fedmf.runs import Scalar
from fedmf.sweeps.sweep import Cell, Sweep


@dataclass(frozen=True)
class Interval:
    """An estimate from independent values and an interval that covers what it estimates.

    Attributes:
        estimate: NaN where there is no value.
        low: end of the interval; −∞, or 0 for a ratio, where there is one value only.
        high: likewise.
        count: m, how many values.
    """

    estimate: float
    low: float
    high: float
    count: int


def mean_interval(values: Sequence[float], confidence: float) -> Interval:
    """x̄ ± t_{m−1}·s/√m.

    Args:
        values: x_1 … x_m, independent; the interval is exact where they are normal.
        confidence: probability of covering the mean.

    >>> mean_interval([1.0, 2.0, 3.0], 0.95)
    Interval(estimate=2.0, low=-0.48..., high=4.48..., count=3)
    """
    from scipy import stats

    x, m = np.asarray(values, dtype=np.float64), len(values)
    if m == 0 or not np.isfinite(x).all():
        return Interval(math.nan, math.nan, math.nan, m)
    mean = float(x.mean())
    if m == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = float(stats.t.ppf((1 + confidence) / 2, m - 1) * x.std(ddof=1) / math.sqrt(m))
    return Interval(mean, mean - half, mean + half, m)


def paired_interval(
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    compare: Literal["difference", "ratio"],
    confidence: float,
) -> Interval:
    """The mean difference by seed, or the geometric mean of the ratios.

    A ratio is exp of the mean log ratio, its interval exp of that of the logs.

    Args:
        values: by seed.
        baseline: by seed; seeds that both have are paired.
        compare: which.
        confidence: of the interval.

    >>> paired_interval({0: 2.0, 1: 8.0}, {0: 1.0, 1: 4.0, 2: 9.0}, "ratio", 0.95).estimate
    2.0
    """
    seeds = [seed for seed in values if seed in baseline]
    if compare == "difference":
        return mean_interval([values[seed] - baseline[seed] for seed in seeds], confidence)
    if any(not (values[seed] > 0 and baseline[seed] > 0) for seed in seeds):
        return Interval(math.nan, math.nan, math.nan, len(seeds))
    found = mean_interval([math.log(values[seed] / baseline[seed]) for seed in seeds], confidence)
    return Interval(_exp(found.estimate), _exp(found.low), _exp(found.high), found.count)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


@dataclass(frozen=True)
class MetricColumn:
    """The metric that a sweep compares.

    Attributes:
        name: as people call it.
        column: of the runs' metrics.
        higher_is_better: which way is better.
        is_share: whether people read it in percent.
    """

    name: str
    column: str
    higher_is_better: bool
    is_share: bool

    def final(self, metrics: Mapping[int, Mapping[str, Any]], last: int) -> float:
        """Its mean over the last evaluations of a run."""
        values = [row[self.column] for _, row in sorted(metrics.items()) if row.get(self.column) is not None]
        if not values:
            raise ConfigError(f"metric {self.name!r} must be evaluated at least once; a run never did.")
        return fmean(values[-last:])

    def shown(self, value: float, sign: str = "") -> str:
        """A value for people, shares in percent."""
        return f"{100 * value:{sign}.1f}" if self.is_share else f"{value:{sign}.4g}"

    @property
    def label(self) -> str:
        """With its unit."""
        return self.name.replace("_", " ") + (" (%)" if self.is_share else "")


def metric_column(name: str, kept: Mapping[str, Any]) -> MetricColumn:
    """The metric of this name in what is kept of a run; the first one if there is no name.

    Raises:
        ConfigError: the run has no such metric.
    """
    columns = kept["columns"]
    if name and name not in columns:
        raise ConfigError(f"metric (of the sweep) must be one of {', '.join(columns)}; got {name!r}.")
    chosen = name or next(iter(columns))
    return MetricColumn(chosen, **columns[chosen])


@dataclass(frozen=True)
class CellResult:
    """One cell: what was chosen for it and what it gave.

    Attributes:
        cell: which.
        tuned: the chosen values; None if every candidate failed.
        values: the metric by reported seed, of the runs that did not fail.
        runs: digests of the reported runs by seed.
        tuning: mean metric over the tuning seeds by candidate; NaN where a run failed.
        tuning_runs: number of the candidate and seed of each tuning run, by digest.
    """

    cell: Cell
    tuned: Mapping[str, Scalar] | None
    values: Mapping[int, float]
    runs: Mapping[int, str]
    tuning: tuple[float, ...]
    tuning_runs: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class SweepResult:
    """A finished sweep.

    Attributes:
        path: its directory.
        sweep: what was asked for.
        metric: that is compared.
        cells: in the order of the sweep.
        failures: a line for each run that failed.
        seconds: that this process took.
    """

    path: Path
    sweep: Sweep
    metric: MetricColumn
    cells: tuple[CellResult, ...]
    failures: tuple[str, ...]
    seconds: float

    def interval(self, result: CellResult) -> Interval:
        """The mean over the reported seeds."""
        return mean_interval([*result.values.values()], self.sweep.confidence)

    def against_baseline(self, result: CellResult) -> Interval | None:
        """Compared with the baseline at the same point, paired by seed; None for the baseline itself."""
        if result.cell.variant == self.sweep.baseline:
            return None
        baseline = Cell(self.sweep.baseline, result.cell.point)
        other = next(found for found in self.cells if found.cell == baseline)
        return paired_interval(result.values, other.values, self.sweep.compare, self.sweep.confidence)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Chosen values at the edge of their lists, and cells with missing seeds, in a line each."""
        lines = []
        for result in self.cells:
            for name, value in (result.tuned or {}).items():
                values = self.sweep.tuned[name]
                numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
                if len(numbers) < max(2, len(values)) or value not in (min(numbers), max(numbers)):
                    continue
                end = "smallest" if value == min(numbers) else "largest"
                lines.append(
                    f"{result.cell}: {name} = {value:g} is the {end} of its list; a better one may lie beyond"
                )
            if result.tuned is None:
                lines.append(f"{result.cell}: nothing chosen, since every candidate has a failed run")
            elif missing := [seed for seed in self.sweep.seeds if seed not in result.values]:
                lines.append(f"{result.cell}: without seeds {missing}, whose runs failed")
        return tuple(lines)


def privacy_together(sweep: Sweep) -> str:
    """What all runs cost one user, by Gaussian composition of the most that each may promise."""
    runs = [[one for one in run if isinstance(one, UserLevel)] for run in sweep.promises]
    noised = [run for run, asked in zip(runs, sweep.promises, strict=True) if len(run) == len(asked)]
    if len(noised) < len(runs):
        return f"none: {len(runs) - len(noised)} of {len(runs)} runs add no noise."
    if any(one.amplified for run in noised for one in run):
        return f"the epsilons and deltas of the {len(runs)} runs add up, as some are amplified."
    delta = min(one.delta for run in noised for one in run)
    mu = math.hypot(*(1 / min(gaussian_sigma(one.epsilon, one.delta) for one in run) for run in noised))
    text = (
        f"({at_least(gaussian_epsilon((1 - 1e-9) / mu, delta))}, {at_least(delta)}) for all {len(runs)} runs"
    )
    if any(one.noise_seed is not None for run in noised for one in run):
        text += " with secret keys; their noise comes from public seeds, which protects nobody"
    return f"{text}."
