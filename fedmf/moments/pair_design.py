"""C₁, C₂ and λ together, for a weighted sum of the errors of the two moments, with a certificate.

Let ν = λζ² and E_i = ‖A_iC_i⁻¹‖_F². The weighted error is s²σ²(w₁m₁E₁ + w₂m₂E₂/λ), and s counts what one user
moves in both releases together. The separately best matrices need not be best together: where they are worst
for different users, columns that one matrix leaves small give room to the other. Both are therefore also
divided by one diagonal matrix (`shared_multipliers`), and for `dense` the pair is sought among all matrices.
The certificate is the ratio to a bound that holds for every pair (`certified_pair_bound`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedmf.factorization import (
    Dense,
    Factorization,
    UserRange,
    build,
    joint_sensitivity,
    query_variances,
)
from fedmf.factorization.bounds import PairBound, certified_pair_bound
from fedmf.factorization.matrices import lower_factor
from fedmf.factorization.sensitivity import row_weights
from fedmf.moments.mechanism import MomentMechanism, jme
from fedmf.moments.weights import best_weight
from fedmf.participation import Participation
from fedmf.typing import Array, Vector
from fedmf.workload import ToeplitzWorkload

LARGEST_CERTIFIED: Final = 2048
"""Horizons beyond it have no certificate, and no shared multipliers."""

_TAPERS: Final = (0.0, 0.25, 0.5, 1.0)


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
        certificate: at least the ratio of this error to that of the best pair of any matrices and λ, up to
            rounding; 1 means optimal among all, 1.02 at most 2 % above. Infinite where n > 2048: not known.
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

    Also tried, and kept where they win: one matrix for both moments, columns of both divided by the same
    numbers, and for `dense` the pair that the lower bound points at, which is optimal for k = 1.

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
    >>> round(made.certificate, 2)
    1.7
    """
    goals = (first, second)
    strategies = [
        build(mechanism, participation, goal.workload, bands, params).factorization for goal in goals
    ]
    C_1, C_2 = strategies
    pairs = [(C_1, C_2), (C_1, C_1), (C_2, C_2)]
    if participation.rounds > LARGEST_CERTIFIED:
        _, best, error = best_pair(pairs, participation, users, first, second, noise_multiplier)
        return JointDesign(best, error, math.inf)
    bound = certified_pair_bound(participation, users, _priced(goals, users))
    if mechanism == "dense":
        pairs.append(_dense(bound))
    _, best, error = best_pair(pairs, participation, users, first, second, noise_multiplier)
    # The best multipliers depend on λ, and λ on them.
    for _ in range(2):
        divided = shared_multipliers(best, goals)
        _, made, lower = best_pair([divided], participation, users, first, second, noise_multiplier)
        if lower >= error * (1 - 1e-9):
            break
        best, error = made, lower
    least = (users.norm_bound * noise_multiplier) ** 2 * bound.value
    return JointDesign(best, error, error / least)


def shared_multipliers(
    made: MomentMechanism, goals: tuple[Goal, Goal]
) -> tuple[Factorization, Factorization]:
    """C₁ and C₂ with their columns divided by the same numbers s, for a smaller weighted error at this λ.

    With C_i diag(s)⁻¹ the error is sᵀNs, N = Σ w_im_i(A_iᵀA_i ∘ (C_iᵀC_i)⁻¹)τ_i² up to a factor: convex. For
    k = 1 the joint sensitivity is at most 1 if and only if s_j² ≥ φ_j, what round j moves, and the minimum is
    found. For k > 1 φ_j counts the worst pattern through j, and limits that fall along the horizon are tried.

    Args:
        made: a mechanism with noises of their own for both moments.
        goals: of the first and of the second moment.
    """
    from scipy.optimize import minimize

    C_1, C_2, weight = made.first, made.second, made.weight
    if C_2 is None or weight is None:
        raise ValueError(f"method (of the mechanism) must be jme; got {made.method.name}.")
    part, users = made.participation, made.users
    prices = np.array([goal.importance * goal.noises for goal in goals]) / np.array([1.0, weight])
    square = sum(
        price * _column_errors(C, goal) for price, goal, C in zip(prices, goals, (C_1, C_2), strict=True)
    )
    reached = _column_reach(C_1, part), _column_reach(C_2, part)
    moved = users.reach(reached[0], reached[1], weight * users.norm_bound**2)
    slope = np.arange(part.rounds) / part.rounds

    def error(s: Vector) -> tuple[float, Vector]:
        pull = square @ s
        return float(s @ pull), 2 * pull

    tried: list[tuple[float, tuple[Factorization, Factorization]]] = []
    for taper in _TAPERS if part.max_participations > 1 else _TAPERS[:1]:
        least = np.sqrt(moved / moved.max()) * np.exp(-taper * slope)
        found: Any = minimize(
            error, least, jac=True, method="L-BFGS-B", bounds=[(low, None) for low in least]
        )
        pair = C_1.columns_divided_by(found.x), C_2.columns_divided_by(found.x)
        s = joint_sensitivity(*pair, part, weight, users).value
        tried.append((s * s * float(found.fun), pair))
    return min(tried, key=lambda entry: entry[0])[1]


def _column_errors(C: Factorization, goal: Goal) -> Array:
    """AᵀA ∘ (CᵀC)⁻¹, shape (n, n)."""
    from scipy.linalg import solve_triangular

    inverse = solve_triangular(C.materialize(), np.eye(C.rounds), lower=True)
    A = goal.workload.materialize()
    return (A.T @ A) * (inverse @ inverse.T)


def _column_reach(C: Factorization, participation: Participation) -> Vector:
    """Σ_{j∈π} |[CᵀC]_ij| for the worst pattern through each i, or a little more, shape (n,)."""
    k, b = participation.max_participations, participation.min_separation
    if k == 1 or C.bands <= b:
        return C.gram_diagonal(0)
    columns = C.materialize()
    return row_weights(np.abs(columns.T @ columns), k, b)


def _dense(bound: PairBound) -> tuple[Factorization, Factorization]:
    """The pair that the bound points at."""
    first, second = (Dense(lower_factor(gram)) for gram in bound.grams)
    return first, second


def _priced(goals: tuple[Goal, Goal], users: UserRange) -> tuple[Array, Array]:
    """W₁ and W₂ for ζ = 1: the second moment is in units of ζ²."""
    first, second = (np.sqrt(goal.importance * goal.noises) * goal.workload.materialize() for goal in goals)
    return first, users.norm_bound * second


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
