"""What every strategy matrix can answer, and the recurrence by which its noise is streamed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Factorization",
    "Recurrence",
    "check_leading",
    "column_factors",
    "frozen_vector",
    "positive_vector",
]

Vector = NDArray[np.float64]


def frozen_vector(values: ArrayLike, symbol: str, meaning: str) -> Vector:
    """A read-only float64 copy of a finite, non-empty vector.

    Raises:
        ValueError: the values are not a finite vector of at least one entry.
    """
    vector = np.array(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"{symbol} ({meaning}) must be a non-empty vector; got shape {vector.shape}.")
    if not np.isfinite(vector).all():
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise ValueError(f"{symbol} ({meaning}) must be finite; got {vector[at]} at index {at}.")
    vector.setflags(write=False)
    return vector


def positive_vector(values: ArrayLike, symbol: str, meaning: str) -> Vector:
    """`frozen_vector` of positive entries.

    Raises:
        ValueError: the values are not such a vector.
    """
    vector = frozen_vector(values, symbol, meaning)
    if not (vector > 0).all():
        at = int(np.flatnonzero(vector <= 0)[0])
        raise ValueError(f"{symbol} ({meaning}) must be positive; got {vector[at]} at index {at}.")
    return vector


def column_factors(values: ArrayLike, rounds: int) -> Vector:
    """s, what columns are divided by.

    Raises:
        ValueError: it is not a vector of n positive numbers.
    """
    factors = positive_vector(values, "s", "column scale")
    if factors.size != rounds:
        raise ValueError(f"s (column scale) must have n={rounds} entries; got {factors.size}.")
    return factors


def check_leading(rounds: int, horizon: int) -> None:
    """Refuse a T outside 1 … n.

    Raises:
        ValueError: it is.
    """
    if not 1 <= rounds <= horizon:
        raise ValueError(f"T (leading rounds) must be between 1 and n={horizon}; got {rounds}.")


@dataclass(frozen=True, eq=False)
class Recurrence:
    """How to stream C⁻¹z one round at a time.

    y_t = Σ_{j<q} f_j z_{t−j} − Σ_{j=1..r} g_j y_{t−j} and [C⁻¹z]_t = s_t·y_t for t = 0 … n−1, with
    z_{<0} = y_{<0} = 0. Past z can be drawn again from a keyed source; past y must be kept. Where f or g has
    one row per round, round t uses row t.

    Args:
        feedforward: f, shape (q,) or (n, q), q ≥ 1.
        feedback: g, shape (r,) or (n, r), r ≥ 0.
        row_scale: s, shape (n,).

    Raises:
        ValueError: a coefficient is not finite, f or s is empty, or a matrix does not have n rows.

    >>> Recurrence([1.0, -0.5], [], [1.0, 1.0, 1.0]).apply(np.array([1.0, 1.0, 1.0]))
    array([1. , 0.5, 0.5])
    >>> Recurrence([[1.0, 0.0], [1.0, -0.5], [1.0, 2.0]], [], [1.0, 1.0, 1.0]).apply(np.ones(3))
    array([1. , 0.5, 3. ])
    """

    feedforward: Vector
    feedback: Vector
    row_scale: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_scale", frozen_vector(self.row_scale, "s", "row_scale"))
        n = self.row_scale.size
        object.__setattr__(self, "feedforward", _coefficients(self.feedforward, "f", "feedforward", n))
        feedback = np.array(self.feedback, dtype=np.float64)
        feedback = _coefficients(feedback, "g", "feedback", n) if feedback.size else np.zeros(0)
        object.__setattr__(self, "feedback", feedback)

    @property
    def rounds(self) -> int:
        """n, the horizon; the recurrence is not to be continued past it."""
        return self.row_scale.size

    @property
    def memory_vectors(self) -> int:
        """How many past outputs y (model-sized vectors) must be kept: r."""
        return self.feedback.shape[-1]

    @property
    def regenerated_vectors(self) -> int:
        """How many past inputs z are drawn again in a round, at most: q − 1, or a row's non-zero ones."""
        if self.feedforward.ndim == 2:
            return int(np.count_nonzero(self.feedforward[:, 1:], axis=1).max())
        return self.feedforward.size - 1

    def apply(self, z: Vector) -> Vector:
        """C⁻¹z for z of shape (m,) or (m, d) with m ≤ n, by the recurrence; a reference, not a fast path.

        Raises:
            ValueError: z has more rows than the horizon.
        """
        if len(z) > self.rounds:
            raise ValueError(f"z (noise) must have at most n={self.rounds} rows; got {len(z)}.")
        y = np.zeros(z.shape)
        for t in range(len(z)):
            f = _of_round(self.feedforward, t)[: t + 1]
            y[t] = np.tensordot(f, z[t::-1][: f.size], 1)
            if t and self.feedback.size:
                g = _of_round(self.feedback, t)[:t]
                y[t] -= np.tensordot(g, y[t - 1 :: -1][: g.size], 1)
        return y * self.row_scale[: len(z)].reshape(-1, *[1] * (z.ndim - 1))


def _of_round(coefficients: NDArray[np.float64], t: int) -> Vector:
    return coefficients[t] if coefficients.ndim == 2 else coefficients


def _coefficients(values: ArrayLike, symbol: str, meaning: str, rounds: int) -> NDArray[np.float64]:
    """A read-only copy of finite coefficients, the same in all rounds (a vector) or a row for each."""
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2:
        return frozen_vector(matrix, symbol, meaning)
    if matrix.shape[0] != rounds or not matrix.size:
        raise ValueError(
            f"{symbol} ({meaning}) must be a vector or have n={rounds} non-empty rows; got {matrix.shape}."
        )
    if not np.isfinite(matrix).all():
        t, j = np.argwhere(~np.isfinite(matrix))[0].tolist()
        raise ValueError(f"{symbol} ({meaning}) must be finite; got {matrix[t, j]} at index ({t}, {j}).")
    matrix.setflags(write=False)
    return matrix


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

    @abstractmethod
    def recurrence(self) -> Recurrence:
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

    def monotone_envelope(self) -> tuple[Vector, Vector] | None:
        """(ĉ, s) with |C_{ij}| ≤ ĉ_{i−j}/s_j, ĉ and s non-increasing, s > 0; None where no such form is kept.

        Sensitivity uses it to certify that the earliest participation pattern is the worst one.
        """
        return None

    def toeplitz_column(self) -> Vector | None:
        """The first column of C where C is Toeplitz, shape (n,); None otherwise."""
        return None

    def materialize(self) -> NDArray[np.float64]:
        """The dense n×n matrix C; an oracle for small n."""
        return self.columns(np.arange(self.rounds))
