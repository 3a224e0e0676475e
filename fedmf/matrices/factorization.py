"""Strategy matrices: the questions that every C answers, dense C, and C with repeated blocks.

A mechanism is private by two answers, the columns of C (how far a user moves C·G) and the streaming
form of C⁻¹ (how noise is made); the other kinds of C are in the files next to this one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.series import check_count, check_leading, column_factors
from fedmf.matrices.streaming_inverse import Recurrence, StreamingInverse

_KINDS: dict[str, type[Factorization]] = {}


class NotRepresentable(ValueError):
    """A matrix or its inverse overflows float64 before the horizon."""


class Factorization(ABC):
    """A strategy matrix C (n×n, lower triangular, invertible) as a value.

    A mechanism releases A(G + ζσ·sens(C)·C⁻¹z). Every factorization knows its horizon n and answers
    the same questions, so that callers need not know its kind. It must never be used past round n.
    """

    #: n, the horizon.
    rounds: int
    #: The name of the class in records, and the fields that describe a matrix of it.
    kind: ClassVar[str]
    stored: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, kind: str = "") -> None:
        super().__init_subclass__()
        if kind:
            cls.kind = kind
            _KINDS.setdefault(kind, cls)

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
        flat = gram.reshape(-1)
        step = n + 1
        for gap in range(min(n, self.bands)):
            flat[gap : (n - gap) * n : step] = flat[gap * n :: step] = self.gram_diagonal(gap)
        return gram

    @abstractmethod
    def streaming_inverse(self) -> StreamingInverse:
        """The rule that makes C⁻¹z round by round."""

    @abstractmethod
    def noise_row_variances(self) -> Vector:
        """diag(C⁻¹C⁻ᵀ), the variance of [C⁻¹z]_t for unit z, shape (n,)."""

    @abstractmethod
    def leading(self, rounds: int) -> Factorization:
        """The leading T×T block of C, by which the first T rounds are released.

        Raises:
            ValueError: T is not between 1 and n.
        """

    @abstractmethod
    def columns_divided_by(self, factors: Vector) -> Factorization:
        """C·diag(s)⁻¹, which releases s_t·[C⁻¹z]_t.

        Args:
            factors: s, shape (n,), positive.

        Raises:
            ValueError: s is not of this form, or the result has no form that is known.
        """

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able and exact description, which `factorization_from_dict` reads."""
        fields = {name: _plain(getattr(self, name)) for name in self.stored}
        return {"type": self.kind, **fields}

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Factorization:
        """Make a matrix from the fields of a description."""
        fields = dict(values)
        for name, value in values.items():
            if isinstance(value, Mapping):
                fields[name] = factorization_from_dict(value)
        return cls(**fields)

    def toeplitz_bound(self) -> tuple[Vector, Vector] | None:
        """(a, s) with |C_{ij}| ≤ a_{i−j}/s_j, s non-increasing, s > 0, where such a form is known.

        Sensitivity uses it to certify that the earliest participation pattern is the worst one.
        """
        return None

    def toeplitz_column(self) -> Vector | None:
        """The first column of C where C is Toeplitz, shape (n,); None otherwise."""
        return None

    def materialize(self) -> NDArray[np.float64]:
        """The dense n×n matrix C; an oracle for small n."""
        return self.columns(np.arange(self.rounds))


#: C and C⁻¹ of this many rounds take 128 MiB each.
LARGEST_DENSE = 4096


@dataclass(frozen=True, eq=False)
class Dense(Factorization, kind="dense"):
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
    stored = ("rows",)

    def __post_init__(self) -> None:
        matrix = _lower_triangular(self.matrix)
        matrix.setflags(write=False)
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "rounds", len(matrix))

    @cached_property
    def inverse(self) -> Array:
        """C⁻¹, shape (n, n), lower triangular."""
        from scipy.linalg import solve_triangular

        inverse = np.tril(
            solve_triangular(self.matrix, np.eye(self.rounds), lower=True, check_finite=False)
        )
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
        """CᵀC as an array of its own, with the diagonal of `gram_diagonal`."""
        gram = self._gram.copy()
        np.fill_diagonal(gram, self.gram_diagonal(0))
        return gram

    def streaming_inverse(self) -> StreamingInverse:
        """Row t of C⁻¹ times z_t, z_{t−1}, …; it stores nothing and draws all past z again."""
        n = self.rounds
        lag = np.subtract.outer(np.arange(n), np.arange(n))
        entries = np.take_along_axis(self.inverse, np.maximum(lag, 0), axis=1)
        feedforward = np.where(lag >= 0, entries, 0.0)
        used = int(np.flatnonzero(feedforward.any(axis=0))[-1]) + 1
        return Recurrence(feedforward[:, :used], np.zeros(0), np.ones(n))

    def noise_row_variances(self) -> Vector:
        """diag(C⁻¹C⁻ᵀ), shape (n,)."""
        return np.einsum("ij,ij->i", self.inverse, self.inverse)

    def leading(self, rounds: int) -> Dense:
        """The leading T×T block of C."""
        check_leading(rounds, self.rounds)
        return Dense(self.matrix[:rounds, :rounds])

    def columns_divided_by(self, factors: Vector) -> Dense:
        """C with column j divided by s_j."""
        return Dense(self.matrix / column_factors(factors, self.rounds))

    @property
    def rows(self) -> list[list[float]]:
        """Row t has the t + 1 entries up to the diagonal."""
        return [row[: t + 1].tolist() for t, row in enumerate(self.matrix)]

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Factorization:
        """Make a matrix from its rows.

        Raises:
            ValueError: row t does not have t + 1 entries.
        """
        rows = values["rows"]
        matrix = np.zeros((len(rows), len(rows)))
        for t, row in enumerate(rows):
            if len(row) != t + 1:
                raise ValueError(f"row t={t} (of C) must have {t + 1} entries; got {len(row)}.")
            matrix[t, : t + 1] = row
        return Dense(matrix)


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
        raise ValueError(
            f"C (matrix) must be finite; got {matrix[row, column]} at ({row}, {column})."
        )
    if np.triu(matrix, 1).any():
        row, column = np.argwhere(np.triu(matrix, 1))[0].tolist()
        raise ValueError(
            f"C (matrix) must be lower triangular; got {matrix[row, column]} at ({row}, {column})."
        )
    if not (np.diagonal(matrix) > 0).all():
        at = int(np.flatnonzero(np.diagonal(matrix) <= 0)[0])
        raise ValueError(f"C_jj (diagonal) must be positive; got {matrix[at, at]} at j={at}.")
    return matrix


@dataclass(frozen=True, eq=False)
class Stamped(Factorization, kind="stamped"):
    """C = diag(C₀, C₀, …), the last block cut at the horizon.

    The noise starts afresh every m rounds. With m ≤ b a user is in a block at most once, so that
    columns of one user are orthogonal and the sensitivity follows from the best sum of squared
    columns.

    Args:
        base: C₀ of m rounds.
        rounds: n ≥ 1.

    Raises:
        ValueError: n is not a positive integer.

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> Stamped(Toeplitz([1.0, 0.5], 2), 3).materialize()
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0. , 1. ]])
    """

    base: Factorization
    rounds: int
    stored = ("base", "rounds")

    def __post_init__(self) -> None:
        if check_count(self.rounds, "n (rounds)") < self.base.rounds:
            object.__setattr__(self, "base", self.base.leading(self.rounds))

    @property
    def bands(self) -> int:
        """p of one block."""
        return self.base.bands

    def columns(self, indices: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float64]:
        """The columns of C with these 0-based indices, shape (n, m)."""
        chosen = np.asarray(indices, dtype=np.int64)
        size = self.base.rounds
        inner = self.base.columns(chosen % size)
        rows = np.arange(self.rounds)[:, None]
        local = rows - chosen // size * size
        inside = (local >= 0) & (local < size)
        return np.where(inside, np.take_along_axis(inner, np.clip(local, 0, size - 1), axis=0), 0.0)

    def column_sum(self, indices: Sequence[int] | NDArray[np.integer]) -> Vector:
        """Σ_j C_{:,j} over distinct 0-based indices j, block by block."""
        chosen = np.asarray(indices, dtype=np.int64)
        size = self.base.rounds
        total = np.zeros(-(-self.rounds // size) * size)
        for block in np.unique(chosen // size):
            local = chosen[chosen // size == block] - block * size
            total[block * size : (block + 1) * size] = self.base.column_sum(local)
        return total[: self.rounds]

    def gram_diagonal(self, gap: int) -> Vector:
        """[CᵀC]_{i,i+gap}: as in a block, and 0 between blocks, shape (n − gap,)."""
        whole, last = divmod(self.rounds, self.base.rounds)
        parts = [np.zeros(0)]
        if whole:
            parts.append(np.tile(_padded_gram(self.base, gap), whole))
        if last:
            parts.append(_padded_gram(self.base.leading(last), gap))
        return np.concatenate(parts)[: self.rounds - gap]

    def streaming_inverse(self) -> StreamingInverse:
        """The rule of the base, started afresh in every block."""
        return self.base.streaming_inverse().stamped(self.rounds)

    def noise_row_variances(self) -> Vector:
        """diag(C⁻¹C⁻ᵀ), the variances of a block repeated."""
        return self.base.noise_row_variances()[np.arange(self.rounds) % self.base.rounds]

    def leading(self, rounds: int) -> Factorization:
        """The blocks up to the horizon T."""
        check_leading(rounds, self.rounds)
        return Stamped(self.base, rounds)

    def columns_divided_by(self, factors: Vector) -> Factorization:
        """C with column j divided by s_j.

        The base is divided where s is the same in every block, as column norms are with m | n; else
        the result is dense.

        Raises:
            ValueError: s differs from block to block and n exceeds 4096.
        """
        s = column_factors(factors, self.rounds)
        size = self.base.rounds
        if np.array_equal(s, np.resize(s[:size], self.rounds)):
            return Stamped(self.base.columns_divided_by(s[:size]), self.rounds)
        if self.rounds > LARGEST_DENSE:
            raise ValueError(
                f"n (rounds) must be at most {LARGEST_DENSE} for column scales that differ between"
                f" stamped blocks of m={size}; got {self.rounds}. Use a number of stamps that"
                " divides n."
            )
        return Dense(self.materialize()).columns_divided_by(s)


def _padded_gram(block: Factorization, gap: int) -> Vector:
    if gap >= block.rounds:
        return np.zeros(block.rounds)
    return np.pad(block.gram_diagonal(gap), (0, gap))


def normalized(factorization: Factorization) -> Factorization:
    """C with every column divided by its norm over the horizon.

    Raises:
        ValueError: the result has no form that is known.

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> normalized(Toeplitz([1.0, 0.5], 4)).gram_diagonal(0)
    array([1., 1., 1., 1.])
    """
    return factorization.columns_divided_by(np.sqrt(factorization.gram_diagonal(0)))


def factorization_from_dict(description: Mapping[str, Any]) -> Factorization:
    """Make a factorization from the description that `Factorization.to_dict` gives.

    Raises:
        ValueError: the type is unknown, or the values do not describe a factorization.

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> factorization_from_dict(Toeplitz([1.0, 0.5], 4).to_dict()).to_dict()
    {'type': 'toeplitz', 'coefficients': [1.0, 0.5], 'rounds': 4}
    """
    for module in ("banded", "blt", "toeplitz", "trees"):  # which define the other kinds
        import_module(f"fedmf.matrices.{module}")
    values = dict(description)
    kind = _KINDS.get(values.pop("type", None))
    if kind is None or values.keys() != set(kind.stored):
        raise ValueError(
            f"type (factorization) must be {', '.join(_KINDS)}, with its fields; "
            f"got {description.get('type')!r} with {sorted(description)}."
        )
    return kind.from_stored(values)


def _plain(value: Any) -> Any:
    if isinstance(value, Factorization):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value


@dataclass(frozen=True, eq=False)
class BuiltMechanism:
    """A named factorization with the parameters it was built from.

    Args:
        name: as on the command line.
        params: by ASCII name, the optimized ones included; building it with these parameters gives
            the same factorization again.
        factorization: C.
    """

    name: str
    params: dict[str, float | int]
    factorization: Factorization
