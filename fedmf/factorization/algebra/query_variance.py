"""Row norms of A·diag(s)·LTT(h) for a Toeplitz workload: a product that is not Toeplitz."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from fedmf.factorization.algebra.series import fft_size, multiply, padded, trimmed
from fedmf.typing import Vector

_BLOCK_ENTRIES = 4_000_000
# Lags that are summed one by one; ranges that are.
_FEW_LAGS, _BLOCK = 256, 128
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
