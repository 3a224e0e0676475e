"""The squared error of a banded Toeplitz strategy matrix with scaled columns, and its gradient, in O(n²)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.series import multiply, reciprocal
from fedmf.factorization.toeplitz_objective import ToeplitzObjective
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload

__all__ = ["ScaledObjective"]

Vector = NDArray[np.float64]


class ScaledObjective:
    """log(Q(c)·E(c)) for C = LTT(c)·diag(s)⁻¹ and A = diag(r)·LTT(a)·diag(η).

    With normalised columns s_j = ‖c_0 … c_{n−1−j}‖ and Q = k (for p ≤ b), else s = 1 and Q = ‖S c‖². In both
    cases E = ‖A C⁻¹‖_F² = Σ_{ij} d_i d_j M_ij K_ij with d = ηs, M = LTT(a)ᵀ·diag(r²)·LTT(a),
    K = LTT(h)·LTT(h)ᵀ and h = 1/c. Diagonals of M and K are running sums, so that value and gradient take
    O(n²) time and O(n) memory
    (O(n²) memory for a workload with row weights that is not of prefix sums).

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A with n rounds.
        normalize: whether columns are normalised; needs p ≤ b.

    Raises:
        ValueError: p > b with normalised columns, or the workload has another horizon.

    References:
        McKenna (2024), Appendix K, asks for this optimisation.
    """

    def __init__(
        self, bands: int, participation: Participation, workload: ToeplitzWorkload, normalize: bool
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
        self._gram = _WorkloadGram(workload)

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
        return np.cumsum(np.pad(c, (0, self._n - c.size)) ** 2)[::-1]

    def _error(self, h: Vector, d: Vector) -> tuple[float, Vector, Vector]:
        """E and its derivatives in d and h, one diagonal of M and K after the other."""
        n, error = self._n, 0.0
        slope_scale, slope_h = np.zeros(n), np.zeros(n)
        for gap in range(n):
            early, late = slice(None, n - gap), slice(gap, None)
            both = 1.0 if gap == 0 else 2.0
            covariance = np.cumsum(h[early] * h[late])
            gram = both * self._gram.diagonal(gap)
            weight = gram * (d[early] * d[late])
            error += float(weight @ covariance)
            pull = gram * covariance
            slope_scale[early] += pull * d[late]
            slope_scale[late] += pull * d[early]
            later = np.cumsum(weight[::-1])[::-1]
            slope_h[early] += later * h[late]
            slope_h[late] += later * h[early]
        return error, slope_scale, slope_h


class _WorkloadGram:
    """[M]_{j,j+g} = Σ_{t ≥ j+g} r_t² a_{t−j} a_{t−j−g}, one diagonal at a time."""

    def __init__(self, workload: ToeplitzWorkload) -> None:
        self._a, rows = workload.coefficients, workload.row_weights
        self._rows = None if rows is None else rows**2
        self._ones = bool((self._a == 1.0).all())
        squares = np.ones(workload.rounds) if self._rows is None else self._rows
        self._suffix = np.cumsum(squares[::-1])[::-1]
        self._kept: dict[int, Vector] = {}

    def diagonal(self, gap: int) -> Vector:
        n = self._a.size
        if self._ones:
            return self._suffix[gap:]
        products = self._a[gap:] * self._a[: n - gap]
        if self._rows is None:
            return np.cumsum(products)[::-1]
        if gap not in self._kept:
            self._kept[gap] = multiply(products, self._rows[gap:][::-1], n - gap)[::-1]
        return self._kept[gap]
