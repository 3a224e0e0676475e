"""Cheap questions about the sensitivity, which searches ask of every candidate."""

from __future__ import annotations

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.sensitivity import (
    ROUNDING,
    StrategyProblem,
    comb_sum,
    methods,
    pair_bound_square,
)
from fedmf.participation import Participation


def quick_upper_bound(factorization: Factorization, participation: Participation) -> float:
    """The cheapest sound bound on the sensitivity, in O(n·k) for Toeplitz C."""
    return next(methods(StrategyProblem(factorization, participation))).value


def earliest_is_worst(c: Vector, max_participations: int, min_separation: int) -> bool:
    """Return whether the pair bound proves that no pattern is worse than {0, b, 2b, …}.

    It counts as proved up to a relative 1e-12, the rounding of the sums.

    >>> import numpy as np
    >>> earliest_is_worst(np.array([1.0, 0.2, 0.4, 0.1]), 2, 2)
    True
    >>> earliest_is_worst(np.array([1.0, 0.2, 0.1, 0.4]), 2, 2)
    False
    """
    earliest = comb_sum(c, max_participations, min_separation)
    bound = pair_bound_square(c, max_participations, min_separation)
    return bound <= float(earliest @ earliest) * (1 + ROUNDING) ** 2
