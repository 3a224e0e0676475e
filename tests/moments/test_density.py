"""The density of a release: coverage of its intervals, its covariance, and its scores.

Releases are drawn from the exact distribution of their noise;
`test_the_law_is_that_of_the_running_stream` measures that on the keyed stream.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from support.released_moments import drawn

from fedmf.matrices.arrays import Array
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.mechanisms.closed_forms import identity, square_root
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.workload import average
from fedmf.moments import (
    FullMatrix,
    GaussianEstimate,
    MomentStream,
    NoisyMoments,
    PrivateGaussian,
    describe,
    jme,
    shrunk_covariances,
)
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation

#: Rate at which each test as a whole would fail for correct code.
ALARM = 1e-6
RUNS = 20_000


def world(d: int, spread: float, mean: float) -> tuple[Array, Array]:
    """A mean of the given norm and a covariance with the given trace, neighbors correlated by
    0.6.
    """
    covariance = 0.6 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    return mean * np.ones(d) / np.sqrt(d), covariance * spread / d


def least_hits(level: float, tests: int) -> int:
    return int(stats.binom.ppf(ALARM / tests, RUNS, level))


#: (trace of the covariance, norm of the mean, √v, v₂/v, c): from hardly any noise to hardly any
#: signal.
WORLDS = [
    (0.3, 0.5, 0.05, 0.5, math.inf),
    (0.2, 0.0, 0.1, 1e-4, math.inf),
    (0.2, 0.1, 0.3, 1.0, math.inf),
    (0.02, 0.3, 2.0, 4.0, math.inf),
    (
        0.2,
        0.173,
        0.05,
        1e-3,
        math.inf,
    ),  # a mean of two standard errors: the released one often hides the spread
    (0.9, 0.1, 0.05, 0.001, 0.5),  # most of the error is that of the count
    (0.05, 0.9, 0.15, 0.1, 0.76),
]


@pytest.mark.parametrize(("trace", "norm", "error", "ratio", "weight"), WORLDS)
@pytest.mark.parametrize("level", [0.95])
def test_intervals_cover_what_they_promise(
    trace: float, norm: float, error: float, ratio: float, weight: float, level: float
) -> None:
    """Each entry by itself; the mean's is exact, so that a standard error 10 % too small is
    found. tests/moments/test_ratio.py has that of a mean over a noisy count.
    """
    mean, covariance = world(3, trace, norm)
    rng = np.random.default_rng(7)
    raw = drawn(mean, covariance, error**2, ratio * error**2, RUNS, rng, count_weight=weight)
    low, high = raw.covariance_interval(level)
    hits = ((low <= covariance) & (covariance <= high)).sum(axis=0)
    assert hits.min() >= least_hits(level, 9)
    low, high = raw.mean_interval(level)
    hits = ((low <= mean) & (mean <= high)).sum(axis=0)
    assert hits.min() >= least_hits(level, 3) or weight < math.inf
    if error < 0.2 and weight == math.inf:  # else the norm bound cuts the intervals
        assert hits.max() <= int(stats.binom.isf(ALARM / 3, RUNS, level))
        tight = NoisyMoments(
            raw.mean, raw.covariance, raw.mean_variance / 1.1**2, raw.second_variance, 1.0
        )
        low, high = tight.mean_interval(level)
        assert ((low <= mean) & (mean <= high)).sum(axis=0).min() < least_hits(level, 3)
    truth = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    low, high = raw.correlation_interval(level)
    assert ((low <= truth + 1e-12) & (truth <= high + 1e-12)).sum(axis=0).min() >= least_hits(
        level, 9
    )
    low, high = raw.trace_interval(level)
    assert ((low <= trace) & (trace <= high)).sum() >= least_hits(level, 1)


def test_the_covariance_is_positive_definite_and_closer() -> None:
    """Whatever the noise; nearer than the unbiased one on average, and that one where noise is
    nothing.
    """
    for error in [1e-6, 0.01, 0.1, 3.0, 1e3]:
        for d in [1, 2, 10, 30]:
            mean, covariance = world(d, 0.3, 0.5)
            raw = drawn(mean, covariance, error**2, error**2, 200, np.random.default_rng(d))
            found, rho = shrunk_covariances(raw)
            assert (np.linalg.eigvalsh(found) > 0).all()
            assert (np.trace(found, axis1=1, axis2=2) <= 1 + 1e-9).all()
            assert ((rho >= 0) & (rho <= 1)).all()
            np.linalg.cholesky(found)
            before, after = (
                ((one - covariance) ** 2).sum(axis=(1, 2)).mean() for one in (raw.covariance, found)
            )
            assert after <= before * 1.0001
            if error == 1e-6:
                np.testing.assert_allclose(found, raw.covariance, atol=1e-7)


def test_what_the_noise_leaves_open_is_said() -> None:
    """No correlation beyond ±1, nothing told of noise, everything told without it."""
    mean, covariance = world(2, 0.3, 0.5)
    for error, told in ((1.0, False), (1e-5, True)):
        noisy = drawn(mean, covariance, error**2, error**2, 1, np.random.default_rng(4))
        density = PrivateGaussian.of(noisy.mean[0], noisy.covariance[0], error, error, 1.0)
        value, low, high = density.correlations()
        assert np.isfinite(value[0, 1]) == told
        assert ((low >= -1) & (high <= 1)).all()
        assert bool(density.too_noisy) != told
    assert value[0, 1] == pytest.approx(0.6, abs=1e-3)
    for level in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="level"):
            density.mean_interval(level)


def test_correlations_are_not_shortened_with_the_covariance() -> None:
    """0.6 on average over 300 releases of which the covariances are shrunk by 30 % or more."""
    mean, covariance = world(60, 0.6, 0.0)
    raw = drawn(mean, covariance, 1e-6, 2e-6, 300, np.random.default_rng(1))
    fields = describe(raw)
    assert fields["shrinkage"].min() > 0.3
    found = fields["correlation"][:, range(59), range(1, 60)]
    assert np.isfinite(found).all()
    assert found.mean() == pytest.approx(0.6, abs=0.02)
    shrunk = fields["density_covariance"]
    deviations = np.sqrt(np.diagonal(shrunk, axis1=1, axis2=2))
    shortened = shrunk / (deviations[:, :, None] * deviations[:, None, :])
    assert shortened[:, range(59), range(1, 60)].mean() < 0.5


@pytest.mark.parametrize(("error", "told"), [(0.0003, True), (0.003, False), (0.1, False)])
def test_a_covariance_that_is_nearly_its_average_is_too_noisy(error: float, told: bool) -> None:
    """ρ > 0.9, although the sum of the variances is known where it is 0.995."""
    mean, covariance = world(100, 0.3, 0.0)
    raw = drawn(mean, covariance, error**2, error**2, 1, np.random.default_rng(1))
    density = PrivateGaussian.of(raw.mean[0], raw.covariance[0], error, error, 1.0)
    assert bool(density.too_noisy) != told
    assert (density.shrinkage <= 0.9) == told


def test_the_law_is_that_of_the_running_stream() -> None:
    """Σ̂, m̂ of 2,000 keyed streams against draws: each entry's mean and variance, both laws by
    their χ².
    """
    n = 4
    d = 2
    runs = 2000
    C = square_root(n)
    work = average(n)
    made = jme(C, identity(n), Participation(n, 1, n), UserRange(1.0, d, "replace-one"), 0.2)
    x = np.array([[0.5, 0.1], [0.4, 0.3], [0.1, -0.6], [0.7, 0.2]])
    v = made.first_std**2 * float(query_variances(made.first, work)[-1])
    second, std = made.second_noise
    v2 = std**2 * float(query_variances(second, work)[-1])
    mean = x.mean(axis=0)
    covariance = np.cov(x.T, bias=True)
    means = np.empty((runs, d))
    raw = np.empty((runs, d, d))
    for seed in range(runs):
        stream = MomentStream(made, FullMatrix(d), work, key=NoiseKey.from_seed(seed))
        block = stream.extend(torch.from_numpy(x))
        means[seed] = block.first[-1]
        raw[seed] = (
            FullMatrix(d).unpack(block.second[-1]).numpy()
            - np.outer(means[seed], means[seed])
            + v * np.eye(d)
        )
    law = drawn(mean, covariance, v, v2, 40 * runs, np.random.default_rng(0))
    limit = stats.norm.isf(ALARM / 40)
    for found, drawn_ones, true in ((means, law.mean, mean), (raw, law.covariance, covariance)):
        spread = drawn_ones.std(axis=0)
        assert (np.abs(found.mean(axis=0) - true) < limit * spread / np.sqrt(runs)).all()
        fourth = ((drawn_ones - true) ** 4).mean(axis=0) / spread**4
        error = np.sqrt((fourth - 1) / runs)
        assert (np.abs(found.var(axis=0) / spread**2 - 1) < 1.1 * limit * error).all()


def test_projection_is_the_closest_definite_covariance() -> None:
    mean = torch.tensor([0.3, -1.0], dtype=torch.float64)
    wild = GaussianEstimate(mean, torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64))
    with pytest.raises(ValueError, match="projected"):
        wild.log_density(mean)
    near = wild.projected(0.1)
    assert torch.linalg.eigvalsh(near.covariance).tolist() == pytest.approx([0.1, 3.0])
    drawn_rows = near.sample(100_000, torch.Generator().manual_seed(1))
    torch.testing.assert_close(drawn_rows.T.cov(), near.covariance, rtol=0.0, atol=0.1)
    with pytest.raises(ValueError, match="must be"):
        wild.projected(0.0)
