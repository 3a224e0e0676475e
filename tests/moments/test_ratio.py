"""A mean as a noisy sum over a noisy count: exact intervals, the price, and too few rows."""

from __future__ import annotations

import numpy as np
from scipy import stats

from fedmf.moments import fieller

#: Chance that a fair interval fails a test of its coverage.
FALSE_ALARM = 1e-6


def covered(
    mean: float, count: float, std: float, weight: float, said: float, runs: int = 40_000
) -> float:
    """Share of runs whose interval, made for noise of standard deviation `said`, holds the mean."""
    rng = np.random.default_rng([round(1000 * count), round(1000 * weight)])
    noise = rng.normal(scale=std, size=(runs, 2))
    found = fieller(
        (mean * count + noise[:, :1]), weight * count + noise[:, 1], np.full(runs, said**2), weight
    )
    return float(((found.low[:, 0] <= mean) & (mean <= found.high[:, 0])).mean())


def test_intervals_hold_the_mean_whatever_the_count() -> None:
    """At least 95 % for every count, and for a large one 95 % and no more; noise 10 % larger is
    noticed.
    """
    for mean in [0.0, 0.7]:
        for weight in [0.3, 1.0]:
            for count in [0.0, 0.5, 2.0, 4.0, 30.0, 1000.0]:
                runs = 40_000
                low = stats.binom.ppf(FALSE_ALARM, runs, 0.95) / runs
                high = stats.binom.isf(FALSE_ALARM, runs, 0.95) / runs
                assert covered(mean, count, 1.0, weight, 1.0) >= low
                if count >= 30:
                    assert covered(mean, count, 1.0, weight, 1.0) <= high
                    assert covered(mean, count, 1.0, weight, 1 / 1.1) < low


def test_ends_are_where_the_test_of_a_value_turns() -> None:
    """The ends solve (Y − θR/c)² = z²v(1 + θ²/c²), which is how Fieller's set is defined."""
    Y = np.array([[0.8, -0.2]])
    R = np.array([2.0])
    v = np.array([0.04])
    c = 0.5
    found = fieller(Y, R, v, c)
    z = stats.norm.ppf(0.975)
    for end in (found.low, found.high):
        np.testing.assert_allclose(
            (Y - end * R / c) ** 2, z**2 * v * (1 + end**2 / c**2), rtol=1e-9
        )
    assert (found.low < found.mean).all()
    assert (found.mean < found.high).all()
