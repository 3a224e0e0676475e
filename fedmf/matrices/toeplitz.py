"""The family C = LTT(c)·diag(s)⁻¹, in which every question has an answer in O(n log n) or
O(n·p).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.typing import NDArray

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization, NotRepresentable
from fedmf.matrices.series import (
    check_count,
    check_leading,
    column_factors,
    fft_size,
    frozen_vector,
    multiply,
    padded,
    positive_vector,
    reciprocal,
    settled_reciprocal,
    trimmed,
)
from fedmf.matrices.streaming_inverse import Recurrence, StreamingInverse

_BLOCK_ENTRIES = 4_000_000
# Lags that are summed one by one; ranges that are.
_FEW_LAGS = 256
_BLOCK = 128
# Any other workload than prefix sums takes an FFT per round.
_LARGEST_GENERAL = 131_072


class ScaledToeplitz(Factorization):
    """C = LTT(c)·diag(s)⁻¹ and C⁻¹ = diag(s)·LTT(h) with h = 1/c as a power series; abstract.

    Every question is answered from the three vectors c, h and s, each of shape (n,).
    """

    @abstractmethod
    def _strategy(self) -> Vector:
        """c, the first column of LTT(c), shape (n,)."""

    @abstractmethod
    def _correlation(self) -> Vector:
        """h, the first column of LTT(c)⁻¹, shape (n,)."""

    def _scale(self) -> Vector:
        """s > 0, what the columns of LTT(c) are divided by, shape (n,)."""
        return np.ones(self.rounds)

    @cached_property
    def strategy(self) -> Vector:
        """c, the first column of LTT(c), shape (n,).

        Raises:
            NotRepresentable: c overflows.
        """
        return _representable(self._strategy(), "C")

    @cached_property
    def correlation(self) -> Vector:
        """h, the first column of LTT(c)⁻¹, shape (n,).

        Raises:
            NotRepresentable: h overflows.
        """
        return _representable(self._correlation(), "C^-1")

    @cached_property
    def scale(self) -> Vector:
        """s > 0, what the columns of LTT(c) are divided by, shape (n,)."""
        return _representable(self._scale(), "D")

    @cached_property
    def _strategy_band(self) -> Vector:
        return trimmed(self.strategy)

    @property
    def bands(self) -> int:
        """p, the number of diagonals of C down to the last non-zero one."""
        return self._strategy_band.size

    def columns(self, indices: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float64]:
        """The columns of C with these 0-based indices, shape (n, m)."""
        chosen = np.asarray(indices, dtype=np.int64)
        shifted = sliding_window_view(
            np.concatenate([np.zeros(self.rounds), self.strategy]), self.rounds
        )
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
        return self.scale**2 * np.cumsum(self.correlation**2)

    def query_variances(self, workload: Vector) -> Vector:
        """‖(A C⁻¹)_{t,:}‖², shape (n,); O(n log n) where s is constant, else O(n²) time and O(n)
        memory.
        """
        if np.all(self.scale == self.scale[0]):
            if (workload == 1.0).all():
                row = np.cumsum(self.correlation)
            else:
                row = multiply(workload, trimmed(self.correlation), self.rounds)
            return self.scale[0] ** 2 * np.cumsum(row**2)
        return _scaled_query_variances(workload, self.correlation, self.scale)

    def toeplitz_column(self) -> Vector | None:
        """c/s where s is constant; None otherwise."""
        return self.strategy / self.scale[0] if np.all(self.scale == self.scale[0]) else None

    def toeplitz_bound(self) -> tuple[Vector, Vector]:
        """|c| and the running minimum of s."""
        return np.abs(self.strategy), np.minimum.accumulate(self.scale)

    def columns_divided_by(self, factors: Vector) -> ColumnScaled:
        """The same c and h with the scale multiplied by s."""
        return ColumnScaled(self, factors)


@dataclass(frozen=True, eq=False)
class ColumnScaled(ScaledToeplitz, kind="column-scaled"):
    """C = base·diag(s)⁻¹; with s the column norms of the base it is column normalisation.

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

    def _strategy(self) -> Vector:
        return self.base.strategy

    def _correlation(self) -> Vector:
        return self.base.correlation

    def _scale(self) -> Vector:
        return self.base.scale * self.factors

    def streaming_inverse(self) -> StreamingInverse:
        """The base's recurrence with its rows scaled by s."""
        return self.base.streaming_inverse().rows_scaled(self.factors)

    def leading(self, rounds: int) -> ColumnScaled:
        """The base's leading block with the same first T scales: norms over the *full* horizon are
        kept.
        """
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

    def _strategy(self) -> Vector:
        return padded(self.coefficients, self.rounds)

    def _correlation(self) -> Vector:
        return reciprocal(self.coefficients, self.rounds)

    def truncated_coefs(self) -> tuple[Vector, Vector]:
        """c and 1/c, cut where they have settled at 0."""
        c = trimmed(self.coefficients)
        return c, settled_reciprocal(c, self.rounds)

    def streaming_inverse(self) -> Recurrence:
        """C y = z solved forward: y_t = (z_t − Σ_j c_j y_{t−j})/c_0; keeps p − 1 past outputs."""
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

    def _strategy(self) -> Vector:
        return reciprocal(self.coefficients, self.rounds)

    def _correlation(self) -> Vector:
        return padded(self.coefficients, self.rounds)

    def truncated_coefs(self) -> tuple[Vector, Vector]:
        """1/h and h, cut where they have settled at 0."""
        h = trimmed(self.coefficients)
        return settled_reciprocal(h, self.rounds), h

    def streaming_inverse(self) -> Recurrence:
        """[C⁻¹z]_t = Σ_j h_j z_{t−j}; keeps nothing, draws q − 1 past z again."""
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

    def _strategy(self) -> Vector:
        return np.eye(1, self.rounds)[0]

    def _correlation(self) -> Vector:
        return self.strategy

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


def _scaled_query_variances(workload: Vector, correlation: Vector, scale: Vector) -> Vector:
    """‖(A diag(s) LTT(h))_{t,:}‖² for A = LTT(a).

    Prefix sums add one row per round, B_t = B_{t−1} + s_t·(h_t, …, h_0), which costs O(n·q) for few
    (q) coefficients of h and O(n log n + q log² q) for many; any other workload takes an FFT per
    column, in blocks.

    Args:
        workload: a, shape (n,).
        correlation: h, shape (n,).
        scale: s, shape (n,).

    Returns:
        Shape (n,), float64.

    Raises:
        ValueError: n > 131,072 and the workload is not of prefix sums.

    >>> _scaled_query_variances(np.ones(2), np.array([1.0, -0.5]), np.array([1.0, 2.0]))
    array([1., 4.])
    """
    if (workload == 1.0).all():
        return _prefix(trimmed(correlation), scale)
    if scale.size > _LARGEST_GENERAL:
        raise ValueError(
            f"n (rounds) must be at most {_LARGEST_GENERAL} for scaled columns and this workload;"
            f" got {scale.size}. Use prefix sums, or columns that are not normalised."
        )
    return _general(workload, correlation, scale)


def _prefix(h: Vector, scale: Vector) -> Vector:
    """‖B_t‖² = ‖B_{t−1}‖² + s_t² K_tt + 2 s_t u_t with K = LTT(h)·LTT(h)ᵀ and u_t = Σ_{i<t} s_i
    K_it.
    """
    n = scale.size
    long = min(h.size, n) > _FEW_LAGS and n > _FEW_LAGS
    past = _past(padded(h, n), scale) if long else _past_by_lags(h, scale)
    squares = np.cumsum(padded(h * h, n))
    return np.cumsum(scale * (scale * squares + 2.0 * past))


def _past_by_lags(h: Vector, scale: Vector) -> Vector:
    """u from the diagonals of K, which are running sums of products of h."""
    n = scale.size
    q = h.size
    past = np.zeros(n)
    for lag in range(1, min(q, n)):
        diagonal = np.cumsum(h[: q - lag] * h[lag:])[: n - lag]
        past[lag : lag + diagonal.size] += scale[: diagonal.size] * diagonal
        past[lag + diagonal.size :] += diagonal[-1] * scale[diagonal.size : n - lag]
    return past


def _past(h: Vector, scale: Vector) -> Vector:
    """u by halving the rounds: what the first half of a range adds to the second is three products
    of series.

    From K_{i,i+g} = K_{l,l+g} + Σ_{l<m≤i} h_m h_{m+g} follows for the range l ≤ i < M ≤ t < r

        Σ_i s_i K_it = Σ_i s_i K_{l,l+t−i} + Σ_e h_{t−e} G_e,    G_e = Σ_{x≥1} s_{l+e+x} h_{l+x},
        l+e+x < M,

    and the row of K that the second half needs. Ranges are handled down to a block, which takes the
    diagonals, or to one in which h is 0 and so K_it = K_{l,l+t−i}: one product. O(n log n + q log²
    q) for q coefficients of h.
    """
    past = np.zeros(scale.size)
    ranges = [(0, scale.size, h[0] * h)]
    while ranges:
        start, end, row = ranges.pop()
        length = end - start
        if length <= _BLOCK:
            past[start:end] += _within(h[start:end], scale[start:end], row)
            continue
        own = np.zeros(length)
        own[1:] = h[start + 1 : end]
        if not own.any():
            row = np.append(0.0, row[1:length])
            past[start:end] += multiply(scale[start:end], trimmed(row), length)
            continue
        half = length // 2
        points = fft_size(length)
        first = np.fft.rfft(own[: half + 1], points)
        whole = np.fft.rfft(own, points)
        left = np.fft.rfft(scale[start : start + half], points)
        gained = np.fft.irfft(left * np.fft.rfft(own[:half], points).conj(), points)[:half]
        moved = left * np.fft.rfft(row[:length], points) + np.fft.rfft(gained, points) * whole
        past[start + half : end] += np.fft.irfft(moved, points)[half:length]
        more = np.fft.irfft(whole * first.conj(), points)[: length - half]
        ranges.append((start, start + half, row[:half]))
        ranges.append((start + half, end, row[: length - half] + more))
    return past


def _within(h: Vector, scale: Vector, row: Vector) -> Vector:
    """Σ_{l ≤ i < t} s_i K_it of a short range from K_{l,l+g}: all diagonals at once, summed
    over i.
    """
    size = h.size
    padded = np.concatenate([h, np.zeros(size)])
    diagonals = sliding_window_view(padded, size)[:size] * h
    diagonals[:, 0] = row[:size]
    np.cumsum(diagonals, axis=1, out=diagonals)
    # Entry (g, i) belongs to round i + g: row g is written g places further on.
    board = np.zeros(size * (2 * size + 1))
    shifted = as_strided(board, (size, size), ((2 * size + 1) * 8, 8))
    np.multiply(diagonals, scale, out=shifted)
    shifted[0] = 0.0
    return board[: size * 2 * size].reshape(size, 2 * size).sum(axis=0)[:size]


def _general(workload: Vector, h: Vector, scale: Vector) -> Vector:
    n = scale.size
    size = fft_size(2 * n - 1)
    spectrum = np.fft.rfft(workload, size)
    norms = np.zeros(n)
    step = max(1, _BLOCK_ENTRIES // size)
    for start in range(0, n, step):
        columns = np.arange(start, min(n, start + step))
        lag = np.subtract.outer(np.arange(n), columns).T
        rows = np.where(lag >= 0, h[np.maximum(lag, 0)], 0.0) * scale
        product = np.fft.irfft(np.fft.rfft(rows, size) * spectrum, size)[:, :n]
        norms += np.einsum("ij,ij->j", product, product)
    return norms
