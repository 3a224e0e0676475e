"""Intervals against scipy's own tests, and their coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedmf.sweeps import mean_interval, paired_interval

A = {0: 3.1, 1: 2.7, 2: 4.4, 3: 3.9}
B = {0: 2.0, 1: 2.5, 2: 3.1, 3: 3.0}


def test_the_mean_is_scipys_one_sample_interval() -> None:
    found, expected = mean_interval([*A.values()], 0.9), stats.ttest_1samp([*A.values()], 0.0)
    ends = expected.confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), rel=1e-12)
    assert (found.estimate, found.count) == (pytest.approx(np.mean([*A.values()])), 4)


def test_differences_are_scipys_paired_interval() -> None:
    found = paired_interval(A, B, "difference", 0.95)
    ends = stats.ttest_rel([*A.values()], [*B.values()]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), rel=1e-12)


def test_ratios_are_those_of_logarithms() -> None:
    found = paired_interval(A, B, "ratio", 0.95)
    logs = [[math.log(x) for x in part.values()] for part in (A, B)]
    ends = stats.ttest_rel(*logs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(ends.low), math.exp(ends.high)), rel=1e-12)
    assert found.estimate == pytest.approx(stats.gmean([A[s] / B[s] for s in A]), rel=1e-12)


def test_by_hand() -> None:
    # differences 1, 2, 3: mean 2, s = 1, t_{2, 0.975} = 4.302653
    found = paired_interval({5: 2.0, 6: 4.0, 7: 6.0}, {7: 3.0, 6: 2.0, 5: 1.0}, "difference", 0.95)
    assert (found.estimate, found.low, found.high, found.count) == pytest.approx(
        (2.0, 2 - 4.30265273 / math.sqrt(3), 2 + 4.30265273 / math.sqrt(3), 3), rel=1e-8
    )


def test_seeds_that_one_lacks_are_left_out_and_one_pair_says_little() -> None:
    found = paired_interval({0: 1.0, 1: 5.0}, {1: 3.0, 2: 9.0}, "difference", 0.95)
    assert (found.estimate, found.low, found.high, found.count) == (2.0, -math.inf, math.inf, 1)
    assert math.isnan(paired_interval({0: 1.0}, {0: -1.0}, "ratio", 0.95).estimate)
    assert math.isnan(mean_interval([1.0, math.nan], 0.95).estimate)
    assert mean_interval([], 0.95).count == 0


@pytest.mark.weekly
def test_the_interval_covers_as_often_as_it_says() -> None:
    """20,000 samples of 5 normals; false alarm below 1e-6 at 5 standard deviations of the count."""
    rng, confidence, trials = np.random.default_rng(3), 0.9, 20_000
    samples = rng.normal(1.0, 2.0, (trials, 5))
    covered = sum(i.low <= 1.0 <= i.high for i in (mean_interval(list(x), confidence) for x in samples))
    assert abs(covered - confidence * trials) < 5 * math.sqrt(trials * confidence * (1 - confidence))
