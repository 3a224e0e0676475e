"""Truncated power series, the algebra of lower-triangular Toeplitz (LTT) matrices, and checked vectors.

LTT(c)·LTT(h) = LTT(c·h), the product of the series c(x) and h(x) cut after x^{n−1}; so inverses and products
of these matrices are reciprocals and products of series.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.typing import ArrayLike

from fedmf.typing import Vector

# Up to this many products a direct sum is used: it is fast enough and keeps the *relative* accuracy of small
# coefficients, which an FFT loses.
_DIRECT_PRODUCTS = 4_000_000
# From here on reciprocals run the recurrence in compiled blocks; it stops early where nothing is left.
_LONG, _BLOCK, _WIDEST_RECURRENCE, _UNDERFLOW = 65_536, 65_536, 16, 1e-290
# What may be left out beside the largest coefficient where only sums count.
_NOTHING, _FEWEST_SETTLED = 1e-17, 1024


def binomial_series(exponent: float, terms: int) -> Vector:
    """The first coefficients of (1 − x)^a: c_0 = 1, c_j = c_{j−1}·(j − 1 − a)/j.

    Args:
        exponent: a, any real number.
        terms: how many coefficients, at least 1.

    Returns:
        Shape (terms,), float64.

    >>> binomial_series(-0.5, 4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    >>> binomial_series(0.5, 3)
    array([ 1.   , -0.5  , -0.125])
    """
    j = np.arange(1, terms)
    return np.concatenate([[1.0], np.cumprod((j - 1 - exponent) / j)])


def factored_power(factors: Iterable[tuple[float, float, int]], exponent: float, terms: int) -> Vector:
    """The first coefficients of Π (1 − ρx^s)^{e·γ} over the factors (ρ, e, s), scaled to c_0 = 1.

    Args:
        factors: (ρ, e, s) for (1 − ρx^s)^e.
        exponent: γ.
        terms: how many coefficients, at least 1.

    >>> factored_power([(1.0, -1.0, 1), (0.5, -1.0, 1)], 0.5, 3)
    array([1.     , 0.75   , 0.59375])
    """
    product = np.ones(1)
    for root, factor_exponent, stride in factors:
        factor = np.zeros(terms)
        count = -(-terms // stride)
        factor[::stride] = binomial_series(factor_exponent * exponent, count) * np.power(
            root, np.arange(count)
        )
        product = factor if product.size == 1 else multiply(product, trimmed(factor), terms)
    return padded(product, terms)


def power(series: Vector, exponent: float, terms: int) -> Vector:
    """The first coefficients of (a(x)/a_0)^γ; O(terms²).

    From b = a^γ follows a·b′ = γ·a′·b, hence b_t = (1/(t a_0))·Σ_{j=1..t} (jγ − t + j) a_j b_{t−j}.

    Args:
        series: a, any length, a_0 ≠ 0; missing coefficients are zero.
        exponent: γ.
        terms: at least 1.

    >>> power(np.ones(3), 0.5, 3)
    array([1.   , 0.5  , 0.375])
    """
    a = trimmed(series[:terms]) / series[0]
    b = np.zeros(terms)
    b[0] = 1.0
    weights = np.arange(a.size) * (exponent + 1.0)
    for t in range(1, terms):
        last = min(t, a.size - 1)
        b[t] = ((weights[1 : last + 1] - t) * a[1 : last + 1]) @ b[t - last : t][::-1] / t
    return b


def fft_size(length: int) -> int:
    """The next power of two.

    >>> fft_size(1000)
    1024
    """
    return 1 << (length - 1).bit_length()


def padded(series: Vector, terms: int) -> Vector:
    """The series with zeros behind it, shape (terms,); itself where it has as many.

    >>> padded(np.array([1.0, 2.0]), 3)
    array([1., 2., 0.])
    """
    if series.size == terms:
        return series
    longer = np.zeros(terms)
    longer[: series.size] = series
    return longer


def multiply(left: Vector, right: Vector, terms: int) -> Vector:
    """The first coefficients of the product of two series, shape (terms,); directly or by FFT.

    >>> multiply(np.array([1.0, 1.0]), np.array([1.0, -1.0]), 4)
    array([ 1.,  0., -1.,  0.])
    """
    square, left, right = left is right, left[:terms], right[:terms]
    if left.size * right.size <= _DIRECT_PRODUCTS:
        return padded(np.convolve(left, right)[:terms], terms)
    size = _fft_points(left.size + right.size - 1)
    spectrum = np.fft.rfft(left, size)
    spectrum *= spectrum if square else np.fft.rfft(right, size)
    return padded(np.fft.irfft(spectrum, size)[:terms], terms)


def product(factors: Iterable[Vector], terms: int) -> Vector:
    """The first coefficients of a product of series of at most so many, all by FFT: for sums and slopes.

    The error is about 1e-16 of the largest coefficient, hence small coefficients may be wrong in all digits.

    >>> product([np.array([1.0, 1.0]), np.array([1.0, -1.0]), np.array([1.0, 1.0])], 4).round(12)
    array([ 1.,  1., -1., -1.])
    """
    factors = list(factors)
    size = _fft_points(sum(factor.size - 1 for factor in factors) + 1)
    spectra = {id(factor): np.fft.rfft(factor, size) for factor in factors}
    return np.fft.irfft(math.prod(spectra[id(factor)] for factor in factors), size)[:terms]


def lagged_products(left: Vector, right: Vector, lags: int) -> Vector:
    """Σ_t left_t·right_{t−j} for j < lags ≤ n, both of shape (n,).

    >>> lagged_products(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 0.0]), 2)
    array([3., 6.])
    """
    n = left.size
    if n * n <= _DIRECT_PRODUCTS:
        return multiply(right, left[::-1], n)[::-1][:lags]
    size = _fft_points(n + lags - 1)
    return np.fft.irfft(np.fft.rfft(left, size) * np.fft.rfft(right, size).conj(), size)[:lags]


def reciprocal(series: Vector, terms: int) -> Vector:
    """The first coefficients of 1/c(x), the first column of LTT(c)⁻¹.

    Newton's iteration: if h is right to m terms, 1 − c·h = x^m·e and h + h·(1 − c·h) is right to 2m.
    Only the p coefficients of e that can differ from 0 are used, so the cost is O(n·p).

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
    inverse, m = np.empty(terms), 1
    inverse[0] = 1.0 / c[0]
    with np.errstate(over="ignore", invalid="ignore"):
        while m < terms:
            size = min(2 * m, terms)
            inverse[m:size] = _next_terms(c, inverse[:m], size)
            m = size
    return inverse


def settled_reciprocal(series: Vector, terms: int) -> Vector:
    """The first coefficients of 1/c(x), without those at the end that are nothing beside the largest.

    For searches and other sums in which a share of 1e-17 of the largest coefficient does not count: as many
    terms are computed as it takes for p in a row to stay below that, which a stable inverse reaches after
    some tens of p.

    Args:
        series: c, any length, c_0 ≠ 0.
        terms: n, at least 1.

    Returns:
        Shape (m,), m ≤ n; fewer and not finite where they overflow.

    >>> settled_reciprocal(np.array([1.0, -0.5]), 10**6).size < 2000
    True
    """
    c = _without_nothing(series[:terms])
    inverse = reciprocal(c, min(terms, max(_FEWEST_SETTLED, 8 * c.size)))
    with np.errstate(over="ignore", invalid="ignore"):
        while (m := inverse.size) < terms:
            size = np.abs(inverse)
            if not (largest := size.max()) < np.inf:
                return inverse
            if size[-c.size :].max() <= _NOTHING * largest:
                return _without_nothing(inverse)
            inverse = np.concatenate([inverse, _next_terms(c, inverse, min(2 * m, terms))])
    return inverse


def _without_nothing(series: Vector) -> Vector:
    size = np.abs(series)
    return series[: int(np.flatnonzero(size > _NOTHING * size.max())[-1]) + 1]


def _next_terms(c: Vector, inverse: Vector, size: int) -> Vector:
    """The terms m … size − 1 of 1/c from its first m, size ≤ 2m.

    Cyclic products of at least `size` points are enough: what wraps around falls on terms that are known.
    """
    m = inverse.size
    if c.size * size <= _DIRECT_PRODUCTS or c.size <= m // 2:
        if c.size >= size:
            error = np.convolve(c[1:size], inverse, "valid")
        else:
            # Only the last p − 1 known terms enter the error.
            known = inverse[max(0, m - c.size + 1) :]
            error = multiply(c, known, known.size + c.size - 1)[known.size : known.size + size - m]
        return -multiply(inverse[: size - m], error, size - m)
    points = _fft_points(size)
    spectrum = np.fft.rfft(inverse, points)
    error = -np.fft.irfft(np.fft.rfft(c[:size], points) * spectrum, points)[m:size]
    return np.fft.irfft(np.fft.rfft(error, points) * spectrum, points)[: size - m]


def _fft_points(length: int) -> int:
    """The least 2^i, 3·2^i, 5·2^i or 9·2^i that is large enough."""
    candidates = (factor << max(0, (-(-length // factor) - 1).bit_length()) for factor in (1, 3, 5, 9))
    return min(candidates)


def _long_reciprocal(c: Vector, terms: int) -> Vector:
    """The recurrence h_t = −Σ_j c_j h_{t−j}/c_0 in blocks, until |h| stays below 1e-290 for p terms."""
    from scipy.signal import lfilter

    inverse, state = np.zeros(terms), np.zeros(c.size - 1)
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


def trimmed(series: Vector) -> Vector:
    """The series without its trailing zeros; at least one coefficient remains.

    >>> trimmed(np.array([1.0, 0.0, 2.0, 0.0]))
    array([1., 0., 2.])
    """
    nonzero = np.flatnonzero(series)
    return series[: nonzero[-1] + 1] if nonzero.size else series[:1]


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


_BLOCK_ENTRIES = 4_000_000
# Lags that are summed one by one; ranges that are.
_FEW_LAGS, _BLOCK_query_variance = 256, 128
# Any other workload than prefix sums takes an FFT per round.
_LARGEST_GENERAL = 131_072


def scaled_query_variances(workload: Vector, correlation: Vector, scale: Vector) -> Vector:
    """‖(A diag(s) LTT(h))_{t,:}‖² for A = LTT(a).

    Prefix sums add one row per round, B_t = B_{t−1} + s_t·(h_t, …, h_0), which costs O(n·q) for few (q)
    coefficients of h and O(n log n + q log² q) for many; any other workload takes an FFT per column, in
    blocks.

    Args:
        workload: a, shape (n,).
        correlation: h, shape (n,).
        scale: s, shape (n,).

    Returns:
        Shape (n,), float64.

    Raises:
        ValueError: n > 131,072 and the workload is not of prefix sums.

    >>> scaled_query_variances(np.ones(2), np.array([1.0, -0.5]), np.array([1.0, 2.0]))
    array([1., 4.])
    """
    if (workload == 1.0).all():
        return _prefix(trimmed(correlation), scale)
    if scale.size > _LARGEST_GENERAL:
        raise ValueError(
            f"n (rounds) must be at most {_LARGEST_GENERAL} for scaled columns and this workload; got "
            f"{scale.size}. Use prefix sums, or columns that are not normalised."
        )
    return _general(workload, correlation, scale)


def _prefix(h: Vector, scale: Vector) -> Vector:
    """‖B_t‖² = ‖B_{t−1}‖² + s_t² K_tt + 2 s_t u_t with K = LTT(h)·LTT(h)ᵀ and u_t = Σ_{i<t} s_i K_it."""
    n = scale.size
    long = min(h.size, n) > _FEW_LAGS and n > _FEW_LAGS
    past = _past(padded(h, n), scale) if long else _past_by_lags(h, scale)
    squares = np.cumsum(padded(h * h, n))
    return np.cumsum(scale * (scale * squares + 2.0 * past))


def _past_by_lags(h: Vector, scale: Vector) -> Vector:
    """u from the diagonals of K, which are running sums of products of h."""
    n, q = scale.size, h.size
    past = np.zeros(n)
    for lag in range(1, min(q, n)):
        diagonal = np.cumsum(h[: q - lag] * h[lag:])[: n - lag]
        past[lag : lag + diagonal.size] += scale[: diagonal.size] * diagonal
        past[lag + diagonal.size :] += diagonal[-1] * scale[diagonal.size : n - lag]
    return past


def _past(h: Vector, scale: Vector) -> Vector:
    """u by halving the rounds: what the first half of a range adds to the second is three products of series.

    From K_{i,i+g} = K_{l,l+g} + Σ_{l<m≤i} h_m h_{m+g} follows for the range l ≤ i < M ≤ t < r

        Σ_i s_i K_it = Σ_i s_i K_{l,l+t−i} + Σ_e h_{t−e} G_e,    G_e = Σ_{x≥1} s_{l+e+x} h_{l+x}, l+e+x < M,

    and the row of K that the second half needs. Ranges are handled down to a block, which takes the
    diagonals, or to one in which h is 0 and so K_it = K_{l,l+t−i}: one product. O(n log n + q log² q) for q
    coefficients of h.
    """
    past = np.zeros(scale.size)
    ranges = [(0, scale.size, h[0] * h)]
    while ranges:
        start, end, row = ranges.pop()
        length = end - start
        if length <= _BLOCK_query_variance:
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
        first, whole = np.fft.rfft(own[: half + 1], points), np.fft.rfft(own, points)
        left = np.fft.rfft(scale[start : start + half], points)
        gained = np.fft.irfft(left * np.fft.rfft(own[:half], points).conj(), points)[:half]
        moved = left * np.fft.rfft(row[:length], points) + np.fft.rfft(gained, points) * whole
        past[start + half : end] += np.fft.irfft(moved, points)[half:length]
        more = np.fft.irfft(whole * first.conj(), points)[: length - half]
        ranges.append((start, start + half, row[:half]))
        ranges.append((start + half, end, row[: length - half] + more))
    return past


def _within(h: Vector, scale: Vector, row: Vector) -> Vector:
    """Σ_{l ≤ i < t} s_i K_it of a short range from K_{l,l+g}: all diagonals at once, summed over i."""
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
