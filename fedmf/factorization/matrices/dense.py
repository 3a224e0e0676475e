"""Strategy matrices without structure: a dense lower-triangular C, or the one with a given Gram matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmf.factorization.algebra import check_leading, column_factors
from fedmf.factorization.matrices.strategy_matrix import Factorization
from fedmf.factorization.streaming import Recurrence, StreamingInverse
from fedmf.typing import Array, Vector

#: C and C⁻¹ of this many rounds take 128 MiB each.
LARGEST_DENSE = 4096


@dataclass(frozen=True, eq=False)
class Dense(Factorization):
    """A lower-triangular C given entry by entry.

    Args:
        matrix: shape (n, n), n ≤ 4096, zero above the diagonal, positive on it.

    Raises:
        ValueError: the matrix is not of this form.

    >>> Dense([[1.0, 0.0], [0.5, 2.0]]).gram_diagonal(1)
    array([1.])
    """

    matrix: Array
    rounds: int = field(init=False)

    def __post_init__(self) -> None:
        matrix = _lower_triangular(self.matrix)
        matrix.setflags(write=False)
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "rounds", len(matrix))

    @cached_property
    def inverse(self) -> Array:
        """C⁻¹, shape (n, n), lower triangular."""
        from scipy.linalg import solve_triangular

        inverse = np.tril(solve_triangular(self.matrix, np.eye(self.rounds), lower=True, check_finite=False))
        inverse.setflags(write=False)
        return inverse

    @property
    def bands(self) -> int:
        """p, the number of diagonals of C down to the last non-zero one."""
        return self._bands

    @cached_property
    def _bands(self) -> int:
        n = self.rounds
        return int((n - (self.matrix[::-1] != 0).argmax(axis=0) - np.arange(n)).max())

    def columns(self, indices: Sequence[int] | NDArray[np.integer]) -> Array:
        """The columns of C with these 0-based indices, shape (n, m)."""
        return self.matrix[:, np.asarray(indices, dtype=np.int64)]

    def column_sum(self, indices: Sequence[int] | NDArray[np.integer]) -> Vector:
        """Σ_j C_{:,j} over distinct 0-based indices j, shape (n,)."""
        return self.columns(indices).sum(axis=1)

    def gram_diagonal(self, gap: int) -> Vector:
        """[CᵀC]_{i,i+gap}, shape (n − gap,); the squared column norms need no other entry."""
        if gap == 0:
            return np.einsum("ij,ij->j", self.matrix, self.matrix)
        return np.diagonal(self._gram, gap).copy()

    @cached_property
    def _gram(self) -> Array:
        gram = self.matrix.T @ self.matrix
        gram.setflags(write=False)
        return gram

    def gram(self) -> NDArray[np.float64]:
        """CᵀC as an array of its own, its diagonal that of `gram_diagonal`."""
        gram = self._gram.copy()
        np.fill_diagonal(gram, self.gram_diagonal(0))
        return gram

    def recurrence(self) -> StreamingInverse:
        """Row t of C⁻¹ applied to z_t, z_{t−1}, … : keeps nothing, draws all past z again."""
        n = self.rounds
        lag = np.subtract.outer(np.arange(n), np.arange(n))
        feedforward = np.where(lag >= 0, np.take_along_axis(self.inverse, np.maximum(lag, 0), axis=1), 0.0)
        used = int(np.flatnonzero(feedforward.any(axis=0))[-1]) + 1
        return Recurrence(feedforward[:, :used], np.zeros(0), np.ones(n))

    def noise_row_variances(self) -> Vector:
        """diag(C⁻¹C⁻ᵀ), shape (n,)."""
        return np.einsum("ij,ij->i", self.inverse, self.inverse)

    def query_variances(self, workload: Vector) -> Vector:
        """‖(A C⁻¹)_{t,:}‖² for A = LTT(workload), shape (n,)."""
        if (workload == 1.0).all():
            product = np.cumsum(self.inverse, axis=0)
        else:
            lag = np.subtract.outer(np.arange(self.rounds), np.arange(self.rounds))
            product = np.where(lag >= 0, workload[np.maximum(lag, 0)], 0.0) @ self.inverse
        return np.einsum("ij,ij->i", product, product)

    def leading(self, rounds: int) -> Dense:
        """The leading T×T block of C."""
        check_leading(rounds, self.rounds)
        return Dense(self.matrix[:rounds, :rounds])

    def columns_divided_by(self, factors: Vector) -> Dense:
        """C with column j divided by s_j."""
        return Dense(self.matrix / column_factors(factors, self.rounds))

    def to_dict(self) -> dict[str, Any]:
        """{"type": "dense", "rows"}: row t has the t + 1 entries up to the diagonal."""
        return {"type": "dense", "rows": [row[: t + 1].tolist() for t, row in enumerate(self.matrix)]}

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float]]) -> Dense:
        """Read the rows that `to_dict` wrote.

        Raises:
            ValueError: row t does not have t + 1 entries.
        """
        matrix = np.zeros((len(rows), len(rows)))
        for t, row in enumerate(rows):
            if len(row) != t + 1:
                raise ValueError(f"row t={t} (of C) must have {t + 1} entries; got {len(row)}.")
            matrix[t, : t + 1] = row
        return cls(matrix)


def lower_factor(gram: Array) -> Array:
    """The lower-triangular C with CᵀC = X and a positive diagonal.

    The Cholesky factor L of X has LLᵀ = X, the other product. With J the reversal of all indices and L that
    of J X J, C = J Lᵀ J is lower triangular and CᵀC = X.

    Args:
        gram: X, symmetric and positive definite.

    Raises:
        numpy.linalg.LinAlgError: X is not positive definite.

    >>> C = lower_factor(np.array([[2.0, 1.0], [1.0, 1.0]]))
    >>> C, C.T @ C
    (array([[1., 0.],
           [1., 1.]]), array([[2., 1.],
           [1., 1.]]))
    """
    reversed_factor: Array = np.asarray(np.linalg.cholesky(gram[::-1, ::-1]), dtype=np.float64)
    return reversed_factor.T[::-1, ::-1].copy()


def _lower_triangular(values: ArrayLike) -> Array:
    """A copy of a finite lower-triangular matrix with a positive diagonal."""
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"C (matrix) must be square and not empty; got {matrix.shape}.")
    if len(matrix) > LARGEST_DENSE:
        raise ValueError(
            f"n (rounds) must be at most {LARGEST_DENSE} for a dense C; got {len(matrix)}. "
            "Use banded, banded-toeplitz, banded-inverse or blt."
        )
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0].tolist()
        raise ValueError(f"C (matrix) must be finite; got {matrix[row, column]} at ({row}, {column}).")
    if np.triu(matrix, 1).any():
        row, column = np.argwhere(np.triu(matrix, 1))[0].tolist()
        raise ValueError(
            f"C (matrix) must be lower triangular; got {matrix[row, column]} at ({row}, {column})."
        )
    if not (np.diagonal(matrix) > 0).all():
        at = int(np.flatnonzero(np.diagonal(matrix) <= 0)[0])
        raise ValueError(f"C_jj (diagonal) must be positive; got {matrix[at, at]} at j={at}.")
    return matrix
