"""‖A C⁻¹‖_F² for a Toeplitz workload with learning rates and a scaled Toeplitz C⁻¹, with its derivatives."""

from __future__ import annotations

import numpy as np

from fedmf.factorization.algebra import multiply
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload

__all__ = ["LARGEST_RATED", "RatedError"]

#: A value with its derivatives takes O(n²): a quarter of a second here.
LARGEST_RATED = 4096


class RatedError:
    """E(h, d) = Σ_{ij} d_i d_j M_ij K_ij with M = LTT(a)ᵀ·diag(r²)·LTT(a) and K = LTT(h)·LTT(h)ᵀ.

    It is ‖diag(r)·LTT(a)·diag(d)·LTT(h)‖_F²: d = η for C = LTT(1/h), and d = ηs for LTT(1/h)·diag(s)⁻¹.
    Diagonals of M and K are running sums, so that value and derivatives take O(n²) time and O(n) memory
    (O(n²) memory for a workload with row weights that is not of prefix sums).

    Args:
        workload: A = diag(r)·LTT(a)·diag(η), of which r and a are used.

    >>> from fedmf.workload import prefix
    >>> RatedError(prefix(2))(np.array([1.0, -0.5]), np.array([1.0, 2.0]))[0]
    5.0
    """

    def __init__(self, workload: ToeplitzWorkload) -> None:
        self._gram = _WorkloadGram(workload)

    def __call__(self, h: Vector, d: Vector) -> tuple[float, Vector, Vector]:
        """E and its derivatives in d and h, each of shape (n,), one diagonal of M and K after the other."""
        n, error = h.size, 0.0
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
        self._diagonals: dict[int, Vector] = {}

    def diagonal(self, gap: int) -> Vector:
        n = self._a.size
        if self._ones:
            return self._suffix[gap:]
        products = self._a[gap:] * self._a[: n - gap]
        if self._rows is None:
            return np.cumsum(products)[::-1]
        if gap not in self._diagonals:
            self._diagonals[gap] = multiply(products, self._rows[gap:][::-1], n - gap)[::-1]
        return self._diagonals[gap]
