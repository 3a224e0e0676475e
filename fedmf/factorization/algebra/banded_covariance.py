"""Row norms of K⁻¹ for a banded lower-triangular K, their weighted sum and its gradient, in O(n·w²).

K⁻¹z is a linear recurrence with w = (diagonals of K) − 1 past values. Cut into blocks of s ≥ w rows, K is
block bidiagonal with diagonal blocks L_i and blocks N_i below them, and the covariance of block i of K⁻¹z is

    Q_0 = L_0⁻¹L_0⁻ᵀ,    Q_{i+1} = L_{i+1}⁻¹(I + N_i Q_i N_iᵀ)L_{i+1}⁻ᵀ.

So the squared row norms are the diagonals of the Q_i, and derivatives with respect to Q_i obey the adjoint
recurrence. The matrix K⁻¹, which is dense, is never formed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedmf.typing import Array, Vector

_SMALLEST_BLOCK = 16


def inverse_norm(band: Array, weigh: Callable[[Vector], Vector]) -> tuple[float, Array]:
    """Σ_t v_t‖(K⁻¹)_{t,:}‖², v held fixed in its gradient with respect to the entries of K inside the band.

    The derivative with respect to Q_i is Λ_i = diag(v of block i) + N_iᵀTᵀΛ_{i+1}T N_i with T = L_{i+1}⁻¹;
    the gradient is 2TᵀΛ_{i+1}T N_i Q_i in N_i and −2TᵀΛ_{i+1}Q_{i+1} in L_{i+1}.

    Args:
        band: shape (n, w + 1), band[j, d] = K_{j+d,j}, zero where j + d ≥ n; K_{jj} ≠ 0.
        weigh: v, shape (n,), from the squared row norms of K⁻¹.

    Returns:
        The value and the gradient, of the band's shape, zero where j + d ≥ n. (inf, 0) on overflow.

    >>> inverse_norm(np.array([[2.0, -1.0], [1.0, 0.0]]), np.ones_like)
    (1.5, array([[-0.5, -0.5],
           [-2.5,  0. ]]))
    """
    diagonal, below = _blocks(band)
    size = diagonal.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        inverses, throughs, covariances = _covariances(diagonal, below)
        norms = np.diagonal(covariances, axis1=1, axis2=2).reshape(-1)[: len(band)]
        counted = np.zeros((len(diagonal), size))
        counted.reshape(-1)[: len(band)] = weigh(norms)
        value = float(np.einsum("ij,ijj->", counted, covariances))
    if not np.isfinite(value) or value > 1e200:
        return float("inf"), np.zeros_like(band)
    adjoints = np.zeros_like(covariances)
    np.einsum("ijj->ij", adjoints)[...] = counted
    for i in range(len(diagonal) - 1, 0, -1):
        adjoints[i - 1] += throughs[i - 1].T @ adjoints[i] @ throughs[i - 1]
    solved = inverses.swapaxes(1, 2) @ adjoints
    slopes = np.zeros((len(diagonal), 2 * size, size))
    np.matmul(-2.0 * solved, covariances, out=slopes[:, :size])
    np.matmul(2.0 * solved[1:] @ throughs, covariances[:-1], out=slopes[:-1, size:])
    return value, _gathered(slopes, band.shape)


def inverse_row_norms(band: Array) -> Array:
    """‖(K⁻¹)_{t,:}‖², shape (n,); see `inverse_norm` for the band.

    >>> inverse_row_norms(np.array([[2.0, -1.0], [1.0, 0.0]]))
    array([0.25, 1.25])
    """
    covariances = _covariances(*_blocks(band))[2]
    return np.diagonal(covariances, axis1=1, axis2=2).reshape(-1)[: len(band)].copy()


def _block_size(n: int, width: int) -> int:
    return min(n, max(width - 1, _SMALLEST_BLOCK))


def _columns(stacked: Array, width: int) -> Array:
    """Entry [i, c, d] is that of diagonal d in column c of the i-th L above the N below it: a view.

    Diagonals from s + 1 on are of no column: they occur only where all of K is one block, and are zero there.
    """
    count, _, size = stacked.shape
    block, row, entry = stacked.strides
    shape, strides = (count, size, min(width, size + 1)), (block, row + entry, row)
    return np.lib.stride_tricks.as_strided(stacked, shape, strides)


def _blocks(band: Array) -> tuple[Array, Array]:
    """L of shape (m, s, s) and N of shape (m − 1, s, s); rows past n are those of the identity."""
    n, width = band.shape
    size = _block_size(n, width)
    stacked = np.zeros((-(-n // size), 2 * size, size))
    columns = _columns(stacked, width)
    whole, rest = divmod(n, size)
    columns[:whole] = band[: n - rest, : columns.shape[2]].reshape(whole, size, -1)
    if rest:
        columns[-1, :rest] = band[n - rest :, : columns.shape[2]]
        columns[-1, rest:, 0] = 1.0
    return stacked[:, :size], stacked[:-1, size:]


def _covariances(diagonal: Array, below: Array) -> tuple[Array, Array, Array]:
    """L_i⁻¹ and Q_i for every block, and L_{i+1}⁻¹N_i."""
    inverses = _lower_inverses(diagonal)
    throughs = inverses[1:] @ below
    covariances = inverses @ inverses.swapaxes(1, 2)
    for i, through in enumerate(throughs):
        covariances[i + 1] += through @ covariances[i] @ through.T
    return inverses, throughs, covariances


def _lower_inverses(blocks: Array) -> Array:
    """L⁻¹ of lower-triangular blocks, shape (m, s, s), by halves.

    Only NumPy's BLAS: SciPy brings its own threads, and two pools that take turns wait for each other.
    """
    count, size, _ = blocks.shape
    if size <= _SMALLEST_BLOCK:
        return np.where(np.tri(size, dtype=bool), np.linalg.inv(blocks), 0.0)
    half = size // 2
    if size % 2:
        first, last = _lower_inverses(blocks[:, :half, :half]), _lower_inverses(blocks[:, half:, half:])
    else:
        halves = np.concatenate([blocks[:, :half, :half], blocks[:, half:, half:]])
        first, last = np.split(_lower_inverses(halves), [count])
    inverses = np.zeros_like(blocks)
    inverses[:, :half, :half], inverses[:, half:, half:] = first, last
    np.negative(last @ blocks[:, half:, :half] @ first, out=inverses[:, half:, :half])
    return inverses


def _gathered(stacked: Array, shape: tuple[int, int]) -> Array:
    """The blocks' entries inside the band, in the band's layout."""
    n, width = shape
    columns = _columns(stacked, width)
    band = np.zeros(shape)
    whole, rest = divmod(n, stacked.shape[2])
    band[: n - rest, : columns.shape[2]] = columns[:whole].reshape(n - rest, -1)
    if rest:
        band[n - rest :, : columns.shape[2]] = columns[-1, :rest]
    for j in range(max(0, n - width + 1), n):
        band[j, n - j :] = 0.0
    return band
