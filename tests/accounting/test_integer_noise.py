"""Amplified budgets of integer noise against chains of worlds by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from fedmf.accounting.gaussian import gaussian_delta
from fedmf.accounting.integer_noise import ideal_budget

#: Probabilities of an event in the first world of a chain.
EVENTS = np.concatenate([10.0 ** np.linspace(-12, -1, 400), np.linspace(0.1, 1.0, 100)])
BUDGETS = [(0.5, 1e-5), (2.0, 1e-6), (8.0, 1e-8)]
RATIOS = [1e-7, 1e-4, 1e-2]


def moved(events: np.ndarray, ratio: float) -> np.ndarray:
    """The largest probability of an event once a Gaussian is shifted by W/τ (Neyman, Pearson)."""
    return norm.cdf(norm.ppf(events) + ratio)


def ideal(events: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """The largest probability in a neighboring world of the ideal process."""
    return np.minimum(1.0, math.exp(epsilon) * events + delta)


def excess(last: np.ndarray, epsilon: float) -> float:
    """The δ that a chain of worlds needs at ε."""
    return float(np.max(last - math.exp(epsilon) * EVENTS))


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_a_user_more_or_less_stays_within_the_budget(
    epsilon: float, delta: float, ratio: float
) -> None:
    """Integers move the world with the user; it may be the first or the last of the chain."""
    within = ideal_budget(epsilon, delta, "zero-out", ratio)
    assert excess(ideal(moved(EVENTS, ratio), *within), epsilon) <= delta
    assert excess(moved(ideal(EVENTS, *within), ratio), epsilon) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
@pytest.mark.parametrize("ratio", [1e-7, 1e-4])
def test_two_worlds_with_users_stay_within_the_budget(
    epsilon: float, delta: float, ratio: float
) -> None:
    """Integers move both worlds; the budget for one alone is too large."""
    within = ideal_budget(epsilon, delta, "replace-one", ratio)
    assert excess(moved(ideal(moved(EVENTS, ratio), *within), ratio), epsilon) <= delta
    one = ideal_budget(epsilon, delta, "zero-out", ratio)
    assert within[0] < one[0] < epsilon


def test_the_budget_leaves_room_that_is_needed() -> None:
    """Without it a chain exceeds δ; and hardly more is taken than W/τ times a few standard
    deviations.
    """
    epsilon = 2.0
    delta = 1e-6
    ratio = 1e-2
    assert excess(ideal(moved(EVENTS, ratio), epsilon, delta), epsilon) > 1.001 * delta
    left, ideal_delta = ideal_budget(epsilon, delta, "zero-out", ratio)
    assert epsilon - left < 8 * ratio
    assert ideal_delta > 0.9 * delta
    assert ideal_budget(epsilon, delta, "zero-out", 0.0) == (epsilon, delta)


def exceeded(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """δ(ε) of two distributions on a few points."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def test_the_formulas_hold_for_distributions_on_three_points() -> None:
    """All chains of worlds A, A', B', B on a grid: A to B' with one shift, A to B with two."""
    grid = [np.array(p) / 8 for p in itertools.product(range(1, 7), repeat=3) if sum(p) == 8]
    epsilon = 0.4
    epsilon_1 = 0.15
    for first, second, third in itertools.product(grid, repeat=3):
        shifted = max(exceeded(first, second, epsilon_1), exceeded(second, first, epsilon_1))
        delta = max(exceeded(second, third, epsilon), exceeded(third, second, epsilon))
        bound = max(
            math.exp(epsilon_1) * delta + shifted,
            delta + math.exp(epsilon) * shifted,
        )
        total = epsilon + epsilon_1
        assert exceeded(first, third, total) <= bound + 1e-12
        assert exceeded(third, first, total) <= bound + 1e-12
        for fourth in grid[::4]:
            again = max(exceeded(third, fourth, epsilon_1), exceeded(fourth, third, epsilon_1))
            both = max(shifted, again)
            bound = math.exp(epsilon_1) * delta + (1 + math.exp(total)) * both
            assert exceeded(first, fourth, total + epsilon_1) <= bound + 1e-12


def test_one_direction_alone_is_not_enough() -> None:
    """Two points: (ε + ε₁, e^ε₁·δ + δ₁) fails where the world without the user is the likelier
    one.
    """
    epsilon = 1.0
    delta = 1e-6
    ratio = 1e-3
    epsilon_1 = 2.5 * ratio
    delta_1 = gaussian_delta(1 / ratio, epsilon_1)
    released = float(norm.cdf(-epsilon_1 / ratio - ratio / 2))
    with_user = float(norm.cdf(norm.ppf(released) + ratio))
    without = math.exp(epsilon) * with_user + delta
    points = [np.array([p, 1 - p]) for p in (released, with_user, without)]
    assert exceeded(points[1], points[0], epsilon_1) <= delta_1 * (1 + 1e-9)
    assert exceeded(points[0], points[1], epsilon_1) <= delta_1 * (1 + 1e-9)
    assert exceeded(points[2], points[1], epsilon) <= delta * (1 + 1e-9)
    assert exceeded(points[1], points[2], epsilon) <= delta
    found = exceeded(points[2], points[0], epsilon + epsilon_1)
    assert found > 1.1 * (math.exp(epsilon_1) * delta + delta_1)
    assert found <= (delta + math.exp(epsilon) * delta_1) * (1 + 1e-9)


def test_a_movement_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"W/tau .* must leave something of epsilon"):
        ideal_budget(0.1, 1e-6, "zero-out", 0.1)
