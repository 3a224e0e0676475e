"""Toeplitz strategy matrices, whose columns may be scaled: C = LTT(c)·diag(s)⁻¹.

In this family every question about C has an answer in O(n log n) or O(n·p).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization, NotRepresentable
from fedmf.matrices.series import (
    check_count,
    check_leading,
    column_factors,
    frozen_vector,
    multiply,
    padded,
    positive_vector,
    reciprocal,
    trimmed,
)
from fedmf.matrices.streaming_inverse import Recurrence, StreamingInverse


class ScaledToeplitz(Factorization):
    """C = LTT(c)·diag(s)⁻¹ and C⁻¹ = diag(s)·LTT(h) with h = 1/c as a power series; abstract.

    Every question is answered from the three vectors c, h and s, each of shape (n,).
    """

    @abstractmethod
    def _strategy_coefs(self) -> Vector:
        """c, the first column of LTT(c), shape (n,)."""

    @abstractmethod
    def _noising_coefs(self) -> Vector:
        """h, the first column of LTT(c)⁻¹, shape (n,)."""

    def _scale(self) -> Vector:
        """s > 0, what the columns of LTT(c) are divided by, shape (n,)."""
        return np.ones(self.rounds)

    @cached_property
    def strategy_coefs(self) -> Vector:
        """c, the first column of LTT(c), shape (n,).

        Raises:
            NotRepresentable: c overflows.
        """
        return _representable(self._strategy_coefs(), "C")

    @cached_property
    def noising_coefs(self) -> Vector:
        """h, the first column of LTT(c)⁻¹, shape (n,).

        Raises:
            NotRepresentable: h overflows.
        """
        return _representable(self._noising_coefs(), "C^-1")

    @cached_property
    def scale(self) -> Vector:
        """s > 0, what the columns of LTT(c) are divided by, shape (n,)."""
        return _representable(self._scale(), "D")

    @cached_property
    def _strategy_band(self) -> Vector:
        return trimmed(self.strategy_coefs)

    @property
    def bands(self) -> int:
        """p, the number of diagonals of C down to the last non-zero one."""
        return self._strategy_band.size

    def columns(self, indices: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float64]:
        """The columns of C with these 0-based indices, shape (n, m)."""
        chosen = np.asarray(indices, dtype=np.int64)
        longer = np.concatenate([np.zeros(self.rounds), self.strategy_coefs])
        shifted = sliding_window_view(longer, self.rounds)
        return (shifted[self.rounds - chosen] / self.scale[chosen, None]).T

    def column_sum(self, indices: Sequence[int] | NDArray[np.integer]) -> Vector:
        """Σ_j C_{:,j} over distinct 0-based indices j: one product of series."""
        impulses = np.zeros(self.rounds)
        impulses[np.asarray(indices, dtype=np.int64)] = 1.0
        return multiply(self._strategy_band, impulses / self.scale, self.rounds)

    def gram_diagonal(self, gap: int) -> Vector:
        """[CᵀC]_{i,i+gap} = Σ_{l < n−gap−i} c_l c_{l+gap} / (s_i s_{i+gap}), shape (n − gap,)."""
        c = self._strategy_band
        length = self.rounds - gap
        products = np.zeros(length)
        overlap = max(0, c.size - gap)
        products[:overlap] = c[:overlap] * c[gap : gap + overlap]
        return np.cumsum(products)[::-1] / (self.scale[:length] * self.scale[gap:])

    def noise_row_variances(self) -> Vector:
        """s_t²·Σ_{j ≤ t} h_j², shape (n,)."""
        return self.scale**2 * np.cumsum(self.noising_coefs**2)

    def toeplitz_column(self) -> Vector | None:
        """c/s where s is constant; None otherwise."""
        if not np.all(self.scale == self.scale[0]):
            return None
        return self.strategy_coefs / self.scale[0]

    def toeplitz_bound(self) -> tuple[Vector, Vector]:
        """|c| and the running minimum of s."""
        return np.abs(self.strategy_coefs), np.minimum.accumulate(self.scale)

    def columns_divided_by(self, factors: Vector) -> ColumnScaled:
        """C with its scale multiplied by s."""
        return ColumnScaled(self, factors)


@dataclass(frozen=True, eq=False)
class ColumnScaled(ScaledToeplitz, kind="column-scaled"):
    """C = base·diag(s)⁻¹; with s the column norms of the base it is column normalization.

    C⁻¹z = s ⊙ (base⁻¹z), so streaming costs one more multiplication per round.

    Args:
        base: any matrix of this family.
        factors: s, shape (n,), positive.

    Raises:
        ValueError: s is not finite, not positive or not of the base's length.

    References:
        Kalinin, McKenna, Pagh & Lampert (2026), Proposition 7.

    >>> ColumnScaled(Toeplitz([1.0, 1.0], 3), [2.0, 2.0, 1.0]).materialize()
    array([[0.5, 0. , 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 1. ]])
    """

    base: ScaledToeplitz
    factors: Vector
    rounds: int = field(init=False)
    stored = ("base", "factors")

    def __post_init__(self) -> None:
        if not isinstance(self.base, ScaledToeplitz):
            raise ValueError(
                f"base (column-scaled) must be a Toeplitz type; got {type(self.base).__name__}."
            )
        factors = column_factors(self.factors, self.base.rounds)
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "rounds", factors.size)

    def _strategy_coefs(self) -> Vector:
        return self.base.strategy_coefs

    def _noising_coefs(self) -> Vector:
        return self.base.noising_coefs

    def _scale(self) -> Vector:
        return self.base.scale * self.factors

    def streaming_inverse(self) -> StreamingInverse:
        """The base's recurrence with its rows scaled by s."""
        return self.base.streaming_inverse().rows_scaled(self.factors)

    def leading(self, rounds: int) -> ColumnScaled:
        """The base's leading block with the first T scales: norms over the full horizon stay."""
        check_leading(rounds, self.rounds)
        base = self.base.leading(rounds)
        assert isinstance(base, ScaledToeplitz)
        return ColumnScaled(base, self.factors[:rounds])


def _representable(series: Vector, matrix: str) -> Vector:
    # Squares of the entries are summed everywhere, so they must be finite too.
    if not (np.abs(series) < 1e140).all():
        at = int(np.flatnonzero(~(np.abs(series) < 1e140))[0])
        raise NotRepresentable(
            f"{matrix} must stay below 1e140; got overflow at coefficient {at}. The inverse of"
            " these coefficients grows without bound: use other coefficients or fewer rounds."
        )
    series.setflags(write=False)
    return series


@dataclass(frozen=True, eq=False)
class Toeplitz(ScaledToeplitz, kind="toeplitz"):
    """C = LTT(c), c padded with zeros to the horizon.

    Args:
        coefficients: c, shape (p,), p ≤ n, c_0 > 0.
        rounds: n, the horizon.

    Raises:
        ValueError: c is not finite, c_0 ≤ 0 or c is longer than the horizon.

    >>> Toeplitz([1.0, 0.5], 3).materialize()
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0.5, 1. ]])
    """

    coefficients: Vector
    rounds: int
    stored = ("coefficients", "rounds")

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _first_column(self.coefficients, self.rounds, "c"))

    def _strategy_coefs(self) -> Vector:
        return padded(self.coefficients, self.rounds)

    def _noising_coefs(self) -> Vector:
        return reciprocal(self.coefficients, self.rounds)

    def streaming_inverse(self) -> Recurrence:
        """C y = z solved forward: y_t = (z_t − Σ_j c_j y_{t−j})/c_0; it stores p − 1 outputs."""
        c = trimmed(self.coefficients)
        return Recurrence(np.array([1.0 / c[0]]), c[1:] / c[0], self.scale)

    def leading(self, rounds: int) -> Toeplitz:
        """LTT(c) at the horizon T."""
        check_leading(rounds, self.rounds)
        return Toeplitz(self.coefficients[:rounds], rounds)


@dataclass(frozen=True, eq=False)
class InverseToeplitz(ScaledToeplitz, kind="inverse-toeplitz"):
    """C⁻¹ = LTT(h), h padded with zeros to the horizon.

    Args:
        coefficients: h, shape (q,), q ≤ n, h_0 > 0.
        rounds: n, the horizon.

    Raises:
        ValueError: h is not finite, h_0 ≤ 0 or h is longer than the horizon.

    >>> InverseToeplitz([1.0, -0.5], 3).materialize()
    array([[1.  , 0.  , 0.  ],
           [0.5 , 1.  , 0.  ],
           [0.25, 0.5 , 1.  ]])
    """

    coefficients: Vector
    rounds: int
    stored = ("coefficients", "rounds")

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _first_column(self.coefficients, self.rounds, "h"))

    def _strategy_coefs(self) -> Vector:
        return reciprocal(self.coefficients, self.rounds)

    def _noising_coefs(self) -> Vector:
        return padded(self.coefficients, self.rounds)

    def streaming_inverse(self) -> Recurrence:
        """[C⁻¹z]_t = Σ_j h_j z_{t−j}; it stores nothing and draws q − 1 past z again."""
        return Recurrence(trimmed(self.coefficients), np.zeros(0), self.scale)

    def leading(self, rounds: int) -> InverseToeplitz:
        """LTT(h)⁻¹ at the horizon T."""
        check_leading(rounds, self.rounds)
        return InverseToeplitz(self.coefficients[:rounds], rounds)


@dataclass(frozen=True, eq=False)
class Diagonal(ScaledToeplitz, kind="diagonal"):
    """C = diag(entries): independent noise of a different size in each round.

    Args:
        entries: shape (n,), positive; round t's noise has standard deviation 1/entries_t.

    Raises:
        ValueError: an entry is not finite or not positive.

    >>> Diagonal([2.0, 1.0]).noise_row_variances()
    array([0.25, 1.  ])
    """

    entries: Vector
    rounds: int = field(init=False)
    stored = ("entries",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", positive_vector(self.entries, "d", "entries"))
        object.__setattr__(self, "rounds", self.entries.size)

    def _strategy_coefs(self) -> Vector:
        return np.eye(1, self.rounds)[0]

    def _noising_coefs(self) -> Vector:
        return self.strategy_coefs

    def _scale(self) -> Vector:
        return 1.0 / self.entries

    def streaming_inverse(self) -> Recurrence:
        """[C⁻¹z]_t = z_t / entries_t."""
        return Recurrence(np.ones(1), np.zeros(0), self.scale)

    def leading(self, rounds: int) -> Diagonal:
        """The first T entries."""
        check_leading(rounds, self.rounds)
        return Diagonal(self.entries[:rounds])


def _first_column(values: Vector, rounds: int, symbol: str) -> Vector:
    vector = frozen_vector(values, symbol, "coefficients")
    if vector.size > check_count(rounds, "n (rounds)"):
        raise ValueError(
            f"{symbol} (coefficients) must have at most n={rounds} entries; got {vector.size}."
        )
    if vector[0] <= 0:
        raise ValueError(f"{symbol}_0 (leading coefficient) must be positive; got {vector[0]}.")
    return vector
