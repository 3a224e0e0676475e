"""What every strategy matrix can answer, and the recurrence by which its noise is streamed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.streaming import StreamingInverse
from fedmf.typing import Vector


class Factorization(ABC):
    """A strategy matrix C (n×n, lower triangular, invertible) as a value.

    A mechanism releases A(G + ζσ·sens(C)·C⁻¹z). Every factorization knows its horizon n and answers the same
    questions, so that callers need not know which kind it is. It must never be used past round n.
    """

    #: n, the horizon.
    rounds: int

    @property
    @abstractmethod
    def bands(self) -> int:
        """p, the number of diagonals of C down to the last non-zero one, the main one included."""

    @abstractmethod
    def columns(self, indices: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float64]:
        """The columns of C with these 0-based indices, shape (n, m)."""

    @abstractmethod
    def column_sum(self, indices: Sequence[int] | NDArray[np.integer]) -> Vector:
        """Σ_j C_{:,j} over distinct 0-based indices j, shape (n,)."""

    @abstractmethod
    def gram_diagonal(self, gap: int) -> Vector:
        """[CᵀC]_{i,i+gap} for i = 0 … n−gap−1, shape (n − gap,), 0 ≤ gap < n."""

    def gram(self) -> NDArray[np.float64]:
        """CᵀC as an array of its own, shape (n, n)."""
        n = self.rounds
        gram = np.zeros((n, n))
        flat, step = gram.reshape(-1), n + 1
        for gap in range(min(n, self.bands)):
            flat[gap : (n - gap) * n : step] = flat[gap * n :: step] = self.gram_diagonal(gap)
        return gram

    @abstractmethod
    def recurrence(self) -> StreamingInverse:
        """How to stream C⁻¹z."""

    @abstractmethod
    def noise_row_variances(self) -> Vector:
        """diag(C⁻¹C⁻ᵀ), the variance of [C⁻¹z]_t for unit z, shape (n,)."""

    @abstractmethod
    def query_variances(self, workload: Vector) -> Vector:
        """‖(A C⁻¹)_{t,:}‖² for A = LTT(workload), shape (n,); the workload has n coefficients."""

    @abstractmethod
    def leading(self, rounds: int) -> Factorization:
        """The leading T×T block of C, what the first T rounds release.

        Raises:
            ValueError: T is not between 1 and n.
        """

    @abstractmethod
    def columns_divided_by(self, factors: Vector) -> Factorization:
        """C·diag(s)⁻¹, which releases s_t·[C⁻¹z]_t.

        Args:
            factors: s, shape (n,), positive.

        Raises:
            ValueError: s is not of this form, or the result has no form that can be kept.
        """

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """An exact JSON-able description; `factorization_from_dict` reads it."""

    def toeplitz_bound(self) -> tuple[Vector, Vector] | None:
        """(a, s) with |C_{ij}| ≤ a_{i−j}/s_j, s non-increasing, s > 0; None where no such form is kept.

        Sensitivity uses it to certify that the earliest participation pattern is the worst one.
        """
        return None

    def settled_pair(self) -> tuple[Vector, Vector] | None:
        """The first columns of C and of C⁻¹ where C is Toeplitz, up to where less than 1e-17 is left.

        Only what is summed over all rounds may be computed from them. None for any other C.
        """
        return None

    def toeplitz_column(self) -> Vector | None:
        """The first column of C where C is Toeplitz, shape (n,); None otherwise."""
        return None

    def materialize(self) -> NDArray[np.float64]:
        """The dense n×n matrix C; an oracle for small n."""
        return self.columns(np.arange(self.rounds))
