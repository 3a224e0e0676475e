"""E(c) = ‖A C⁻¹‖_F² for C = LTT(c), with its gradient by the adjoint recurrence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.series import multiply, reciprocal
from fedmf.workload import ToeplitzWorkload

__all__ = ["StrategyError"]

Vector = NDArray[np.float64]
_OVERFLOW = 1e200


class StrategyError:
    """Σ_t S_t w_t² with w = LTT(c)⁻¹a and S_t = Σ_{i ≥ t} r_i², for A = diag(r)·LTT(a).

    Args:
        workload: A, without column weights.
        last_query: only the last query counts, S_t = 1: the largest error where r = 1.

    Raises:
        ValueError: A has column weights, or row weights where only the last query counts.

    >>> from fedmf.workload import prefix
    >>> StrategyError(prefix(3))(np.array([1.0, 0.5]))
    (4.0625, array([-7.125, -2.   ]))
    """

    def __init__(self, workload: ToeplitzWorkload, last_query: bool = False) -> None:
        if workload.column_weights is not None:
            raise ValueError(
                f"A (workload) must have no column weights here; got {workload.name!r}. "
                "Choose another mechanism for it."
            )
        if last_query and workload.row_weights is not None:
            raise ValueError(f"A (workload) must have no row weights for max error; got {workload.name!r}.")
        rows = np.ones(workload.rounds) if workload.row_weights is None else workload.row_weights**2
        self._a = workload.coefficients
        self._weights = np.ones(workload.rounds) if last_query else np.cumsum(rows[::-1])[::-1]

    def __call__(self, c: Vector) -> tuple[float, Vector]:
        """E and its gradient, shape of c: ∂E/∂c_j = −2·Σ_t v_t w_{t−j} with v = LTT(c)⁻ᵀ(S w).

        (inf, 0) where w overflows.
        """
        n = self._a.size
        inverse = reciprocal(c, n)
        with np.errstate(over="ignore", invalid="ignore"):
            w = np.cumsum(inverse) if (self._a == 1.0).all() else multiply(self._a, inverse, n)
            weighted = self._weights * w
            error = float(weighted @ w)
        if not error < _OVERFLOW:
            return float("inf"), np.zeros_like(c)
        adjoint = multiply(inverse, weighted[::-1], n)[::-1]
        return error, -2.0 * multiply(w, adjoint[::-1], n)[::-1][: c.size]
