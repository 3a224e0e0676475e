"""Toeplitz workloads and their weighted forms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmf.typing import Vector

#: (ρ, e, s) stands for (1 − ρx^s)^e.
Factor = tuple[float, float, int]


@dataclass(frozen=True, eq=False)
class ToeplitzWorkload:
    """A = diag(r)·LTT(a)·diag(η): row t releases r_t·Σ_{i ≤ t} a_{t−i} η_i g_i.

    Args:
        name: how the command line and statements call it.
        coefficients: a, shape (n,), float64, finite, a_0 ≠ 0.
        row_weights: r, shape (n,), finite, non-negative, not all zero; None for ones. How much each query
            counts, or a factor that is part of the release (1/t in a running average).
        column_weights: η, shape (n,), finite, positive; None for ones. Learning rates: round i enters every
            later query with factor η_i.
        factors: a(x) = a_0·Π (1 − ρx^s)^e as a tuple of (ρ, e, s) where such a form is known; it gives
            fractional powers of the workload in closed form. The caller answers for the agreement.

    Raises:
        ValueError: the coefficients are not a finite vector with a_0 ≠ 0, or weights are out of range.

    >>> prefix(3).materialize()
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]])
    """

    name: str
    coefficients: Vector
    row_weights: Vector | None = None
    column_weights: Vector | None = None
    factors: tuple[Factor, ...] | None = None

    def __post_init__(self) -> None:
        a = np.array(self.coefficients, dtype=np.float64)
        if a.ndim != 1 or a.size == 0 or not np.isfinite(a).all() or a[0] == 0:
            raise ValueError(
                f"a (workload coefficients) must be a finite vector with a_0 != 0; got {a.shape}."
            )
        a.setflags(write=False)
        object.__setattr__(self, "coefficients", a)
        if self.row_weights is not None:
            object.__setattr__(self, "row_weights", _rows(self.row_weights, a.size))
        if self.column_weights is not None:
            object.__setattr__(self, "column_weights", _columns(self.column_weights, a.size))

    @property
    def rounds(self) -> int:
        """n, the number of queries."""
        return self.coefficients.size

    def leading(self, rounds: int) -> ToeplitzWorkload:
        """The first T queries, as a workload of T rounds.

        Raises:
            ValueError: T is not between 1 and n.

        >>> prefix(5).leading(2).rounds
        2
        """
        if not 1 <= rounds <= self.rounds:
            raise ValueError(f"T (leading rounds) must be between 1 and n={self.rounds}; got {rounds}.")
        if rounds == self.rounds:
            return self
        rows, columns = self.row_weights, self.column_weights
        return replace(
            self,
            coefficients=self.coefficients[:rounds],
            row_weights=None if rows is None else rows[:rounds],
            column_weights=None if columns is None else columns[:rounds],
        )

    def column_squares(self) -> Vector:
        """[AᵀA]_{ii} = η_i²·Σ_{t ≥ i} r_t² a_{t−i}², shape (n,).

        >>> prefix(3).column_squares()
        array([3., 2., 1.])
        """
        squares = self.coefficients**2
        if self.row_weights is None:
            sums = np.cumsum(squares)[::-1]
        else:
            sums = _correlate(self.row_weights**2, squares)
        return sums if self.column_weights is None else sums * self.column_weights**2

    def row_sums(self) -> Vector:
        """Σ_i [A]_{ti}, shape (n,).

        >>> exponential(0.5, 3).row_sums()
        array([1.  , 1.5 , 1.75])
        """
        if self.column_weights is None:
            sums = np.cumsum(self.coefficients)
        else:
            sums = _correlate(self.column_weights[::-1], self.coefficients)[::-1]
        return sums if self.row_weights is None else sums * self.row_weights

    def materialize(self) -> NDArray[np.float64]:
        """The dense n×n matrix; an oracle for small n."""
        lag = np.subtract.outer(np.arange(self.rounds), np.arange(self.rounds))
        dense = np.where(lag >= 0, self.coefficients[np.abs(lag)], 0.0)
        if self.column_weights is not None:
            dense = dense * self.column_weights
        return dense if self.row_weights is None else dense * self.row_weights[:, None]


def prefix(rounds: int) -> ToeplitzWorkload:
    """All prefix sums: A is lower triangular with ones, what SGD with a constant learning rate releases."""
    return ToeplitzWorkload("prefix", np.ones(_horizon(rounds)), factors=((1.0, -1.0, 1),))


def exponential(decay: float, rounds: int) -> ToeplitzWorkload:
    """Exponentially decaying sums, a_j = β^j.

    Args:
        decay: β in (0, 1).
        rounds: n.

    Raises:
        ValueError: β or n is out of range.

    >>> exponential(0.5, 3).coefficients
    array([1.  , 0.5 , 0.25])
    """
    if not 0 < decay < 1:
        raise ValueError(f"beta (decay) must be in (0, 1); got {decay}. With beta = 1 take prefix.")
    a = np.power(decay, np.arange(_horizon(rounds)), dtype=np.float64)
    return ToeplitzWorkload(f"exponential:{decay:g}", a, factors=((decay, -1.0, 1),))


def momentum(decay: float, rounds: int, weight_decay: float = 1.0) -> ToeplitzWorkload:
    """Iterates of SGD with momentum β and weight decay α: a(x) = 1/((1 − αx)(1 − βx)).

    m_t = β m_{t−1} + g_t and θ_t = α θ_{t−1} + m_t, so that a_j = Σ_{i ≤ j} α^i β^{j−i}.

    Args:
        decay: β in [0, 1).
        rounds: n.
        weight_decay: α in (0, 1], the factor by which the model shrinks each round; 1 for none.

    Raises:
        ValueError: a value is out of range.

    >>> momentum(0.5, 3).coefficients
    array([1.  , 1.5 , 1.75])
    """
    if not 0 <= decay < 1:
        raise ValueError(f"beta (momentum) must be in [0, 1); got {decay}. The velocity would never fade.")
    if not 0 < weight_decay <= 1:
        raise ValueError(f"alpha (weight decay factor) must be in (0, 1]; got {weight_decay}. 1 is none.")
    n = _horizon(rounds)
    powers = np.power(decay, np.arange(n), dtype=np.float64)
    if weight_decay == 1.0:
        a = (1.0 - decay * powers) / (1.0 - decay)
    elif weight_decay == decay:
        a = np.arange(1.0, n + 1.0) * powers
    else:
        faded = np.power(weight_decay, np.arange(n), dtype=np.float64)
        a = (weight_decay * faded - decay * powers) / (weight_decay - decay)
    name = f"momentum:{decay:g}" + ("" if weight_decay == 1.0 else f":{weight_decay:g}")
    return ToeplitzWorkload(name, a, factors=((weight_decay, -1.0, 1), (decay, -1.0, 1)))


def window(width: int, rounds: int) -> ToeplitzWorkload:
    """Means over a sliding window: a_j = 1/w for j < w, so a(x) = (1 − x^w)/((1 − x)·w).

    Args:
        width: w, 1 ≤ w ≤ n.
        rounds: n.

    Raises:
        ValueError: w or n is out of range.

    >>> window(2, 3).coefficients
    array([0.5, 0.5, 0. ])
    """
    n = _horizon(rounds)
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= n:
        raise ValueError(f"w (window width) must be an integer between 1 and n={n}; got {width!r}.")
    a = np.where(np.arange(n) < width, 1.0 / width, 0.0)
    return ToeplitzWorkload(f"window:{width}", a, factors=((1.0, 1.0, width), (1.0, -1.0, 1)))


def average(rounds: int) -> ToeplitzWorkload:
    """Running averages: the prefix sums with row t (1-based) divided by t.

    >>> average(2).materialize()
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    rows = 1.0 / np.arange(1, _horizon(rounds) + 1)
    return replace(weighted(prefix(rounds), rows=rows), name="average")


def weighted(
    workload: ToeplitzWorkload, rows: ArrayLike | None = None, columns: ArrayLike | None = None
) -> ToeplitzWorkload:
    """The workload with its queries weighted by r and its rounds by learning rates η.

    Args:
        workload: A.
        rows: r, shape (n,), non-negative, not all zero.
        columns: η, shape (n,), positive.

    Returns:
        diag(r)·A·diag(η), named after A with ",rows" or ",columns".

    Raises:
        ValueError: a weight is out of range.

    >>> weighted(prefix(2), columns=[1.0, 0.5]).materialize()
    array([[1. , 0. ],
           [1. , 0.5]])
    """
    n, name = workload.rounds, workload.name
    row, column = workload.row_weights, workload.column_weights
    if rows is not None:
        row = _rows(rows, n) * (1.0 if row is None else row)
        name += ",rows"
    if columns is not None:
        column = _columns(columns, n) * (1.0 if column is None else column)
        name += ",columns"
    return replace(workload, name=name, row_weights=row, column_weights=column)


def _correlate(left: Vector, right: Vector) -> Vector:
    """Σ_{t ≥ i} left_t·right_{t−i} for every i; exactly where all of the right are one, else by FFT."""
    n = left.size
    if (right == 1.0).all():
        return np.cumsum(left[::-1])[::-1]
    if n <= 2048:
        return np.convolve(left[::-1], right)[:n][::-1]
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(left[::-1], size) * np.fft.rfft(right, size)
    return np.fft.irfft(spectrum, size)[:n][::-1]


def _horizon(rounds: int) -> int:
    if rounds < 1:
        raise ValueError(f"n (rounds) must be at least 1; got {rounds}.")
    return rounds


def _rows(values: ArrayLike, rounds: int) -> Vector:
    return _weights(values, rounds, "r (row weights)", positive=False)


def _columns(values: ArrayLike, rounds: int) -> Vector:
    return _weights(values, rounds, "eta (column weights)", positive=True)


def _weights(values: ArrayLike, rounds: int, label: str, positive: bool) -> Vector:
    weights = np.array(values, dtype=np.float64)
    low = "positive" if positive else "non-negative and not all zero"
    fit = weights.shape == (rounds,) and bool(np.isfinite(weights).all())
    if not fit or not ((weights > 0).all() if positive else (weights >= 0).all() and weights.any()):
        shown = f"shape {weights.shape}" if weights.shape != (rounds,) else f"minimum {weights.min()}"
        raise ValueError(f"{label} must be n={rounds} finite numbers, {low}; got {shown}.")
    weights.setflags(write=False)
    return weights
