"""Means over seeds and comparisons paired by seed, with Student intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


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
