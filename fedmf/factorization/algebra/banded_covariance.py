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
from numpy.typing import NDArray

from fedmf.typing import Array, Vector

__all__ = ["inverse_norm", "inverse_row_norms"]

Places = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]
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
    diagonal, below, size = _blocks(band)
    with np.errstate(over="ignore", invalid="ignore"):
        inverses, covariances = _covariances(diagonal, below)
        norms = np.diagonal(covariances, axis1=1, axis2=2).reshape(-1)[: len(band)]
        counted = np.pad(weigh(norms), (0, _padding(band, size))).reshape(-1, size)
        value = float(np.einsum("ij,ijj->", counted, covariances))
    if not np.isfinite(value) or value > 1e200:
        return float("inf"), np.zeros_like(band)
    slope_diagonal, slope_below = np.empty_like(diagonal), np.zeros_like(below)
    adjoint = np.diag(counted[-1])
    for i in range(len(diagonal) - 1, -1, -1):
        solved = inverses[i].T @ adjoint
        slope_diagonal[i] = -2.0 * solved @ covariances[i]
        if i:
            through = inverses[i] @ below[i - 1]
            pulled = through.T @ adjoint
            slope_below[i - 1] = 2.0 * (solved @ through) @ covariances[i - 1]
            adjoint = pulled @ through
            adjoint.flat[:: size + 1] += counted[i - 1]
    return value, _gathered(slope_diagonal, slope_below, band.shape)


def inverse_row_norms(band: Array) -> Array:
    """‖(K⁻¹)_{t,:}‖², shape (n,); see `inverse_norm` for the band.

    >>> inverse_row_norms(np.array([[2.0, -1.0], [1.0, 0.0]]))
    array([0.25, 1.25])
    """
    diagonal, below, _ = _blocks(band)
    covariances = _covariances(diagonal, below)[1]
    return np.diagonal(covariances, axis1=1, axis2=2).reshape(-1)[: len(band)].copy()


def _block_size(band: Array) -> int:
    n, width = band.shape
    return min(n, max(width - 1, _SMALLEST_BLOCK))


def _padding(band: Array, size: int) -> int:
    return -len(band) % size


def _places(size: int, width: int) -> tuple[Places, Places]:
    """(row, column, diagonal) of the entries of L_i and of N_i."""
    row, column = np.indices((size, size))
    inside = (row >= column) & (row - column < width)
    under = size + row - column < width
    first = row[inside], column[inside], (row - column)[inside]
    return first, (row[under], column[under], (size + row - column)[under])


def _blocks(band: Array) -> tuple[Array, Array, int]:
    """L of shape (m, s, s), N of shape (m − 1, s, s) and s; rows past n are those of the identity."""
    size, width = _block_size(band), band.shape[1]
    padded = np.pad(band, ((0, _padding(band, size)), (0, 0)))
    padded[len(band) :, 0] = 1.0
    columns = padded.reshape(-1, size, width)
    (r, c, d), (ru, cu, du) = _places(size, width)
    diagonal = np.zeros((len(columns), size, size))
    below = np.zeros((len(columns) - 1, size, size))
    diagonal[:, r, c] = columns[:, c, d]
    below[:, ru, cu] = columns[:-1, cu, du]
    return diagonal, below, size


def _covariances(diagonal: Array, below: Array) -> tuple[Array, Array]:
    """L_i⁻¹ and Q_i for every block."""
    inverses = _lower_inverses(diagonal)
    covariances = inverses @ inverses.swapaxes(1, 2)
    for i in range(1, len(diagonal)):
        through = inverses[i] @ below[i - 1]
        covariances[i] += through @ covariances[i - 1] @ through.T
    return inverses, covariances


def _lower_inverses(blocks: Array) -> Array:
    """L⁻¹ of lower-triangular blocks, shape (m, s, s), by halves.

    Only NumPy's BLAS: SciPy brings its own threads, and two pools that take turns wait for each other.
    """
    size = blocks.shape[1]
    if size <= _SMALLEST_BLOCK:
        return np.tril(np.asarray(np.linalg.inv(blocks), dtype=np.float64))
    half = size // 2
    inverses = np.zeros_like(blocks)
    inverses[:, :half, :half] = first = _lower_inverses(blocks[:, :half, :half])
    inverses[:, half:, half:] = last = _lower_inverses(blocks[:, half:, half:])
    inverses[:, half:, :half] = -last @ blocks[:, half:, :half] @ first
    return inverses


def _gathered(diagonal: Array, below: Array, shape: tuple[int, ...]) -> Array:
    """The blocks' entries inside the band, in the band's layout."""
    n, width = shape
    count, size = len(diagonal), diagonal.shape[1]
    (r, c, d), (ru, cu, du) = _places(size, width)
    columns = np.zeros((count, size, width))
    columns[:, c, d] = diagonal[:, r, c]
    columns[:-1, cu, du] = below[:, ru, cu]
    band = columns.reshape(-1, width)[:n]
    band[np.add.outer(np.arange(n), np.arange(width)) >= n] = 0.0
    return band
