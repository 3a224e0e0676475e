"""Which of some (C₁, C₂) is best for the weighted errors of both moments, each with its best λ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmf.mechanisms.errors import query_variances
from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.moments.mechanism import MomentMechanism, jme
from fedmf.moments.weights import best_weight
from fedmf.participation import Participation


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

    >>> from fedmf.mechanisms.closed_forms import identity, square_root
    >>> from fedmf.mechanisms.workload import exponential, prefix
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
