"""E(c) = ‖A C⁻¹‖_F² for C = LTT(c), with its gradient by the adjoint recurrence."""

from __future__ import annotations

import numpy as np

from fedmf.factorization.algebra import multiply, reciprocal
from fedmf.factorization.objectives.rated_error import LARGEST_RATED, RatedError
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload

__all__ = ["StrategyError"]

_OVERFLOW, _OVERFLOWING_INVERSE = 1e200, 1e100


class StrategyError:
    """Σ_t S_t w_t² with w = LTT(c)⁻¹a and S_t = Σ_{i ≥ t} r_i², for A = diag(r)·LTT(a).

    With learning rates, A = diag(r)·LTT(a)·diag(η), it is `RatedError`, which takes O(n²).

    Args:
        workload: A; with column weights of at most 4096 rounds.
        last_query: only the last query counts, S_t = 1: the largest error where r = η = 1.

    Raises:
        ValueError: A has weights where only the last query counts, or column weights and n > 4096.

    >>> from fedmf.workload import prefix
    >>> StrategyError(prefix(3))(np.array([1.0, 0.5]))
    (4.0625, array([-7.125, -2.   ]))
    """

    def __init__(self, workload: ToeplitzWorkload, last_query: bool = False) -> None:
        rates = workload.column_weights
        if last_query and not (workload.row_weights is None and rates is None):
            raise ValueError(f"A (workload) must have no weights for max error; got {workload.name!r}.")
        if rates is not None and workload.rounds > LARGEST_RATED:
            raise ValueError(
                f"n (rounds) must be at most {LARGEST_RATED} to optimise for column weights; got "
                f"{workload.rounds}. Optimise without them: errors include them for every C."
            )
        self._rates, self._rated = rates, None if rates is None else RatedError(workload)
        rows = np.ones(workload.rounds) if workload.row_weights is None else workload.row_weights**2
        self._a = workload.coefficients
        self._weights = np.ones(workload.rounds) if last_query else np.cumsum(rows[::-1])[::-1]

    def __call__(self, c: Vector) -> tuple[float, Vector]:
        """E and its gradient, shape of c: ∂E/∂c_j = −2·Σ_t v_t w_{t−j} with v = LTT(c)⁻ᵀ(S w).

        (inf, 0) where w overflows.
        """
        n = self._a.size
        inverse = reciprocal(c, n)
        if self._rated is not None and self._rates is not None:
            return self._with_rates(self._rated, self._rates, inverse, c.size)
        with np.errstate(over="ignore", invalid="ignore"):
            w = np.cumsum(inverse) if (self._a == 1.0).all() else multiply(self._a, inverse, n)
            weighted = self._weights * w
            error = float(weighted @ w)
        if not error < _OVERFLOW:
            return float("inf"), np.zeros_like(c)
        adjoint = multiply(inverse, weighted[::-1], n)[::-1]
        return error, -2.0 * multiply(w, adjoint[::-1], n)[::-1][: c.size]

    @staticmethod
    def _with_rates(rated: RatedError, rates: Vector, inverse: Vector, terms: int) -> tuple[float, Vector]:
        """From h·c = 1 follows dh = −h·h·dc as power series; its adjoint carries the slope from h to c."""
        if not (np.abs(inverse) < _OVERFLOWING_INVERSE).all():
            return float("inf"), np.zeros(terms)
        n = inverse.size
        error, _, slope = rated(inverse, rates)
        adjoint = multiply(inverse, slope[::-1], n)[::-1]
        return error, -multiply(inverse, adjoint[::-1], n)[::-1][:terms]
