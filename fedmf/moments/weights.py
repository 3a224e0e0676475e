"""λ of Joint Moment Estimation: what is free, and what is best for a weighted error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedmf.mechanisms.joint import UserRange, free_weight, joint_sensitivity
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.participation import Participation


def default_weight(
    first: Factorization, second: Factorization, participation: Participation, users: UserRange
) -> float:
    """λ: the largest that is free for equal matrices (replace-one), or equal shares (zero-out).

    With R = sens(C₁)²/(ζ² sens(C₂)²): free_weight·R for replace-one. Under zero-out nothing is free,
    s² = ζ² sens(C₁)² + λζ⁴ sens(C₂)² at most, and λ = R gives each moment half of it.
    """
    ratio = stated_sensitivity(first, participation).value / stated_sensitivity(second, participation).value
    free = free_weight(users.dimension) if users.adjacency == "replace-one" else 1.0
    return free * (ratio / users.norm_bound) ** 2


def best_weight(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    first_cost: float,
    second_cost: float,
    square_cost: float = 0.0,
) -> float:
    """λ that minimises s(λ)²·(first_cost + second_cost/λ + square_cost·s(λ)²), a sum of expected errors.

    Args:
        first: C₁.
        second: C₂.
        participation: (n, k, b).
        users: ζ, dimension class and adjacency.
        first_cost: w₁·d·‖A₁C₁⁻¹‖_F², say: error of the first moment at τ₁ = 1, times its importance.
        second_cost: the same of the second at τ₂ = 1.
        square_cost: what grows with τ₁⁴, as in the error of a covariance, at τ₁ = 1 and times σ².

    Raises:
        ValueError: a cost is not positive.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> C, p = identity(4), Participation(4, 1, 4)
    >>> round(best_weight(C, C, p, UserRange(1.0, 2, "zero-out"), 1.0, 4.0), 4)
    2.0
    """
    from scipy.optimize import minimize_scalar

    if not (first_cost > 0 and second_cost > 0):
        raise ValueError(
            f"costs (of the two moments) must be positive; got {first_cost}, {second_cost}. "
            "A moment that does not matter needs no noise of its own: release the other alone."
        )
    start = math.log(default_weight(first, second, participation, users))

    def error(log_weight: float) -> float:
        weight = math.exp(log_weight)
        s = joint_sensitivity(first, second, participation, weight, users).value
        return 2 * math.log(s) + math.log(first_cost + second_cost / weight + square_cost * s**2)

    # The flat part of r_d ends in a kink, so look on a grid first.
    grid = start + np.linspace(-16, 16, 65)
    near = grid[int(np.argmin([error(at) for at in grid]))]
    minimum: Any = minimize_scalar(
        error, bounds=(near - 0.5, near + 0.5), method="bounded", options={"xatol": 1e-10}
    )
    return math.exp(min((start, near, float(minimum.x)), key=error))
