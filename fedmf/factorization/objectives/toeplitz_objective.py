"""The squared error of a banded Toeplitz strategy matrix, with gradient and Hessian, at any horizon."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedmf.factorization.algebra import lagged_products, multiply, padded, reciprocal
from fedmf.factorization.objectives.objective import PowerMean
from fedmf.participation import Participation
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload

# Up to this horizon every term of the sum is computed.
_SHORT = 4096
# w has settled when its last p terms are this close to its limit, relative to the largest.
_SETTLED = 1e-12
_OVERFLOW = 1e200
_BLOCK_ENTRIES = 4_000_000


class ToeplitzObjective:
    """log(Q(c)·E(c)) with Q = ‖S c‖² and E = Σ_t S_t w_t², w = LTT(c)⁻¹a, S_t = Σ_{i ≥ t} r_i².

    S c = Σ_{l<k} (c shifted by lb), the sum of the earliest columns, has the sensitivity as norm for p ≤ b
    and for non-negative non-increasing c. E is ‖A C⁻¹‖_F² for A = diag(r)·LTT(a).

    Where a_t is constant from some t on, w_t tends to w_∞ = a_∞/Σc if c is stable. The sum is then
    computed to the first m terms and closed by w_∞²·Σ_{t ≥ m} S_t, with m doubled until the last p terms lie
    within 1e-12 of w_∞, relative to the largest term. An unstable c is computed to the full horizon, or until
    it overflows.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A with n rounds and no column weights.
        order: q ≥ 1 of a power mean of r_t²·Σ_{s ≤ t} w_s² in the place of E (`PowerMean`); every term is
            then computed, and there is no Hessian.

    Raises:
        ValueError: the workload has another horizon or column weights.

    References:
        McKenna (2024), Section 3.2, Proposition D.1 and Appendix I (which fixes m = 2p).
    """

    def __init__(
        self, bands: int, participation: Participation, workload: ToeplitzWorkload, order: float = 1.0
    ) -> None:
        n = participation.rounds
        if workload.rounds != n:
            raise ValueError(f"A (workload) must have n={n} rounds; got {workload.rounds}.")
        if workload.column_weights is not None:
            raise ValueError(
                f"A (workload) must have no column weights here; got {workload.name!r}. "
                "Learning rates are supported in errors, not in the objective of a Toeplitz C."
            )
        self.bands, self.participation, self.workload = bands, participation, workload
        a = workload.coefficients
        self._limit = float(a[-1])
        away = np.flatnonzero(np.abs(a - self._limit) > 1e-15 * np.abs(a).max())
        settled = (int(away[-1]) + 1 if away.size else 0) + bands
        self._power, self.has_hessian = PowerMean.of(workload, order), order == 1.0
        self._terms = n if n <= _SHORT or not self.has_hessian else min(n, max(1024, 4 * bands, 2 * settled))
        rows = workload.row_weights
        self._suffix = None if rows is None else np.cumsum(rows[::-1] ** 2)[::-1]
        self._counts = _column_lengths(bands, participation)

    def __call__(self, c: Vector) -> tuple[float, Vector]:
        """The value and the gradient, shape (p,); (inf, 0) where w overflows.

        With v = LTT(c)⁻ᵀ(S w), ∂E/∂c_j = −2·Σ_t v_t w_{t−j}.
        """
        inverse, w = self._settled(c)
        m = w.size
        with np.errstate(over="ignore", invalid="ignore"):
            weighted = (self._weights(m) if self.has_hessian else self._powered(w)) * w
            limit = self._limit / c.sum() if m < self.workload.rounds else 0.0
            error = float(weighted @ w) + limit**2 * self._rest(m)
        square, slope_square = self.square(c)
        if not (np.isfinite(error) and error < _OVERFLOW and square > 0):
            return float("inf"), np.zeros_like(c)
        adjoint = multiply(inverse, weighted[::-1], m)[::-1]
        slope = -2.0 * lagged_products(adjoint, w, c.size)
        if limit:
            slope -= 2.0 * limit**2 / c.sum() * self._rest(m)
        return float(np.log(square) + np.log(error)), slope_square / square + slope / error

    def hessian(self, c: Vector) -> NDArray[np.float64]:
        """The Hessian where w does not overflow, shape (p, p).

        With u = LTT(c)⁻¹w and q = LTT(c)⁻¹u,
        ∂²E/∂c_i∂c_j = 2·Σ_t S_t u_{t−i}u_{t−j} + 4·Σ_t S_t w_t q_{t−i−j}.
        """
        p = c.size
        inverse, w = self._settled(c)
        m = w.size
        weights = self._weights(m)
        u = multiply(inverse, w, m)
        q = multiply(inverse, u, m)
        curved = 4.0 * lagged_products(weights * w, q, min(2 * p - 1, m))
        curved = padded(curved, 2 * p - 1)
        second = sliding_window_view(curved, p) + 2.0 * _shifted_gram(u, weights, p)
        error, slope = float((weights * w) @ w), -2.0 * lagged_products(weights * w, u, p)
        if m < self.workload.rounds and self._limit:
            total, rest = c.sum(), self._rest(m) * self._limit**2
            error, slope = error + rest / total**2, slope - 2.0 * rest / total**3
            second = second + 6.0 * rest / total**4
        square, slope_square = self.square(c)
        ratio, ratio_square = slope / error, slope_square / square
        second_square = self._square_hessian(p) / square
        return second / error - np.outer(ratio, ratio) + second_square - np.outer(ratio_square, ratio_square)

    def square(self, c: Vector) -> tuple[float, Vector]:
        """Q = Σ_h (2 − [h = 0])·Σ_l (N_l − h)⁺ c_l c_{l+hb} and its gradient; N_l columns reach l terms."""
        value, slope, b = 0.0, np.zeros_like(c), self.participation.min_separation
        for h in range(min(self.participation.max_participations, -(-c.size // b))):
            gap = h * b
            counts = np.maximum(self._counts[: c.size - gap] - h, 0) * (1.0 if h == 0 else 2.0)
            value += float((counts * c[: c.size - gap]) @ c[gap:])
            slope[: c.size - gap] += counts * c[gap:]
            slope[gap:] += counts * c[: c.size - gap]
        return value, slope

    def _square_hessian(self, p: int) -> NDArray[np.float64]:
        second, b = np.zeros((p, p)), self.participation.min_separation
        for h in range(min(self.participation.max_participations, -(-p // b))):
            at = np.arange(p - h * b)
            counts = 2.0 * np.maximum(self._counts[: at.size] - h, 0)
            second[at, at + h * b] = second[at + h * b, at] = counts
        return second

    def _settled(self, c: Vector) -> tuple[Vector, Vector]:
        """(1/c, w) to m terms; m is kept for later calls."""
        n, a = self.workload.rounds, self.workload.coefficients
        while True:
            m = self._terms
            with np.errstate(over="ignore", invalid="ignore"):
                inverse = reciprocal(c, m)
                w = np.cumsum(inverse) if (a[:m] == 1.0).all() else multiply(a[:m], inverse, m)
                largest, total = float(np.abs(w).max()), float(c.sum())
            if m == n or not largest < 1e100:
                return inverse, w
            tail = np.abs(w[-c.size :] - self._limit / total) if total else np.full(1, np.inf)
            if tail.max() <= _SETTLED * largest:
                return inverse, w
            self._terms = min(n, 2 * m)

    def _powered(self, w: Vector) -> Vector:
        return np.cumsum(self._power(np.cumsum(w * w))[::-1])[::-1]

    def _weights(self, m: int) -> Vector:
        if self._suffix is not None:
            return self._suffix[:m]
        n = self.workload.rounds
        return np.arange(n, n - m, -1, dtype=np.float64)

    def _rest(self, m: int) -> float:
        """Σ_{t ≥ m} S_t."""
        if self._suffix is not None:
            return float(self._suffix[m:].sum())
        return 0.5 * (self.workload.rounds - m) * (self.workload.rounds - m + 1.0)


def _column_lengths(bands: int, participation: Participation) -> NDArray[np.float64]:
    """N_l = how many of the columns 0, b, … (k of them) have an l-th term within the horizon."""
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    return np.minimum(k, -(-(n - np.arange(bands)) // b)).astype(np.float64)


def _shifted_gram(u: Vector, weights: Vector, p: int) -> NDArray[np.float64]:
    """Σ_t S_t u_{t−i} u_{t−j} for i, j < p, in blocks of rows."""
    rows = sliding_window_view(np.concatenate([np.zeros(p - 1), u]), p)[:, ::-1]
    gram, step = np.zeros((p, p)), max(1, _BLOCK_ENTRIES // p)
    for start in range(0, u.size, step):
        block = np.ascontiguousarray(rows[start : start + step])
        gram += (block * weights[start : start + step, None]).T @ block
    return gram
