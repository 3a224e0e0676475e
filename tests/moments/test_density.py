"""The Gaussian estimate against scipy and the expectation of its noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fedmf.mechanisms.closed_forms import square_root
from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.workload import average
from fedmf.moments.density import GaussianEstimate, gaussian_estimate, mean_noise_variances
from fedmf.moments.mechanism import jme
from fedmf.moments.moment_stream import MomentStream
from fedmf.moments.second_moment import FullMatrix
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation

MEAN = torch.tensor([0.3, -1.0], dtype=torch.float64)
COVARIANCE = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)


def test_log_density_and_divergence() -> None:
    p, q = GaussianEstimate(MEAN, COVARIANCE), GaussianEstimate(MEAN * 0, torch.eye(2, dtype=torch.float64))
    x = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = stats.multivariate_normal(MEAN.numpy(), COVARIANCE.numpy()).logpdf(x.numpy())
    np.testing.assert_allclose(p.log_density(x).numpy(), expected, rtol=1e-12)
    assert p.kl_to(p) == pytest.approx(0.0, abs=1e-12)
    drawn = p.sample(200_000, torch.Generator().manual_seed(1))
    gaps = (p.log_density(drawn) - q.log_density(drawn)).numpy()
    assert abs(gaps.mean() - p.kl_to(q)) < 5 * gaps.std() / np.sqrt(len(gaps))


def test_projection_is_the_closest_and_shrinkage_keeps_the_trace() -> None:
    wild = GaussianEstimate(MEAN, torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64))
    with pytest.raises(ValueError, match="projected"):
        wild.log_density(MEAN)
    near = wild.projected(0.1)
    assert torch.linalg.eigvalsh(near.covariance).min() == pytest.approx(0.1)
    assert torch.linalg.eigvalsh(near.covariance).max() == pytest.approx(3.0)
    shrunk = near.shrunk(0.5)
    assert shrunk.covariance.trace() == pytest.approx(float(near.covariance.trace()))
    assert torch.equal(near.projected(0.05).covariance.mT, near.projected(0.05).covariance)
    for bad in (lambda: wild.projected(0.0), lambda: wild.shrunk(1.5)):
        with pytest.raises(ValueError, match="must be"):
            bad()


def test_the_covariance_is_unbiased_after_the_stated_correction() -> None:
    """Mean of the diagonal over d = 300 coordinates of zero data: biased by Var(mean), then not."""
    n, d = 6, 300
    C, work = square_root(n), average(n)
    made = jme(C, C, Participation(n, 1, n), UserRange(1.0, d), 1.0)
    stream = MomentStream(made, FullMatrix(d), work, key=NoiseKey.from_seed(3))
    variances = mean_noise_variances(made, work)
    for t in range(n):
        release = stream.update(torch.zeros(d))
        fair = gaussian_estimate(release, float(variances[t])).covariance.diagonal()
        biased = gaussian_estimate(release).covariance.diagonal()
        five_errors = 5 * float(fair.std()) / d**0.5
        assert abs(float(fair.mean())) < five_errors
        torch.testing.assert_close(fair - biased, torch.full_like(fair, float(variances[t])))


def test_only_full_matrices_make_a_density() -> None:
    from fedmf.moments.moment_stream import MomentRelease
    from fedmf.moments.second_moment import DiagonalMoment

    assert DiagonalMoment(2).size == 2
    with pytest.raises(ValueError, match="FullMatrix"):
        gaussian_estimate(MomentRelease(1, MEAN, MEAN))
