"""The choice of λ, for a purpose or for a weighted error, and of the best pair (C₁, C₂).

Plans of streams and of runs with second moments call these functions; nothing here sees data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedmf.matrices.factorization import Factorization
from fedmf.matrices.joint_sensitivity import UserRange, joint_sensitivity
from fedmf.matrices.second_moment import SecondMoment
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.moments.methods import MomentMechanism, default_weight, jme
from fedmf.participation import Participation

#: What λ may be chosen for.
AIMS: Final = ("mean", "covariance", "density")
#: By how much the standard error of the mean may grow where λ is chosen for it.
_GROWTH: Final = 1.05


def weight_for(
    aim: str,
    strategies: Sequence[Factorization],
    participation: Participation,
    users: UserRange,
    moment: SecondMoment,
    errors: tuple[float, float],
    sigma: float,
) -> float:
    """λ for the purpose of a release.

    * mean: the largest λ with which the mean's standard error is at most 1.05 times its value for
      the mean alone.
    * covariance: the one with the least expected squared error of the covariance,
      2(d+1)τ₁²q₁‖μ‖² + mτ₂²q₂ + d(d+1)τ₁⁴q₁² for the full one, 4τ₁²q₁‖μ‖² + dτ₂²q₂ + 2dτ₁⁴q₁² for
      variances, at ‖μ‖² = ζ²/2: half of what it can be, as the true mean must not be used.
    * density: the one with the least expected Kullback–Leibler divergence of N(μ̂, Σ̂) from N(μ, Σ)
      to second order, d·τ₁²q₁/(2s²) + E‖Σ̂ − Σ‖²/(4s⁴), at Σ = s²·I with s² = ζ²/(2d), the other
      half.

    Args:
        aim: a name of `AIMS`.
        strategies: C₁ and C₂, or one for both.
        participation: (n, k, b).
        users: ζ, dimension class and adjacency.
        moment: the second one, which gives a covariance.
        errors: q₁ and q₂, variances of the released moments, as means, at τ₁ = τ₂ = 1.
        sigma: σ.

    Raises:
        ValueError: the aim is unknown, or the second moment gives no covariance.
    """
    first = strategies[0]
    second = strategies[-1]
    if aim not in AIMS or (aim != "mean" and not moment.gives_covariance):
        raise ValueError(
            "weight must be a number or mean, or where there is a covariance"
            f" {' or '.join(AIMS[1:])}; got {aim!r}."
        )
    if aim == "mean":
        return _within_growth(first, second, participation, users)
    d = moment.dimension
    q_1, q_2 = errors
    of_mean = 2
    if moment.size > d:  # the full covariance
        of_mean = d + 1
    square_cost = d * of_mean * (sigma * q_1) ** 2
    if aim == "density":
        of_mean += 1
    return best_weight(
        first,
        second,
        participation,
        users,
        first_cost=of_mean * users.norm_bound**2 * q_1,
        second_cost=moment.size * q_2,
        square_cost=square_cost,
    )


def _within_growth(
    first: Factorization, second: Factorization, participation: Participation, users: UserRange
) -> float:
    """The largest λ that lets the noise of the first moment grow by no more than is allowed."""
    from scipy.optimize import brentq

    reach = 1
    if users.adjacency == "replace-one":
        reach = 2
    most = _GROWTH * reach * users.norm_bound * sensitivity_of(first, participation).value
    start = math.log(default_weight(first, second, participation, users))

    def excess(log_weight: float) -> float:
        s = joint_sensitivity(first, second, participation, math.exp(log_weight), users)
        return s.value / most - 1

    if excess(start - 16) >= 0:  # a bound of both that is larger than that of the first alone
        return math.exp(start)
    log_weight: Any = brentq(excess, start - 16, start + 16)
    return math.exp(log_weight)


def best_weight(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    first_cost: float,
    second_cost: float,
    square_cost: float = 0.0,
) -> float:
    """λ that minimizes s(λ)²·(first_cost + second_cost/λ + square_cost·s(λ)²).

    That is a sum of expected errors.

    Args:
        first: C₁.
        second: C₂.
        participation: (n, k, b).
        users: ζ, dimension class and adjacency.
        first_cost: w₁·d·‖A₁C₁⁻¹‖_F², say: error of the first moment at τ₁ = 1, times its
            importance.
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
            "If one moment does not matter, release only the other one."
        )
    start = math.log(default_weight(first, second, participation, users))

    def error(log_weight: float) -> float:
        weight = math.exp(log_weight)
        s = joint_sensitivity(first, second, participation, weight, users).value
        return 2 * math.log(s) + math.log(first_cost + second_cost / weight + square_cost * s**2)

    # The flat part of r_d ends in a kink, so look on a grid first.
    grid = start + np.linspace(-16, 16, 65)
    near = min(grid, key=error)
    minimum: Any = minimize_scalar(
        error, bounds=(near - 0.5, near + 0.5), method="bounded", options={"xatol": 1e-10}
    )
    return math.exp(min((start, near, float(minimum.x)), key=error))


@dataclass(frozen=True)
class Goal:
    """The purpose of a moment: the error by which it is judged.

    Args:
        workload: A, n rounds.
        noises: m, how many numbers are released: d for the first moment, `SecondMoment.size` for
            the second.
        importance: w > 0, the price of one unit of its squared error.

    Raises:
        ValueError: m or w is not positive.
    """

    workload: ToeplitzWorkload
    noises: int
    importance: float = 1.0

    def __post_init__(self) -> None:
        if self.noises < 1 or not 0 < self.importance < np.inf:
            raise ValueError(
                f"m and w (noises, importance) must be positive; got {self.noises} and"
                f" {self.importance}."
            )

    def cost(self, C: Factorization) -> float:
        """w·m·‖A C⁻¹‖_F², the weighted squared error at τ = 1."""
        return self.importance * self.noises * float(query_variances(C, self.workload).sum())


def best_pair(
    pairs: Sequence[tuple[Factorization, Factorization]],
    participation: Participation,
    users: UserRange,
    first: Goal,
    second: Goal,
    noise_multiplier: float = 1.0,
) -> tuple[int, MomentMechanism, float]:
    """The (C₁, C₂) with the smallest weighted error, each with its own best λ.

    Args:
        pairs: candidates.
        participation: (n, k, b).
        users: ζ, dimension class, adjacency.
        first: goal of the first moment.
        second: goal of the second moment.
        noise_multiplier: σ.

    Returns:
        Index of the pair, the mechanism and its error w₁m₁τ₁²‖A₁C₁⁻¹‖² + w₂m₂τ₂²‖A₂C₂⁻¹‖².

    >>> from fedmf.mechanisms.closed_forms import identity, square_root
    >>> from fedmf.mechanisms.workload import exponential, prefix
    >>> goals = Goal(prefix(64), 1), Goal(exponential(0.5, 64), 1)
    >>> pairs = [(identity(64), identity(64)), (square_root(64), identity(64))]
    >>> index, _, _ = best_pair(pairs, Participation(64, 1, 64), UserRange(1.0, 1), *goals)
    >>> index
    1
    """
    candidates: list[tuple[int, MomentMechanism, float]] = []
    for index, (C_1, C_2) in enumerate(pairs):
        first_cost = first.cost(C_1)
        second_cost = second.cost(C_2)
        weight = best_weight(C_1, C_2, participation, users, first_cost, second_cost)
        mechanism = jme(C_1, C_2, participation, users, noise_multiplier, weight)
        _, second_std = mechanism.second_noise
        error = first_cost * mechanism.first_std**2 + second_cost * second_std**2
        candidates.append((index, mechanism, error))
    return min(candidates, key=lambda candidate: candidate[2])
