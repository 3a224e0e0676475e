"""C₁, C₂ and λ together, for a weighted sum of the errors of the two moments, with a certificate.

Let C₁ and C₂ be scaled to sens 1, E_i = ‖A_iC_i⁻¹‖_F² and ν = λζ². The weighted error is

    s²σ²(w₁ m₁ E₁ + w₂ m₂ E₂/λ),     ζ² φ(1, 1) ≤ s² ≤ ζ² max_π Σ_i φ(r_{1,i}, r_{2,i}),

the lower end wherever one pattern is worst for both matrices (the earliest, for non-increasing Toeplitz C).
The lower end depends on C₁ and C₂ through E₁ and E₂ alone: replacing s² by it, the best pair is the pair of
separately best matrices. So these two with the best λ are within `certificate` of every pair of matrices of
the same class. Where both ends agree they are optimal: for p ≤ b, for k = 1, and under zero-out adjacency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmf.factorization import Factorization, UserRange, build, query_variances, stated_sensitivity
from fedmf.moments.mechanism import MomentMechanism, jme
from fedmf.moments.weights import best_weight
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload


@dataclass(frozen=True)
class Goal:
    """What a moment is to be good for.

    Args:
        workload: A, n rounds.
        noises: m, how many numbers are released: d for the first moment, `SecondMoment.size` for the second.
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
                f"m and w (noises, importance) must be positive; got {self.noises} and {self.importance}."
            )


@dataclass(frozen=True, eq=False)
class JointDesign:
    """A mechanism for both moments.

    Args:
        mechanism: C₁, C₂, λ and the noise levels.
        error: w₁m₁τ₁²‖A₁C₁⁻¹‖² + w₂m₂τ₂²‖A₂C₂⁻¹‖².
        certificate: at least the ratio of this error to that of the best pair in the class of both matrices,
            where one pattern is worst for every pair of the class; 1 means optimal in it.
    """

    mechanism: MomentMechanism
    error: float
    certificate: float


def joint_design(
    participation: Participation,
    users: UserRange,
    noise_multiplier: float,
    first: Goal,
    second: Goal,
    mechanism: str = "banded-toeplitz",
    bands: int | None = None,
    params: Mapping[str, float | int] | None = None,
) -> JointDesign:
    """The best C₁, C₂ of a mechanism name for their workloads, with the λ that minimises the weighted error.

    Also tried: one matrix for both moments, which has the smaller joint sensitivity (it is equal to φ), and
    kept where it wins.

    Args:
        participation: (n, k, b).
        users: ζ, dimension class, adjacency.
        noise_multiplier: σ.
        first: goal of the first moment.
        second: goal of the second moment.
        mechanism: a name of `fedmf.factorization.names()`.
        bands: p, where the mechanism takes it.
        params: other parameters, where it takes them.

    Raises:
        ValueError: as `fedmf.factorization.build` and `jme`.

    >>> from fedmf.workload import average
    >>> part, goal = Participation(64, 2, 32), Goal(average(64), 3)
    >>> made = joint_design(part, UserRange(1.0, 2), 1.0, goal, Goal(average(64), 6), bands=8)
    >>> round(made.certificate, 6)
    1.0
    """
    strategies = [
        build(mechanism, participation, goal.workload, bands, params).factorization
        for goal in (first, second)
    ]
    C_1, C_2 = strategies
    pairs = [(C_1, C_2), (C_1, C_1), (C_2, C_2)]
    _, best, error = best_pair(pairs, participation, users, first, second, noise_multiplier)
    bound = _least_error(participation, users, noise_multiplier, first, second, strategies)
    return JointDesign(best, error, error / bound)


def best_pair(
    pairs: Sequence[tuple[Factorization, Factorization]],
    participation: Participation,
    users: UserRange,
    first: Goal,
    second: Goal,
    noise_multiplier: float = 1.0,
) -> tuple[int, MomentMechanism, float]:
    """Which of some (C₁, C₂) has the smallest weighted error, each with its own best λ.

    Args:
        pairs: candidates.
        participation: (n, k, b).
        users: ζ, dimension class, adjacency.
        first: goal of the first moment.
        second: goal of the second moment.
        noise_multiplier: σ.

    Returns:
        Index of the pair, the mechanism and its error w₁m₁τ₁²‖A₁C₁⁻¹‖² + w₂m₂τ₂²‖A₂C₂⁻¹‖².

    >>> from fedmf.factorization import identity, square_root
    >>> from fedmf.workload import exponential, prefix
    >>> goals = Goal(prefix(64), 1), Goal(exponential(0.5, 64), 1)
    >>> pairs = [(identity(64), identity(64)), (square_root(64), identity(64))]
    >>> index, _, _ = best_pair(pairs, Participation(64, 1, 64), UserRange(1.0, 1), *goals)
    >>> index
    1
    """
    tried: list[tuple[float, int, MomentMechanism]] = []
    for index, (C_1, C_2) in enumerate(pairs):
        costs = [
            goal.importance * goal.noises * float(query_variances(C, goal.workload).sum())
            for goal, C in zip((first, second), (C_1, C_2), strict=True)
        ]
        weight = best_weight(C_1, C_2, participation, users, *costs)
        made = jme(C_1, C_2, participation, users, noise_multiplier, weight)
        _, second_std = made.second_noise
        tried.append((costs[0] * made.first_std**2 + costs[1] * second_std**2, index, made))
    error, index, best = min(tried, key=lambda entry: entry[:2])
    return index, best, error


def _least_error(
    participation: Participation,
    users: UserRange,
    sigma: float,
    first: Goal,
    second: Goal,
    strategies: Sequence[Factorization],
) -> float:
    """min over λ of ζ²φ(1, 1)σ²(…) with the separately best matrices."""
    from scipy.optimize import minimize_scalar

    costs = [
        goal.importance
        * goal.noises
        * float(query_variances(C, goal.workload).sum())
        * stated_sensitivity(C, participation).value ** 2
        for goal, C in zip((first, second), strategies, strict=True)
    ]
    one, zeta = np.ones(1), users.norm_bound

    def log_error(log_nu: float) -> float:
        nu = float(np.exp(log_nu))
        return float(np.log(users.reach(one, one, nu)[0] * (costs[0] + costs[1] * zeta**2 / nu)))

    grid = np.linspace(-20, 20, 401) + 0.5 * np.log(costs[1] * zeta**2 / costs[0])
    near = grid[int(np.argmin([log_error(at) for at in grid]))]
    around = (near - 0.1, near + 0.1)
    minimum: Any = minimize_scalar(log_error, bounds=around, method="bounded", options={"xatol": 1e-12})
    return float(zeta**2 * sigma**2 * np.exp(min(log_error(near), float(minimum.fun))))
