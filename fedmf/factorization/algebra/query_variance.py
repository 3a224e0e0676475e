"""Row norms of A·diag(s)·LTT(h) for a Toeplitz workload: a product that is not Toeplitz."""

from __future__ import annotations

import numpy as np

from fedmf.factorization.algebra.series import fft_size, trimmed
from fedmf.typing import Vector

__all__ = ["scaled_query_variances"]

_BLOCK_ENTRIES = 4_000_000


def scaled_query_variances(workload: Vector, correlation: Vector, scale: Vector) -> Vector:
    """‖(A diag(s) LTT(h))_{t,:}‖² for A = LTT(a).

    Prefix sums add one row per round, B_t = B_{t−1} + s_t·(h_t, …, h_0), which costs O(n·q) for q
    coefficients of h; any other workload takes an FFT per column, in blocks.

    Args:
        workload: a, shape (n,).
        correlation: h, shape (n,).
        scale: s, shape (n,).

    Returns:
        Shape (n,), float64.

    >>> scaled_query_variances(np.ones(2), np.array([1.0, -0.5]), np.array([1.0, 2.0]))
    array([1., 4.])
    """
    if (workload == 1.0).all():
        return _prefix(trimmed(correlation), scale)
    return _general(workload, correlation, scale)


def _prefix(h: Vector, scale: Vector) -> Vector:
    """Only the last q entries of B_t change; the others are settled and only their sum of squares is kept."""
    n, q = scale.size, h.size
    reversed_h, row = h[::-1].copy(), np.zeros(scale.size + q - 1)
    norms, settled = np.empty(n), 0.0
    for t in range(n):
        # row is stored with an offset of q - 1, so that the window of round t is row[t : t + q].
        window = row[t : t + q]
        window += scale[t] * reversed_h
        if t < q - 1:
            window[: q - 1 - t] = 0.0
        norms[t] = settled + window @ window
        settled += window[0] ** 2
    return norms


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
