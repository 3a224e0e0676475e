"""‖A C⁻¹‖_F² for a Toeplitz workload with learning rates and a scaled Toeplitz C⁻¹, with its derivatives."""

from __future__ import annotations

import numpy as np

from fedmf.factorization.algebra import multiply, scaled_query_variances
from fedmf.factorization.objectives.objective import PowerMean
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload

#: A value with its derivatives takes O(n²): a quarter of a second here.
LARGEST_RATED = 4096


class RatedError:
    """E(h, d) = Σ_{ij} d_i d_j M_ij K_ij with M = LTT(a)ᵀ·diag(r²)·LTT(a) and K = LTT(h)·LTT(h)ᵀ.

    It is ‖diag(r)·LTT(a)·diag(d)·LTT(h)‖_F²: d = η for C = LTT(1/h), and d = ηs for LTT(1/h)·diag(s)⁻¹.
    Diagonals of M and K are running sums, so that value and derivatives take O(n²) time and O(n) memory
    (O(n²) memory for a workload with row weights that is not of prefix sums).

    Of another order q it is the power mean of the rows' squared norms (`PowerMean`), with ρ for r².

    Args:
        workload: A = diag(r)·LTT(a)·diag(η), of which r and a are used.
        order: q ≥ 1.

    >>> from fedmf.workload import prefix
    >>> RatedError(prefix(2))(np.array([1.0, -0.5]), np.array([1.0, 2.0]))[0]
    5.0
    """

    def __init__(self, workload: ToeplitzWorkload, order: float = 1.0) -> None:
        self._a, self._power = workload.coefficients, PowerMean.of(workload, order)
        self._gram = _WorkloadGram(self._a, self._power.squares)

    def __call__(self, h: Vector, d: Vector) -> tuple[float, Vector, Vector]:
        """E and its derivatives in d and h, each of shape (n,), one diagonal of M and K after the other."""
        n, error, workload = h.size, 0.0, self._gram
        if self._power.order != 1.0:
            workload = _WorkloadGram(self._a, self._power(scaled_query_variances(self._a, h, d)))
        slope_scale, slope_h = np.zeros(n), np.zeros(n)
        for gap in range(n):
            early, late = slice(None, n - gap), slice(gap, None)
            both = 1.0 if gap == 0 else 2.0
            covariance = np.cumsum(h[early] * h[late])
            gram = both * workload.diagonal(gap)
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

    def __init__(self, coefficients: Vector, squares: Vector) -> None:
        self._a, self._squares = coefficients, squares
        self._ones, self._equal = bool((coefficients == 1.0).all()), bool((squares == 1.0).all())
        self._suffix = np.cumsum(squares[::-1])[::-1]
        self._diagonals: dict[int, Vector] = {}

    def diagonal(self, gap: int) -> Vector:
        n = self._a.size
        if self._ones:
            return self._suffix[gap:]
        products = self._a[gap:] * self._a[: n - gap]
        if self._equal:
            return np.cumsum(products)[::-1]
        if gap not in self._diagonals:
            self._diagonals[gap] = multiply(products, self._squares[gap:][::-1], n - gap)[::-1]
        return self._diagonals[gap]
