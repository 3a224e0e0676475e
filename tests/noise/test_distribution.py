"""Innovations over their scale are standard normal and independent; the same tests reject wrong
ones.

Fixed key. Every acceptance below fails with probability at most 1e-6 over the choice of the key:
the level of each test is divided among its comparisons (union bound).
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import special, stats

from fedmf.noise.innovations import Innovations
from fedmf.noise.key import Domain, NoiseKey

FALSE_ALARM = 1e-6
COUNT = 1 << 21
SCALE = 2.0**36
WRONG_SIGMA = 1.01
WRONG_CORRELATION = 0.01


def normals(seed: int, domain: Domain, t: int) -> np.ndarray:
    """A quarter of the sample."""
    return Innovations(NoiseKey.from_seed(seed), domain).row(t, SCALE, COUNT // 4) / SCALE


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    return np.stack([normals(11, Domain.TRAINING, t) for t in range(4)])


def limit(comparisons: int) -> float:
    """|N(0,1)| exceeds it with probability FALSE_ALARM / comparisons."""
    return float(stats.norm.isf(FALSE_ALARM / comparisons / 2))


def moments_fit(x: np.ndarray) -> bool:
    """First four moments, each within its central-limit bound."""
    deviations = [
        x.mean(),
        (np.mean(x**2) - 1) / math.sqrt(2),
        np.mean(x**3) / math.sqrt(15),
        (np.mean(x**4) - 3) / math.sqrt(96),
    ]
    return bool(np.abs(deviations).max() * math.sqrt(x.size) < limit(4))


def distribution_fits(x: np.ndarray) -> bool:
    """Kolmogorov-Smirnov with the Dvoretzky-Kiefer-Wolfowitz-Massart bound 2·exp(−2nD²)."""
    cdf = special.ndtr(np.sort(x, axis=None))
    steps = np.arange(x.size + 1) / x.size
    distance = max((steps[1:] - cdf).max(), (cdf - steps[:-1]).max())
    return bool(distance < math.sqrt(math.log(2 / FALSE_ALARM) / (2 * x.size)))


def tails_fit(x: np.ndarray) -> bool:
    """Counts beyond ±1 … ±5.5 within exact binomial quantiles."""
    levels = [1.0, 2.0, 3.0, 4.0, 4.5, 5.0, 5.5]
    alpha = FALSE_ALARM / (4 * len(levels))
    for level in levels:
        law = stats.binom(x.size, special.ndtr(-level))
        for count in (np.count_nonzero(x > level), np.count_nonzero(x < -level)):
            if not law.ppf(alpha) <= count <= law.isf(alpha):
                return False
    return True


def uncorrelated(pairs: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Correlations of values and of squares, √N·ρ being standard normal under independence."""
    scores = []
    for a, b in pairs:
        scores.append(np.mean(a * b) * math.sqrt(a.size))
        scores.append(np.mean((a**2 - 1) * (b**2 - 1)) / 2 * math.sqrt(a.size))
    return bool(np.abs(scores).max() < limit(len(scores)))


@pytest.mark.parametrize("test", [moments_fit, distribution_fits, tails_fit])
def test_variables_are_standard_normal(sample, test):
    assert test(sample)
    assert not test(sample * WRONG_SIGMA), "a wrong sigma must be rejected"
    assert not test(sample / WRONG_SIGMA), "a wrong sigma must be rejected"


def test_the_two_of_a_pair_are_independent(sample):
    """Cosine and sine share a radius: x² + y² is exponential, and signs, values and squares are
    unrelated.
    """
    blocks = sample.reshape(-1, 2, 4)
    x = blocks[:, 0].ravel()
    y = blocks[:, 1].ravel()
    assert uncorrelated([(x, y)])
    assert distribution_fits((x + y) / math.sqrt(2))
    assert distribution_fits((x - y) / math.sqrt(2))
    square = np.sort(x * x + y * y)
    steps = np.arange(square.size + 1) / square.size
    cdf = -np.expm1(-square / 2)
    distance = max((steps[1:] - cdf).max(), (cdf - steps[:-1]).max())
    assert distance < math.sqrt(math.log(2 / FALSE_ALARM) / (2 * square.size))
    quadrants = np.bincount(2 * (x > 0).astype(int) + (y > 0), minlength=4)
    assert (quadrants - x.size / 4).max() ** 2 * 4 / x.size < stats.chi2.isf(FALSE_ALARM, 3)
    assert not uncorrelated([(x, np.where(x > 0, 1.0, -1.0) * np.abs(y))]), (
        "a lost quadrant must be seen"
    )


def test_elements_are_independent_of_their_neighbors(sample):
    row = sample[0]
    lags = [*range(1, 33), 64, 1024, 1 << 15, 1 << 17]
    assert uncorrelated([(row[:-lag], row[lag:]) for lag in lags])


def test_rounds_are_independent(sample):
    pairs = list(combinations(sample, 2))
    assert uncorrelated(pairs)
    assert uncorrelated([(a[:-1], b[1:]) for a, b in pairs])


def test_domains_and_keys_are_independent():
    values = [normals(11, domain, 0) for domain in (*Domain, Domain.of_statistic("counts"))]
    values.append(normals(13, Domain.TRAINING, 0))
    assert uncorrelated(list(combinations(values, 2)))


def test_a_lag_one_correlation_of_one_percent_is_rejected(sample):
    row = sample[0]
    mixed = row[1:] * math.sqrt(1 - WRONG_CORRELATION**2) + WRONG_CORRELATION * row[:-1]
    assert not uncorrelated([(mixed[:-1], mixed[1:])])
    between = sample[1] * math.sqrt(1 - WRONG_CORRELATION**2) + WRONG_CORRELATION * sample[0]
    assert not uncorrelated([(sample[0], between)])
