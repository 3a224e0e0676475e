"""The squared error of a banded Toeplitz strategy matrix with scaled columns, and its gradient, in O(n²)."""

from __future__ import annotations

import numpy as np

from fedmf.factorization.algebra import multiply, padded, reciprocal
from fedmf.factorization.objectives.rated_error import RatedError
from fedmf.factorization.objectives.toeplitz_objective import ToeplitzObjective
from fedmf.participation import Participation
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload


class ScaledObjective:
    """log(Q(c)·E(c)) for C = LTT(c)·diag(s)⁻¹ and A = diag(r)·LTT(a)·diag(η).

    With normalised columns s_j = ‖c_0 … c_{n−1−j}‖ and Q = k (for p ≤ b), else s = 1 and Q = ‖S c‖². In both
    cases E = ‖A C⁻¹‖_F², or a power mean of its rows, is `RatedError` of h = 1/c and d = ηs.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A with n rounds.
        normalize: whether columns are normalised; needs p ≤ b.
        order: q ≥ 1 of the power mean.

    Raises:
        ValueError: p > b with normalised columns, or the workload has another horizon.

    References:
        McKenna (2024), Appendix K, asks for this optimisation.
    """

    def __init__(
        self,
        bands: int,
        participation: Participation,
        workload: ToeplitzWorkload,
        normalize: bool,
        order: float = 1.0,
    ) -> None:
        if normalize and bands > participation.min_separation:
            raise ValueError(
                f"p (bands) must be at most b={participation.min_separation} with normalised columns; "
                f"got {bands}. Beyond, normalise the optimum of banded_toeplitz."
            )
        plain = ToeplitzWorkload(workload.name, workload.coefficients)
        self._unscaled = ToeplitzObjective(bands, participation, plain)
        self._normalize, self._k, self._n = normalize, participation.max_participations, workload.rounds
        rates = workload.column_weights
        self._rates = np.ones(self._n) if rates is None else rates
        self._error = RatedError(workload, order)

    def __call__(self, c: Vector) -> tuple[float, Vector]:
        """The value and the gradient, shape (p,); (inf, 0) where the inverse overflows."""
        n, p = self._n, c.size
        h = reciprocal(c, n)
        if not (np.abs(h) < 1e100).all():
            return float("inf"), np.zeros_like(c)
        norms = np.sqrt(self._column_squares(c)) if self._normalize else np.ones(n)
        error, slope_scale, slope_h = self._error(h, self._rates * norms)
        adjoint = multiply(h, slope_h[::-1], n)[::-1]
        slope = -multiply(h, adjoint[::-1], n)[::-1][:p] / error
        if not self._normalize:
            square, slope_square = self._unscaled.square(c)
            return float(np.log(error) + np.log(square)), slope + slope_square / square
        # s_j depends on c_l for j < n − l, with ∂s_j/∂c_l = c_l/s_j.
        reached = np.cumsum(slope_scale * self._rates / norms)[n - p :][::-1]
        return float(np.log(error) + np.log(self._k)), slope + c * reached / error

    def _column_squares(self, c: Vector) -> Vector:
        return np.cumsum(padded(c, self._n) ** 2)[::-1]
