"""‖A C⁻¹‖_F², or a power mean of the query variances, for C = LTT(c), with its gradient."""

from __future__ import annotations

import numpy as np

from fedmf.factorization.algebra import multiply, product, reciprocal
from fedmf.factorization.objectives.objective import PowerMean
from fedmf.factorization.objectives.rated_error import LARGEST_RATED, RatedError
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload

_OVERFLOW, _OVERFLOWING_INVERSE = 1e200, 1e100


class StrategyError:
    """Σ_t S_t w_t² with w = LTT(c)⁻¹a and S_t = Σ_{i ≥ t} ρ_i, for A = diag(r)·LTT(a).

    ρ = r² gives ‖A C⁻¹‖_F²; of another order it is `PowerMean` of the variances v_t = Σ_{s ≤ t} w_s². With
    learning rates, A = diag(r)·LTT(a)·diag(η), it is `RatedError`, which takes O(n²).

    Args:
        workload: A; with column weights of at most 4096 rounds.
        order: q ≥ 1 of the power mean of r_t² v_t.

    Raises:
        ValueError: A has column weights and n > 4096.

    >>> from fedmf.workload import prefix
    >>> StrategyError(prefix(3))(np.array([1.0, 0.5]))
    (4.0625, array([-7.125, -2.   ]))
    """

    def __init__(self, workload: ToeplitzWorkload, order: float = 1.0) -> None:
        rates = workload.column_weights
        if rates is not None and workload.rounds > LARGEST_RATED:
            raise ValueError(
                f"n (rounds) must be at most {LARGEST_RATED} to optimise for column weights; got "
                f"{workload.rounds}. Optimise without them: errors include them for every C."
            )
        self._rates, self._rated = rates, None if rates is None else RatedError(workload, order)
        self._a, self._power = workload.coefficients, PowerMean.of(workload, order)
        self._prefix = bool((self._a == 1.0).all())

    def __call__(self, c: Vector, inverse: Vector | None = None) -> tuple[float, Vector]:
        """E and its gradient, shape of c: ∂E/∂c_j = −2·Σ_t v_t w_{t−j} with v = LTT(c)⁻ᵀ(S w).

        (inf, 0) where w overflows.

        Args:
            c: the first column of C.
            inverse: that of C⁻¹, shape (n,), where it is known.
        """
        n = self._a.size
        inverse = reciprocal(c, n) if inverse is None else inverse
        if self._rated is not None and self._rates is not None:
            return self._with_rates(self._rated, self._rates, inverse, c.size)
        with np.errstate(over="ignore", invalid="ignore"):
            w = np.cumsum(inverse) if self._prefix else multiply(self._a, inverse, n)
            rows = self._power(np.cumsum(w * w))
            weighted = np.cumsum(rows[::-1])[::-1] * w
            error = float(weighted @ w)
        if not error < _OVERFLOW:
            return float("inf"), np.zeros_like(c)
        later = weighted[::-1]
        if self._prefix:  # w is h/(1 − x)
            slope = np.cumsum(product((inverse, inverse, later), n))
        else:
            slope = product((inverse, w, later), n)
        return error, -2.0 * slope[::-1][: c.size]

    @staticmethod
    def _with_rates(rated: RatedError, rates: Vector, inverse: Vector, terms: int) -> tuple[float, Vector]:
        """From h·c = 1 follows dh = −h·h·dc as power series; its adjoint carries the slope from h to c."""
        if not (np.abs(inverse) < _OVERFLOWING_INVERSE).all():
            return float("inf"), np.zeros(terms)
        n = inverse.size
        error, _, slope = rated(inverse, rates)
        adjoint = multiply(inverse, slope[::-1], n)[::-1]
        return error, -multiply(inverse, adjoint[::-1], n)[::-1][:terms]
