"""The squared error of a Toeplitz strategy matrix with a banded inverse, with gradient and Hessian."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import multiply, padded, settled_reciprocal
from fedmf.factorization.sensitivity import comb_sum, comb_sum_adjoint
from fedmf.participation import Participation
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload

_OVERFLOW = 1e100


class InverseObjective:
    """log(E·Q) as a function of h, C = LTT(1/h), for prefix sums with any row weights.

    E = ‖A C⁻¹‖_F² = hᵀMh is a quadratic form. Q = ‖S c‖² with S c = Σ_{l<k} (c shifted by lb), the sum of the
    earliest columns. With u = c² and v = c³ as power series ∂c/∂h_i = −x^i u, ∂²c/∂h_i∂h_j = 2x^{i+j} v.
    So

        ∂Q/∂h_i = −2⟨SᵀS c, x^i u⟩,    ∂²Q/∂h_i∂h_j = 2⟨x^i S u, x^j S u⟩ + 4⟨SᵀS c, x^{i+j} v⟩.

    The Gram matrix of the shifted S u follows from its first row: every step down its diagonals drops one
    product at the end. So all takes O(n(log n + p) + p³), less where c settles early.

    Args:
        bands: p.
        participation: (n, k, b).
        workload: A of n rounds, prefix sums without column weights.

    Raises:
        ValueError: another workload.
    """

    #: Newton steps may be taken.
    has_hessian = True

    def __init__(self, bands: int, participation: Participation, workload: ToeplitzWorkload) -> None:
        if workload.column_weights is not None or not (workload.coefficients == 1.0).all():
            raise ValueError(f"A (workload) must be of prefix sums here; got {workload.name!r}.")
        n = participation.rounds
        rows = np.ones(n) if workload.row_weights is None else workload.row_weights**2
        counted = np.cumsum(rows[::-1])[::-1]
        weights = np.append(counted[: bands - 1], counted[bands - 1 :].sum())
        sums = np.tril(np.ones((bands, bands)))
        self._form = (sums.T * weights) @ sums
        self._participation = participation

    def __call__(self, h: Vector) -> tuple[float, Vector]:
        """The value and the gradient, shape (p,); (inf, 0) where C overflows."""
        c = self._column(h)
        if c is None:
            return float("inf"), np.zeros_like(h)
        pulled = self._form @ h
        error, p = float(h @ pulled), h.size
        earliest, back = self._earliest(c)
        square = float(earliest @ earliest)
        u = multiply(c, c, c.size)
        slope = -2.0 * _lagged(back, u, p)
        return float(np.log(error) + np.log(square)), 2.0 * pulled / error + slope / square

    def hessian(self, h: Vector) -> NDArray[np.float64]:
        """Where C does not overflow, shape (p, p)."""
        c, p = self._column(h), h.size
        assert c is not None
        pulled = self._form @ h
        error = float(h @ pulled)
        earliest, back = self._earliest(c)
        square = float(earliest @ earliest)
        u = multiply(c, c, c.size)
        curved = _lagged(back, multiply(u, c, c.size), min(2 * p - 1, c.size))
        curved = 4.0 * padded(curved, 2 * p - 1)
        second = curved[np.add.outer(np.arange(p), np.arange(p))] + 2.0 * _gram(self._earliest(u)[0], p)
        first, own = -2.0 * _lagged(back, u, p) / square, 2.0 * pulled / error
        return 2.0 * self._form / error - np.outer(own, own) + second / square - np.outer(first, first)

    def _column(self, h: Vector) -> Vector | None:
        """c, with as much again after it settled: its square and its cube settle a little later."""
        n = self._participation.rounds
        c = settled_reciprocal(h, n)
        if not (np.abs(c) < _OVERFLOW).all():
            return None
        return padded(c, min(n, 2 * c.size))

    def _earliest(self, c: Vector) -> tuple[Vector, Vector]:
        """S c, and the first entries of SᵀS c."""
        part = self._participation
        n, k, b = part.rounds, part.max_participations, part.min_separation
        whole = padded(c, min(n, (k - 1) * b + c.size))
        summed = comb_sum(whole, k, b)
        return summed, comb_sum_adjoint(summed, k, b)[: c.size]


def _lagged(left: Vector, right: Vector, lags: int) -> Vector:
    """Σ_t left_t·right_{t−i} for i < lags."""
    return np.array([left[i:] @ right[: left.size - i] for i in range(lags)])


def _gram(u: Vector, p: int) -> NDArray[np.float64]:
    """Σ_t u_{t−i} u_{t−j} for i, j < p."""
    gram = np.zeros((p, p))
    gram[0] = gram[:, 0] = _lagged(u, u, p)
    # Row i + 1 from row i: the same products but the last.
    last = u[::-1][:p]
    last = padded(last, p)
    for i in range(p - 1):
        gram[i + 1, i + 1 :] = gram[i, i : p - 1] - last[i] * last[i : p - 1]
        gram[i + 1 :, i + 1] = gram[i + 1, i + 1 :]
    return gram
