"""Upper limits hold as often as they say: by betting, and of convex losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from fedmf.accounting.gaussian import gaussian_delta
from fedmf.accounting.monte_carlo import convex_add_limit, mean_upper_limit


@pytest.mark.parametrize("kind", ["rarer", "rare", "uniform", "constant"])
def test_the_limit_covers(kind):
    """1000 experiments at β = 0.05; false alarm 1e-6 from the quantile of Bin(1000, 0.05).

    Of 360 draws none is 1 with probability 0.34 or 0.11 in the rare cases: nearest to Markov's
    inequality, so a limit that aims at β^0.3 = 0.41 or β^0.7 = 0.12 fails there.
    """
    rng = np.random.default_rng(5)
    failures = 0
    experiments = 1000
    size = 400
    draw = {
        "rarer": lambda: (rng.random(size) < 0.003).astype(float),
        "rare": lambda: (rng.random(size) < 0.006).astype(float),
        "uniform": lambda: rng.random(size),
        "constant": lambda: np.full(size, 0.25),
    }[kind]
    mean = {"rarer": 0.003, "rare": 0.006, "uniform": 0.5, "constant": 0.25}[kind]
    for _ in range(experiments):
        failures += mean_upper_limit(draw(), 1.0, 0.05) < mean
    assert failures <= binom.isf(1e-6, experiments, 0.05)


@pytest.mark.parametrize(
    ("values", "failure"), [(np.ones(5), 0.1), (np.full(30, 2.0), 0.1), (np.full(30, 0.5), 0.0)]
)
def test_refusals(values, failure):
    with pytest.raises(ValueError, match="must"):
        mean_upper_limit(values, 1.0, failure)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.3), (0.3, 1.0), (1.0, 3.0)])
def test_the_convex_limit_of_a_linear_loss_is_near_the_gaussian_closed_form(
    mu: float, epsilon: float
) -> None:
    losses = mu * np.random.default_rng(4).standard_normal(2**16) - mu**2 / 2
    exact = gaussian_delta(1 / mu, epsilon)
    assert exact < convex_add_limit(losses, epsilon, 1e-7) < 3.5 * exact


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.8])
def test_the_convex_limit_holds_for_a_loss_with_a_kink_and_a_threshold_in_its_bulk(
    epsilon: float,
) -> None:
    """L = 2(|z| − 1): to the right of x₁ a line lies below the concave H, so x₁ must not be below
    −ε.
    """
    losses = 2.0 * (np.abs(np.random.default_rng(4).standard_normal(2**15)) - 1.0)
    z = np.linspace(-8.0, 8.0, 32_001)
    payoff = np.maximum(-np.expm1(epsilon + 2.0 * (np.abs(z) - 1.0)), 0.0)
    exact = float(payoff @ np.exp(-(z**2) / 2)) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    assert exact < convex_add_limit(losses, epsilon, 1e-7) < 2 * exact


@pytest.mark.weekly
def test_the_convex_limit_covers() -> None:
    """500 experiments at β = 0.1 on the linear loss, where H is a line; false alarm 1e-6."""
    rng = np.random.default_rng(5)
    mu = 0.3
    epsilon = 0.8
    exact = gaussian_delta(1 / mu, epsilon)
    failures = sum(
        convex_add_limit(mu * rng.standard_normal(2000) - mu**2 / 2, epsilon, 0.1) < exact
        for _ in range(500)
    )
    assert failures <= binom.isf(1e-6, 500, 0.1)
