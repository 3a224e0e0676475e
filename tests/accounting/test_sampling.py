"""Claims of sampled runs: what is certified, what is checked again, and a user who is replaced."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedmf.accounting.min_separated import (
    MinSeparatedPair,
)
from fedmf.accounting.monte_carlo import estimate
from fedmf.accounting.noise_level import certified_noise
from fedmf.accounting.sampling import (
    CohortLaw,
    RunAmplification,
    check_run,
    zero_out_budget,
)
from fedmf.mechanisms.closed_forms import bsr
from fedmf.participation import Participation

# |z| < 5.2 has a false-alarm rate of 2e-7.
Z = 5.2


@pytest.mark.weekly
def test_a_small_epsilon_is_certified_close_to_the_central_estimate() -> None:
    """One user in 64 rounds at ε = ½, where a limit from pairs of patterns alone would not come
    near.
    """
    pair = MinSeparatedPair.of(bsr(4, 64), 4, 1 / 13)
    noise, limit = certified_noise(pair, 0.5, 1e-5, samples=2**14)
    found = estimate(pair, noise, 0.5, 0.02, 2**15)
    assert found.delta - Z * found.standard_error <= limit <= 0.99e-5
    fewer = estimate(pair, noise / 1.05, 0.5, 0.02, 2**15)
    assert fewer.delta - Z * fewer.standard_error > 1e-5


@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_a_replaced_user_costs_at_most_the_zero_out_budget(mu: float) -> None:
    """Two rounds, one at random with μ or with −μ: quadrature in two dimensions."""
    axis = np.arange(-8.0, 8.0, 0.02)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    normal = np.exp(-(x**2 + y**2) / 2) * 0.02**2 / (2 * math.pi)
    P, P_other = (
        normal * (np.exp(u * x - u**2 / 2) + np.exp(u * y - u**2 / 2)) / 2 for u in (mu, -mu)
    )
    for delta in (1e-2, 1e-4):
        # The least ε for which (ε', δ') of the budget holds under zero-out.
        low = 0.0
        high = 40.0
        for _ in range(40):
            middle = (low + high) / 2
            half, share = zero_out_budget("replace-one", middle, delta)
            sides = (P - math.exp(half) * normal, normal - math.exp(half) * P)
            fits = max(float(np.maximum(side, 0.0).sum()) for side in sides) <= share
            low, high = (low, middle) if fits else (middle, high)
        replaced = float(np.maximum(P - math.exp(high) * P_other, 0.0).sum())
        assert 0.0 < replaced <= delta * (1 + 1e-6)
        # Half of the budget's ε is not enough.
        assert float(np.maximum(P - math.exp(0.5 * high) * P_other, 0.0).sum()) > delta
    assert zero_out_budget("zero-out", 1.5, 1e-5) == (1.5, 1e-5)


def test_a_claim_is_refused_however_far_too_small_its_noise_is() -> None:
    """Where noise is much too small, weighted draws miss where the loss is large and say next to
    nothing.
    """
    law = CohortLaw("b-min-sep", Participation(64, 4, 16), 1 / 50)
    C = bsr(4, 64)
    delta = 1e-5
    claim = RunAmplification("b-min-sep", 1 / 50, "certified", 0.01 * delta, 0.99 * delta, 3)
    enough = 1.04
    check_run(claim, law, C, enough, "zero-out", 2.0, delta)
    missed = estimate(law.pair(C), 0.1 * enough, 2.0, 0.03, 2**13, seed=1)
    assert missed.delta < delta
    for share in (0.9, 0.2, 0.1, 0.02):
        with pytest.raises(ValueError, match=r"noise .* must give"):
            check_run(claim, law, C, share * enough, "zero-out", 2.0, delta)
