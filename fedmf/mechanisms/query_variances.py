"""Variances of the queries of a Toeplitz workload, for every kind of strategy matrix.

With A = LTT(a) and unit noise z, query t has variance ‖(A C⁻¹)_{t,:}‖². Designs are compared and
errors stated by it; what is private does not depend on it.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.banded import Banded, inverse_row_norms, padded_band
from fedmf.matrices.factorization import Dense, Factorization, Stamped
from fedmf.matrices.series import fft_size, multiply, padded, reciprocal, trimmed
from fedmf.matrices.toeplitz import ScaledToeplitz

# Banded C: the most coefficients of A⁻¹ with which K = C·A⁻¹ counts as banded, and the entries of
# A that are solved for at once where it does not.
_LONGEST_INVERSE = 8
_CHUNK_ENTRIES = 4_000_000
# Stamped C: for workloads other than prefix sums the rows of A are multiplied with the dense
# inverse of one block.
_LARGEST_BLOCK = 2048
# Scaled Toeplitz C: lags that are summed one by one; ranges that are; any other workload than
# prefix sums takes an FFT per round, in blocks of so many entries.
_FEW_LAGS = 256
_BLOCK = 128
_LARGEST_GENERAL = 131_072
_BLOCK_ENTRIES = 4_000_000


@singledispatch
def toeplitz_query_variances(factorization: Factorization, coefficients: Vector) -> Vector:
    """‖(A C⁻¹)_{t,:}‖² for A = LTT(a), shape (n,).

    Args:
        factorization: C of n rounds.
        coefficients: a, shape (n,).

    Raises:
        TypeError: C is of no kind that is known here.
        ValueError: the kind of C has no answer for this workload at this horizon.

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> toeplitz_query_variances(Toeplitz([1.0], 3), np.ones(3))
    array([1., 2., 3.])
    """
    raise TypeError(f"C (factorization) must be of a known kind; got {type(factorization)}.")


@toeplitz_query_variances.register
def _of_dense(factorization: Dense, coefficients: Vector) -> Vector:
    inverse = factorization.inverse
    if (coefficients == 1.0).all():
        product = np.cumsum(inverse, axis=0)
    else:
        lag = np.subtract.outer(np.arange(factorization.rounds), np.arange(factorization.rounds))
        product = np.where(lag >= 0, coefficients[np.maximum(lag, 0)], 0.0) @ inverse
    return np.einsum("ij,ij->i", product, product)


@toeplitz_query_variances.register
def _of_stamped(factorization: Stamped, coefficients: Vector) -> Vector:
    """Σ_d v_d(u) for t = Im + u and d = 0 … I, with v_d(u) = ‖(a_{dm+u−i})_i C₀⁻¹‖²."""
    size = factorization.base.rounds
    blocks = -(-factorization.rounds // size)
    variances = toeplitz_query_variances(factorization.base, coefficients[:size])
    if (coefficients == 1.0).all():
        earlier = np.full((blocks, size), variances[-1])
    else:
        earlier = _earlier_blocks(factorization.base, coefficients, blocks)
    earlier[0] = variances
    return np.cumsum(earlier, axis=0).reshape(-1)[: factorization.rounds]


def _earlier_blocks(base: Factorization, coefficients: Vector, blocks: int) -> Array:
    """v_d(u) for d ≥ 1, shape (blocks, m); row 0 is left zero."""
    size = base.rounds
    variances = np.zeros((blocks, size))
    if blocks == 1:
        return variances
    if size > _LARGEST_BLOCK:
        raise ValueError(
            f"m (rounds of a stamped block) must be at most {_LARGEST_BLOCK} for this workload;"
            f" got {size}. Use more stamps."
        )
    inverse = np.linalg.solve(base.materialize(), np.eye(size))
    a = np.pad(coefficients, (0, blocks * size - coefficients.size))
    lag = np.subtract.outer(np.arange(size), np.arange(size))
    for block in range(1, blocks):
        variances[block] = np.square(a[block * size + lag] @ inverse).sum(axis=1)
    return variances


@toeplitz_query_variances.register
def _of_banded(factorization: Banded, coefficients: Vector) -> Vector:
    """Take O(np²) where A⁻¹ has few coefficients; else O(n²p) time and bounded memory.

    It has few for prefix sums, exponential averages and momentum.
    """
    inverse = few_inverse(coefficients)
    if inverse is not None:
        return inverse_row_norms(without_workload(factorization.band, inverse))
    from scipy.linalg import solve_banded

    n, p = factorization.band.shape
    transposed = np.zeros((p, n))  # rows of Cᵀ: [Cᵀ]_{j,j+d} = band[j, d]
    for d in range(p):
        transposed[p - 1 - d, d:] = factorization.band[: n - d, d]
    norms = np.empty(n)
    step = max(1, _CHUNK_ENTRIES // n)
    for start in range(0, n, step):
        rows = np.arange(start, min(n, start + step))
        lag = np.subtract.outer(rows, np.arange(n)).T
        queries = np.where(lag >= 0, coefficients[np.maximum(lag, 0)], 0.0)
        solved = solve_banded((0, p - 1), transposed, queries, overwrite_b=True, check_finite=False)
        norms[rows] = np.einsum("jt,jt->t", solved, solved)
    return norms


@toeplitz_query_variances.register
def _of_scaled_toeplitz(factorization: ScaledToeplitz, coefficients: Vector) -> Vector:
    """Take O(n log n) where s is constant, else O(n²) time and O(n) memory."""
    h = factorization.noising_coefs
    s = factorization.scale
    if not np.all(s == s[0]):
        return _scaled_query_variances(coefficients, h, s)
    if (coefficients == 1.0).all():
        row = np.cumsum(h)
    else:
        row = multiply(coefficients, trimmed(h), factorization.rounds)
    return s[0] ** 2 * np.cumsum(row**2)


def few_inverse(workload: Vector) -> Vector | None:
    """The coefficients of A⁻¹ for A = LTT(workload), if they are few; else None.

    >>> few_inverse(np.ones(5)), few_inverse(np.arange(20, 0, -1.0) ** 2)
    (array([ 1., -1.]), None)
    """
    inverse = reciprocal(workload, workload.size)
    largest = np.abs(inverse).max()
    short = trimmed(np.where(np.abs(inverse) > 1e-14 * largest, inverse, 0.0))
    if short.size > _LONGEST_INVERSE:
        return None
    return short


def without_workload(band: Any, inverse: Vector) -> Any:
    """The band of C·LTT(inverse) in C's layout, wider by the lags of the inverse.

    [C A⁻¹]_{j+d,j} = Σ_m inverse_m·C_{j+d,j+m}. Takes and gives an array or a tensor.

    >>> without_workload(np.array([[1.0, 0.5], [1.0, 0.0]]), np.array([1.0, -1.0]))
    array([[ 1. , -0.5,  0. ],
           [ 1. ,  0. ,  0. ]])
    """
    q = inverse.size
    product: Any = 0
    for m, value in enumerate(inverse[: len(band)].tolist()):
        product = product + value * padded_band(band[m:], m, q - 1 - m, m)
    return product


def _scaled_query_variances(a: Vector, h: Vector, s: Vector) -> Vector:
    """‖(A diag(s) LTT(h))_{t,:}‖² for A = LTT(a).

    Prefix sums add one row per round, B_t = B_{t−1} + s_t·(h_t, …, h_0), which costs O(n·q) for few
    (q) coefficients of h and O(n log n + q log² q) for many; any other workload takes an FFT per
    column, in blocks.

    Args:
        a: coefficients of the workload, shape (n,).
        h: noising coefficients, shape (n,).
        s: column scale, shape (n,).

    Returns:
        Shape (n,), float64.

    Raises:
        ValueError: n > 131,072 and the workload is not of prefix sums.

    >>> _scaled_query_variances(np.ones(2), np.array([1.0, -0.5]), np.array([1.0, 2.0]))
    array([1., 4.])
    """
    if (a == 1.0).all():
        return _prefix(trimmed(h), s)
    if s.size > _LARGEST_GENERAL:
        raise ValueError(
            f"n (rounds) must be at most {_LARGEST_GENERAL} for scaled columns and this workload;"
            f" got {s.size}. Use prefix sums, or columns that are not normalized."
        )
    return _general(a, h, s)


def _prefix(h: Vector, scale: Vector) -> Vector:
    """Sum up ‖B_t‖² = ‖B_{t−1}‖² + s_t² K_tt + 2 s_t u_t.

    Here K = LTT(h)·LTT(h)ᵀ and u_t = Σ_{i<t} s_i K_it.
    """
    n = scale.size
    if min(h.size, n) > _FEW_LAGS:
        past = _past(padded(h, n), scale)
    else:
        past = _past_by_lags(h, scale)
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
    """u by halving the rounds.

    The first half of a range adds three products of series to the second.
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
    """Σ_{l ≤ i < t} s_i K_it of a short range from K_{l,l+g}: all diagonals at once."""
    size = h.size
    longer = np.concatenate([h, np.zeros(size)])
    diagonals = sliding_window_view(longer, size)[:size] * h
    diagonals[:, 0] = row[:size]
    np.cumsum(diagonals, axis=1, out=diagonals)
    # Entry (g, i) belongs to round i + g: row g is written g places further on.
    board = np.zeros(size * (2 * size + 1))
    shifted = as_strided(board, (size, size), ((2 * size + 1) * 8, 8))
    np.multiply(diagonals, scale, out=shifted)
    shifted[0] = 0.0
    return board[: size * 2 * size].reshape(size, 2 * size).sum(axis=0)[:size]


def _general(a: Vector, h: Vector, scale: Vector) -> Vector:
    n = scale.size
    size = fft_size(2 * n - 1)
    spectrum = np.fft.rfft(a, size)
    norms = np.zeros(n)
    step = max(1, _BLOCK_ENTRIES // size)
    for start in range(0, n, step):
        columns = np.arange(start, min(n, start + step))
        lag = np.subtract.outer(np.arange(n), columns).T
        rows = np.where(lag >= 0, h[np.maximum(lag, 0)], 0.0) * scale
        product = np.fft.irfft(np.fft.rfft(rows, size) * spectrum, size)[:, :n]
        norms += np.einsum("ij,ij->j", product, product)
    return norms
