"""Joint Moment Estimation and its baselines as values: two strategy matrices and two noise levels.

Every method here releases A₁(X + C₁⁻¹Z₁) and, from its own noise, A₂(X•X + C₂⁻¹Z₂), with absolute noise
standard deviations τ₁ (of Z₁) and τ₂ (of Z₂); post-processing has no second noise and squares the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmf.factorization import (
    Factorization,
    Sensitivity,
    UserRange,
    free_weight,
    joint_sensitivity,
    stated_sensitivity,
)
from fedmf.participation import Participation

__all__ = [
    "MomentMechanism",
    "best_weight",
    "checked_multiplier",
    "default_weight",
    "jme",
    "separate_sensitivities",
]


@dataclass(frozen=True, eq=False)
class MomentMechanism:
    """How the two moments of a stream are made private.

    Args:
        name: "jme", "ime", "cs", "pp" or "pp-debiased".
        first: C₁.
        second: C₂; None for post-processing.
        first_std: τ₁, the absolute standard deviation of the entries of Z₁ (units of x).
        second_std: τ₂, that of Z₂ (units of x²); None for post-processing.
        participation: (n, k, b).
        users: ζ, dimension class, adjacency.
        noise_multiplier: σ; the pair of releases is σ-Gaussian: as private as N(0, σ²) on sensitivity 1.
        sensitivity: s, or that of the first moment where only it is released; exact or a labelled bound.
        weight: λ of JME, the share α of IME, τ of CS; None for post-processing.
    """

    name: str
    first: Factorization
    second: Factorization | None
    first_std: float
    second_std: float | None
    participation: Participation
    users: UserRange
    noise_multiplier: float
    sensitivity: Sensitivity
    weight: float | None = None

    @property
    def rounds(self) -> int:
        """n."""
        return self.participation.rounds

    def multiplier_under(self, participation: Participation) -> float:
        """σ towards users who took part as this contract says: the levels τ₁, τ₂ over their own sensitivity.

        A stricter contract than the planned one (fewer participations, further apart) gives a larger σ.
        """
        first, second, users = self.first, self.second, self.users
        if self.name == "jme":
            assert second is not None
            assert self.weight is not None
            s = joint_sensitivity(first, second, participation, self.weight, users).value
            return self.first_std / s
        if self.name == "ime":
            assert second is not None
            assert self.second_std is not None
            s1, s2 = separate_sensitivities(first, second, participation, users)
            return 1 / math.hypot(s1.value / self.first_std, s2.value / self.second_std)
        planned = stated_sensitivity(first, self.participation).value
        return self.noise_multiplier * planned / stated_sensitivity(first, participation).value


def jme(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    noise_multiplier: float,
    weight: float | None = None,
) -> MomentMechanism:
    """Joint Moment Estimation: both moments under one sensitivity s(λ); τ₁ = sσ, τ₂ = sσ/√λ.

    Args:
        first: C₁.
        second: C₂.
        participation: (n, k, b).
        users: ζ, dimension class and adjacency.
        noise_multiplier: σ > 0.
        weight: λ; None takes `default_weight`.

    Raises:
        ValueError: λ ≤ 0 or σ ≤ 0.

    References:
        Kalinin, Upadhyay and Lampert (2025), Algorithms 1 and 3.

    >>> from fedmf.factorization import identity
    >>> C, p = identity(4), Participation(4, 1, 4)
    >>> made = jme(C, C, p, UserRange(1.0, 2, "replace-one"), noise_multiplier=1.0)
    >>> made.first_std, round(made.second_std, 4)   # the first moment alone needs 2 as well
    (2.0, 2.8284)
    """
    sigma = checked_multiplier(noise_multiplier)
    chosen = default_weight(first, second, participation, users) if weight is None else weight
    if not 0 < chosen < math.inf:
        raise ValueError(f"lambda (weight of the second moment) must be positive; got {weight}.")
    s = joint_sensitivity(first, second, participation, chosen, users)
    std = s.value * sigma
    return MomentMechanism(
        "jme", first, second, std, std / math.sqrt(chosen), participation, users, sigma, s, chosen
    )


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
) -> float:
    """λ that minimises s(λ)²·(first_cost + second_cost/λ), the weighted sum of the two expected errors.

    Args:
        first: C₁.
        second: C₂.
        participation: (n, k, b).
        users: ζ, dimension class and adjacency.
        first_cost: w₁·d·‖A₁C₁⁻¹‖_F², say: error of the first moment at τ₁ = 1, times its importance.
        second_cost: the same of the second at τ₂ = 1.

    Raises:
        ValueError: a cost is not positive.

    >>> from fedmf.factorization import identity
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
        return 2 * math.log(s) + math.log(first_cost + second_cost / weight)

    # The flat part of r_d ends in a kink, so look on a grid first.
    grid = start + np.linspace(-16, 16, 65)
    near = grid[int(np.argmin([error(at) for at in grid]))]
    found: Any = minimize_scalar(
        error, bounds=(near - 0.5, near + 0.5), method="bounded", options={"xatol": 1e-10}
    )
    return math.exp(min((start, near, float(found.x)), key=error))


def separate_sensitivities(
    first: Factorization, second: Factorization, participation: Participation, users: UserRange
) -> tuple[Sensitivity, Sensitivity]:
    """The sensitivity of each moment alone: ‖x − y‖ ≤ 2ζ and ‖x⊗x − y⊗y‖ ≤ √2ζ² (d ≥ 2) or ζ² (d = 1)."""
    zeta = users.norm_bound
    if users.adjacency == "replace-one":
        reach = 2 * zeta, zeta**2 * (math.sqrt(2) if users.dimension > 1 else 1)
    else:
        reach = zeta, zeta**2
    s1, s2 = (stated_sensitivity(C, participation) for C in (first, second))
    return replace(s1, value=s1.value * reach[0]), replace(s2, value=s2.value * reach[1])


def checked_multiplier(sigma: float) -> float:
    """σ, or a refusal where it is not positive and finite."""
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma (noise multiplier) must be positive and finite; got {sigma}.")
    return sigma
