"""The Balls-in-Bins accountant against closed forms and numerical integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from fedmf.accounting.balls_in_bins import BallsInBinsPair
from fedmf.accounting.gaussian import gaussian_delta
from fedmf.accounting.monte_carlo import contributions, estimate
from fedmf.accounting.noise_level import (
    certified_noise,
)
from fedmf.mechanisms.closed_forms import cgd, identity
from fedmf.participation import Participation

# |z| < 5.2 has a false-alarm rate of 2e-7 for a normal error; the draws are bounded and thousands.
Z = 5.2
TWO_BINS = np.array([[1.0, 0.3], [0.4, 0.9]])
THREE_BINS = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.3, 0.5, 0.9]])


def quadrature(means: np.ndarray, noise: float, epsilon: float, side: str) -> float:
    """δ on a grid of at most three dimensions; the trapezoidal rule, within 1e-3 relative here."""
    b, r = means.shape
    points = {1: 20_001, 2: 501, 3: 81}[r]
    axis = np.linspace(-9 * noise, 9 * noise + means.sum(axis=0).max(), points)
    grid = np.stack(np.meshgrid(*[axis] * r, indexing="ij"), axis=-1).reshape(-1, r)
    log_q = -0.5 * (grid**2).sum(axis=1) / noise**2 - 0.5 * r * math.log(2 * math.pi * noise**2)
    distances = (grid**2).sum(axis=1)[:, None] - 2 * grid @ means.T + (means**2).sum(axis=1)
    log_p = logsumexp(-0.5 * distances / noise**2, axis=1) - math.log(b)
    log_p -= 0.5 * r * math.log(2 * math.pi * noise**2)
    first, second = (log_p, log_q) if side == "remove" else (log_q, log_p)
    excess = np.maximum(np.exp(first) - np.exp(epsilon + second), 0.0)
    return float(excess.sum() * (axis[1] - axis[0]) ** r)


def one_side(pair, noise, epsilon, side, count=20_000, seed=0):
    """Estimate, standard error and the largest contribution over its bound."""
    proposal = pair.proposal(noise, epsilon, side)
    draws = proposal.draw(np.random.default_rng(seed), count)
    values = contributions(pair, draws, noise, epsilon, side)
    bound = math.exp(proposal.log_bound)
    return values.mean(), values.std() / math.sqrt(count), values.max() / bound


@pytest.mark.parametrize("side", ["remove", "add"])
@pytest.mark.parametrize(
    ("means", "noise", "epsilon"),
    [
        (TWO_BINS, 0.5, 4.0),
        (TWO_BINS, 1.5, 0.3),
        (TWO_BINS, 0.7, 0.0),
        (THREE_BINS, 0.8, 1.0),
        (THREE_BINS, 4.0, 0.5),
    ],
)
def test_small_cases_agree_with_numerical_integration(means, noise, epsilon, side):
    exact = quadrature(means, noise, epsilon, side)
    mean, error, largest = one_side(BallsInBinsPair(means.copy()), noise, epsilon, side)
    assert abs(mean - exact) < Z * error + 2e-3 * exact
    assert error < 0.06 * exact
    assert largest <= 1 + 1e-9


@pytest.mark.parametrize("side", ["remove", "add"])
@pytest.mark.parametrize(("noise", "epsilon"), [(0.6, 8.0), (1.0, 2.0), (3.0, 0.2)])
def test_one_bin_is_the_gaussian_mechanism(noise, epsilon, side):
    mean, error, _ = one_side(BallsInBinsPair(np.ones((1, 1))), noise, epsilon, side)
    assert abs(mean - gaussian_delta(noise, epsilon)) < Z * error


def test_the_rare_tail_agrees_with_numerical_integration():
    exact = quadrature(TWO_BINS, 0.5, 12.0, "remove")
    assert exact < 1e-7
    mean, error, _ = one_side(BallsInBinsPair(TWO_BINS.copy()), 0.5, 12.0, "remove")
    assert abs(mean - exact) < Z * error + 1e-3 * exact
    assert error < 0.03 * exact


def test_orthogonal_bins_agree_with_plain_sampling():
    """C = I, k = 1, one bin per round: sampling from P itself as the oracle."""
    b = 16
    noise = 0.6
    epsilon = 1.0
    pair = BallsInBinsPair.of(identity(b), Participation(b, 1, b))
    rng = np.random.default_rng(3)
    y = noise * rng.standard_normal((200_000, b))
    y[np.arange(len(y)), rng.integers(b, size=len(y))] += 1.0
    loss = logsumexp(y / noise**2 - 0.5 / noise**2, axis=1) - math.log(b)
    plain = np.maximum(-np.expm1(epsilon - np.maximum(loss, epsilon)), 0.0)
    found = estimate(pair, noise, epsilon)
    error = math.hypot(found.standard_error, plain.std() / math.sqrt(plain.size))
    assert abs(found.delta - plain.mean()) < Z * error


def test_certified_noise_is_enough_and_not_far_off():
    """Two bins, where δ is known: the limit that was passed with is above it."""
    pair = BallsInBinsPair(TWO_BINS.copy())
    noise, limit = certified_noise(pair, 1.0, 1e-3, samples=2**15)
    exact = quadrature(TWO_BINS, noise, 1.0, "remove")
    assert exact <= limit <= 0.99e-3
    assert exact > 0.7e-3


def test_negative_strategies_are_refused():
    from fedmf.matrices.toeplitz import Toeplitz

    with pytest.raises(ValueError, match="no negative entries"):
        BallsInBinsPair.of(Toeplitz(np.array([1.0, -0.2]), 6), Participation(6, 2, 3))


def test_means_add_the_columns_of_a_bin():
    strategy = cgd(0.8, 10)
    contract = Participation(10, 4, 3)
    pair = BallsInBinsPair.of(strategy, contract)
    dense = strategy.materialize()
    means = np.stack([dense[:, i::3].sum(axis=1) for i in range(3)])
    np.testing.assert_allclose(pair.means @ pair.means.T, means @ means.T, rtol=1e-12)
