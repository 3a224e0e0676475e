"""Truncated power series, the algebra of lower-triangular Toeplitz (LTT) matrices.

LTT(c)·LTT(h) = LTT(c·h), the product of the series c(x) and h(x) cut after x^{n−1}; so inverses and
products of these matrices are reciprocals and products of series. At the end stand the checks of
vectors and counts that all strategy matrices share.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedmf.matrices.arrays import Vector

# Up to this many products a direct sum is used: it is fast enough and keeps the *relative* accuracy
# of small coefficients, which an FFT loses.
DIRECT_PRODUCTS = 4_000_000
# From here on reciprocals of few coefficients run the recurrence in compiled blocks, until nothing
# is left.
_LONG = 65_536
_BLOCK = 65_536
_WIDEST_RECURRENCE = 16
_UNDERFLOW = 1e-290


def fft_size(length: int) -> int:
    """The least 2^i, 3·2^i, 5·2^i or 9·2^i that is large enough.

    >>> fft_size(1000)
    1024
    """
    sizes: list[int] = []
    for factor in (1, 3, 5, 9):
        exponent = max(0, (-(-length // factor) - 1).bit_length())
        sizes.append(factor << exponent)
    return min(sizes)


def padded(series: Vector, terms: int) -> Vector:
    """The series with zeros behind it, shape (terms,); itself where it has as many."""
    if series.size == terms:
        return series
    longer = np.zeros(terms)
    longer[: series.size] = series
    return longer


def trimmed(series: Vector) -> Vector:
    """The series without its trailing zeros; at least one coefficient remains.

    >>> trimmed(np.array([1.0, 0.0, 2.0, 0.0]))
    array([1., 0., 2.])
    """
    nonzero = np.flatnonzero(series)
    if not nonzero.size:
        return series[:1]
    return series[: nonzero[-1] + 1]


def multiply(left: Vector, right: Vector, terms: int) -> Vector:
    """The first coefficients of the product of two series, shape (terms,); directly or by FFT.

    >>> multiply(np.array([1.0, 1.0]), np.array([1.0, -1.0]), 4)
    array([ 1.,  0., -1.,  0.])
    """
    is_square = left is right
    left = left[:terms]
    right = right[:terms]
    if left.size * right.size <= DIRECT_PRODUCTS:
        return padded(np.convolve(left, right)[:terms], terms)
    size = fft_size(left.size + right.size - 1)
    spectrum = np.fft.rfft(left, size)
    if is_square:
        spectrum *= spectrum
    else:
        spectrum *= np.fft.rfft(right, size)
    return padded(np.fft.irfft(spectrum, size)[:terms], terms)


def reciprocal(series: Vector, terms: int) -> Vector:
    """The first coefficients of 1/c(x), the first column of LTT(c)⁻¹.

    Newton's iteration: if h is right to m terms, 1 − c·h = x^m·e and h + h·(1 − c·h) is right to
    2m. Only the p coefficients of e that can differ from 0 are used, so the cost is O(n·p).

    Args:
        series: c, any length, c_0 ≠ 0; missing coefficients are zero.
        terms: n, at least 1.

    Returns:
        Shape (n,), float64; entries overflow to infinity where the inverse does.

    >>> reciprocal(np.array([1.0, -0.5]), 4)
    array([1.   , 0.5  , 0.25 , 0.125])
    """
    c = trimmed(series[:terms])
    if c.size == 1:
        return padded(1.0 / c, terms)
    if terms >= _LONG and c.size <= _WIDEST_RECURRENCE:
        return _long_reciprocal(c, terms)
    inverse = np.empty(terms)
    m = 1
    inverse[0] = 1.0 / c[0]
    with np.errstate(over="ignore", invalid="ignore"):
        while m < terms:
            size = min(2 * m, terms)
            inverse[m:size] = next_reciprocal_terms(c, inverse[:m], size)
            m = size
    return inverse


def next_reciprocal_terms(c: Vector, inverse: Vector, size: int) -> Vector:
    """The terms m … size − 1 of 1/c from its first m, size ≤ 2m.

    Cyclic products of at least `size` points are enough: what wraps around falls on terms that are
    known.
    """
    m = inverse.size
    if c.size * size <= DIRECT_PRODUCTS or c.size <= m // 2:
        # Only the last p − 1 known terms enter the error.
        known = inverse[max(0, m - c.size + 1) :]
        error = multiply(c[:size], known, size + known.size - 1)[known.size : known.size + size - m]
        return -multiply(inverse[: size - m], error, size - m)
    points = fft_size(size)
    spectrum = np.fft.rfft(inverse, points)
    error = -np.fft.irfft(np.fft.rfft(c[:size], points) * spectrum, points)[m:size]
    return np.fft.irfft(np.fft.rfft(error, points) * spectrum, points)[: size - m]


def _long_reciprocal(c: Vector, terms: int) -> Vector:
    """The recurrence h_t = −Σ_j c_j h_{t−j}/c_0 in blocks.

    It ends where |h| stays below 1e-290 for p terms.
    """
    from scipy.signal import lfilter

    inverse = np.zeros(terms)
    state = np.zeros(c.size - 1)
    impulse = np.eye(1, _BLOCK)[0]
    for start in range(0, terms, _BLOCK):
        block = inverse[start : start + _BLOCK]
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            block[:], state = lfilter([1.0], c, impulse[: block.size], zi=state)
        impulse[0] = 0.0
        if np.abs(block[-c.size :]).max() < _UNDERFLOW:
            break
        if not np.isfinite(block[-1]):
            inverse[start + _BLOCK :] = np.inf
            break
    return inverse


def frozen_vector(values: ArrayLike, symbol: str, meaning: str) -> Vector:
    """A read-only float64 copy of a finite, non-empty vector.

    Raises:
        ValueError: the values are not a finite vector of at least one entry.
    """
    vector = np.array(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(
            f"{symbol} ({meaning}) must be a non-empty vector; got shape {vector.shape}."
        )
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
    """s, the divisors of the columns.

    Raises:
        ValueError: s is not a vector of n positive numbers.
    """
    factors = positive_vector(values, "s", "column scale")
    if factors.size != rounds:
        raise ValueError(f"s (column scale) must have n={rounds} entries; got {factors.size}.")
    return factors


def check_leading(rounds: int, horizon: int) -> None:
    """Check that T lies in 1 … n.

    Raises:
        ValueError: it does not.
    """
    if not 1 <= rounds <= horizon:
        raise ValueError(f"T (leading rounds) must be between 1 and n={horizon}; got {rounds}.")


def check_count(value: int, label: str, most: int | None = None) -> int:
    """Return a positive integer, at most n where that is given.

    Raises:
        ValueError: the value is none.
    """
    constraint = "of at least 1"
    largest = math.inf
    if most is not None:
        constraint = f"between 1 and n={most}"
        largest = most
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise ValueError(f"{label} must be an integer {constraint}; got {value!r}.")
    return value
