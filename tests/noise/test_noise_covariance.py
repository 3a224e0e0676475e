"""The covariance over rounds of the noise a run really adds is scale²·C⁻¹C⁻ᵀ.

With W = C·Y/scale, Y the (n, d) noise of a run, S = WWᵀ/d should be the identity: √d·S_ij is standard
normal off the diagonal (i ≠ j) and d·S_ii is chi-square with d degrees of freedom. All n(n+1)/2 entries
are compared, each at level FALSE_ALARM divided by their number, so that a right stream fails with
probability at most 1e-6. The sums for i ≠ j are approximated as normal (excess kurtosis 6/d = 1e-4).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.covariance import covariance_fits

from fedmf.mechanisms.registry import build
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.source import GaussianSource
from fedmf.participation import Participation

ROUNDS = 12
DIMENSION = 50_001
SCALE = 0.7


def run(recurrence, scale: float = SCALE) -> np.ndarray:
    """What a run adds, round by round, to float32 sums of zeros, in two shards."""
    source = GaussianSource(NoiseKey.from_seed(21), DIMENSION)
    parts = [NoiseStream(source, recurrence, ROUNDS, a, b) for a, b in ((0, 777), (777, DIMENSION))]
    added = torch.zeros(ROUNDS, DIMENSION)
    for out in added:
        for part in parts:
            part.add_(out[part.start : part.stop], scale)
    return added.double().numpy()


def test_the_running_stream_has_the_covariance_of_the_mechanism(recurrence):
    built = recurrence(ROUNDS)
    strategy, noise = np.linalg.inv(built.inverse), run(built)
    assert covariance_fits(noise, strategy, SCALE)
    assert not covariance_fits(noise * 1.1, strategy, SCALE), "a wrong sigma must be rejected"
    assert not covariance_fits(noise / 1.1, strategy, SCALE), "a wrong sigma must be rejected"


def test_one_repeated_or_missing_row_is_rejected(named_recurrence):
    for t in range(ROUNDS - 1):
        built = named_recurrence("both", ROUNDS)
        strategy, noise = np.linalg.inv(built.inverse), run(built)
        repeated, silent = noise.copy(), noise.copy()
        repeated[t + 1], silent[t] = noise[t], 0
        assert not covariance_fits(repeated, strategy, SCALE)
        assert not covariance_fits(silent, strategy, SCALE)


def test_a_lag_one_correlation_of_five_percent_is_rejected(named_recurrence):
    noise = run(named_recurrence("identity", ROUNDS))
    noise[1:] += 0.05 * noise[:-1]
    assert not covariance_fits(noise, np.eye(ROUNDS), SCALE)


EACH_FORM = ["identity", "bisr", "banded-toeplitz", "banded", "blt", "tree", "kary-tree", "dense"]


@pytest.fixture(params=[*EACH_FORM, "normalized-bisr", "normalized-blt"])
def mechanism(request: pytest.FixtureRequest):
    """A mechanism of each form, free parameters optimised. The stream never uses `materialize`."""
    return build(request.param, Participation(ROUNDS, 3, 4)).factorization


def test_every_mechanism_has_its_covariance(mechanism):
    noise = run(mechanism.recurrence())
    assert covariance_fits(noise, mechanism.materialize(), SCALE)
    assert not covariance_fits(noise * 1.1, mechanism.materialize(), SCALE), "a wrong sigma must be rejected"
