"""Thresholds of anomaly scores: the share of ordinary rows above them, over many releases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from support.released_moments import drawn

from fedmf.moments import describe
from fedmf.streaming.private_release import alarm_threshold, calibrated_threshold

RATE = 0.05
RUNS = 60


def rates(counted: float) -> np.ndarray:
    """Of the false alarms of so many releases of one Gaussian, exactly by whitening; errors
    scaled.
    """
    rng = np.random.default_rng(1)
    mean = np.array([0.2, -0.1, 0.3])
    covariance = 0.04 * np.array([[1.0, 0.5, 0.2], [0.5, 1.0, 0.1], [0.2, 0.1, 1.0]])
    raw = drawn(mean, covariance, 0.002, 0.00002, RUNS, rng)
    told = describe(raw)["density_covariance"]
    errors = raw.covariance_errors()
    rows = rng.multivariate_normal(mean, covariance, 4000)
    found = []
    for i in range(RUNS):
        of_mean = np.full(3, counted * raw.mean_variance[i] ** 0.5)
        limit = alarm_threshold(RATE, told[i], of_mean, counted * errors[i])
        apart = rows - raw.mean[i]
        scores = np.einsum("ni,ij,nj->n", apart, np.linalg.inv(told[i]), apart)
        found.append(np.mean(scores > limit))
    return np.array(found)


def test_false_alarms_are_at_most_as_many_as_stated() -> None:
    """Over 60 releases, and at least half as many; without the noise of the release half as many
    again.
    """
    assert RATE / 2 < rates(1.0).mean() < RATE
    assert rates(1e-9).mean() > 1.4 * RATE


def test_without_noise_it_is_a_quantile_of_chi_square() -> None:
    found = alarm_threshold(0.01, np.diag([1.0, 4.0]), np.zeros(2), np.zeros((2, 2)))
    assert found == pytest.approx(stats.chi2.isf(0.01, 2), rel=0.02)
    with pytest.raises(ValueError, match="rate"):
        alarm_threshold(1.0, np.eye(1), np.zeros(1), np.zeros((1, 1)))


def test_calibrated_on_rows_of_any_law() -> None:
    """The chance of a false alarm is 1 − ⌈(1 − rate)(m + 1)⌉/(m + 1), for Cauchy scores too."""
    m = 39
    rng = np.random.default_rng(2)
    scores = np.abs(rng.standard_cauchy((4000, m + 1)))
    alarms = sum(row[-1] > calibrated_threshold(RATE, row[:-1]) for row in scores)
    assert abs(alarms - 4000 * RATE) < 4.9 * (4000 * RATE * (1 - RATE)) ** 0.5
    with pytest.raises(ValueError, match=r"at least 19 for a rate of 0\.05; got 18"):
        calibrated_threshold(RATE, np.arange(18))
    with pytest.raises(ValueError, match="Leave out rows with missing cells"):
        calibrated_threshold(RATE, [*range(30), np.nan])
