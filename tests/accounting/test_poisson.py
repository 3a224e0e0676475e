"""Poisson and cyclic Poisson accounting against numerical integration and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedmf.accounting.gaussian import gaussian_delta, gaussian_sigma
from fedmf.accounting.poisson import (
    poisson_delta,
    poisson_noise_multiplier,
)
from fedmf.mechanisms.amplified_noise import amplified_noise_of
from fedmf.mechanisms.closed_forms import bsr, cgd
from fedmf.mechanisms.design import design
from fedmf.participation import Participation


def one_step(sigma: float, q: float, epsilon: float) -> float:
    """δ of one sampled Gaussian on a fine grid: the larger of both sides."""
    y, step = np.linspace(-15 * sigma, 15 * sigma + 1, 200_001, retstep=True)
    without = norm.pdf(y, scale=sigma)
    mixed = (1 - q) * without + q * norm.pdf(y, loc=1.0, scale=sigma)
    sides = (mixed - math.exp(epsilon) * without, without - math.exp(epsilon) * mixed)
    return max(float(np.maximum(side, 0.0).sum() * step) for side in sides)


@pytest.mark.parametrize(
    ("sigma", "q", "epsilon"), [(0.7, 0.1, 1.0), (1.5, 0.3, 0.2), (0.5, 0.9, 3.0)]
)
def test_one_step_agrees_with_numerical_integration(sigma, q, epsilon):
    exact = one_step(sigma, q, epsilon)
    found = poisson_delta(sigma, q, 1, epsilon)
    assert exact * (1 - 1e-7) <= found <= exact * 1.01


def test_without_sampling_steps_compose_as_gaussians():
    assert poisson_delta(3.0, 1.0, 9, 1.0) == pytest.approx(gaussian_delta(1.0, 1.0), rel=5e-3)
    assert poisson_noise_multiplier(2.0, 1e-6, 1.0, 4) == pytest.approx(
        2 * gaussian_sigma(2.0, 1e-6), rel=2e-4
    )


def test_noise_multiplier_is_enough_and_not_too_much():
    sigma = poisson_noise_multiplier(1.0, 1e-5, 0.05, 60)
    assert poisson_delta(sigma, 0.05, 60, 1.0) <= 1e-5
    assert poisson_delta(sigma * (1 - 2e-4), 0.05, 60, 1.0) > 1e-5


def test_refusals():
    contract = Participation(12, 3, 4)
    with pytest.raises(ValueError, match="banded strategies only"):
        amplified_noise_of("cyclic-poisson", cgd(0.5, 12), contract, 1.0, 1e-5)
    with pytest.raises(ValueError, match="needs epsilon and delta"):
        design(contract, ["bsr"], sampling="balls-in-bins")
    with pytest.raises(ValueError, match="must be one of"):
        design(contract, ["bsr"], 1.0, 1e-5, sampling="shuffling")
    with pytest.raises(ValueError, match="sampling probability"):
        poisson_delta(1.0, 0.0, 3, 1.0)


def test_cyclic_poisson_is_poisson_over_a_groups_turns():
    """bsr with p = 4 and n = 26: 7 turns with probability 4·3/26, times the largest column norm."""
    found = amplified_noise_of("cyclic-poisson", bsr(4, 26), Participation(26, 3, 8), 2.0, 1e-5)
    longest = np.linalg.norm(bsr(4, 26).materialize(), axis=0).max()
    assert found.noise_std == pytest.approx(
        longest * poisson_noise_multiplier(2.0, 1e-5, 12 / 26, 7)
    )
