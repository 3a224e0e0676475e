"""Banded strategy matrices that need not be Toeplitz.

K⁻¹z is a linear recurrence where K is banded. Cut into blocks of s rows, K is block bidiagonal with
diagonal blocks L_i and blocks N_i below them, and the covariance of block i of K⁻¹z is

    Q_0 = L_0⁻¹L_0⁻ᵀ,    Q_{i+1} = L_{i+1}⁻¹(I + N_i Q_i N_iᵀ)L_{i+1}⁻ᵀ.

So the variances of the rows of K⁻¹z are the diagonals of the Q_i, in O(np²); the dense K⁻¹ is never
formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.series import check_leading, column_factors
from fedmf.matrices.streaming_inverse import Recurrence

_SMALLEST_BLOCK = 16


@dataclass(frozen=True, eq=False)
class Banded(Factorization, kind="banded"):
    """A lower-triangular C with p diagonals.

    Args:
        band: shape (n, p), p ≤ n, band[j, d] = C_{j+d,j}; zero where j + d ≥ n; a positive first
            column.

    Raises:
        ValueError: the band is not a finite matrix of this form.

    References:
        Choquette-Choo et al. (2023), "(Amplified) Banded Matrix Factorization"; McKenna (2024),
        Algorithm 1.

    >>> Banded([[1.0, 0.5], [2.0, 0.25], [4.0, 0.0]]).materialize()
    array([[1.  , 0.  , 0.  ],
           [0.5 , 2.  , 0.  ],
           [0.  , 0.25, 4.  ]])
    """

    band: Array
    rounds: int = field(init=False)
    stored = ("band",)

    def __post_init__(self) -> None:
        band = np.array(self.band, dtype=np.float64)
        if band.ndim != 2 or not 1 <= band.shape[-1] <= len(band):
            raise ValueError(f"C (band) must have shape (n, p) with 1 <= p <= n; got {band.shape}.")
        if not np.isfinite(band).all():
            j, d = np.argwhere(~np.isfinite(band))[0].tolist()
            raise ValueError(
                f"C (band) must be finite; got {band[j, d]} at column {j}, diagonal {d}."
            )
        if not (band[:, 0] > 0).all():
            at = int(np.flatnonzero(band[:, 0] <= 0)[0])
            raise ValueError(f"C_jj (diagonal) must be positive; got {band[at, 0]} at j={at}.")
        outside = beyond_last_row(*band.shape)
        if band[outside].any():
            j, d = np.argwhere(outside & (band != 0))[0].tolist()
            raise ValueError(
                f"C (band) must end at row n={len(band)}; got {band[j, d]} at row {j + d}."
            )
        band.setflags(write=False)
        object.__setattr__(self, "band", band)
        object.__setattr__(self, "rounds", len(band))

    @property
    def bands(self) -> int:
        """p, the number of diagonals of C down to the last non-zero one."""
        return int(np.flatnonzero(self.band.any(axis=0))[-1]) + 1

    def columns(self, indices: Sequence[int] | NDArray[np.integer]) -> Array:
        """The columns of C with these 0-based indices, shape (n, m)."""
        chosen = np.asarray(indices, dtype=np.int64)
        n, p = self.band.shape
        tall = np.zeros((n + p, chosen.size))
        tall[np.add.outer(np.arange(p), chosen), np.arange(chosen.size)] = self.band[chosen].T
        return tall[:n]

    def column_sum(self, indices: Sequence[int] | NDArray[np.integer]) -> Vector:
        """Σ_j C_{:,j} over distinct 0-based indices j, shape (n,)."""
        chosen = np.asarray(indices, dtype=np.int64)
        n, p = self.band.shape
        total = np.zeros(n + p)
        np.add.at(total, np.add.outer(chosen, np.arange(p)), self.band[chosen])
        return total[:n]

    def gram_diagonal(self, gap: int) -> Vector:
        """[CᵀC]_{i,i+gap} = Σ_d band[i, d + gap]·band[i + gap, d], shape (n − gap,)."""
        n, p = self.band.shape
        if gap >= p:
            return np.zeros(n - gap)
        return np.einsum("id,id->i", self.band[: n - gap, gap:], self.band[gap:, : p - gap])

    def streaming_inverse(self) -> Recurrence:
        """C y = z solved forward, row t with its own coefficients; keeps p − 1 past outputs."""
        n = self.rounds
        p = self.bands
        feedback = np.zeros((n, p - 1))
        for lag in range(1, p):
            feedback[lag:, lag - 1] = self.band[: n - lag, lag] / self.band[lag:, 0]
        return Recurrence((1.0 / self.band[:, 0])[:, None], feedback, np.ones(n))

    def noise_row_variances(self) -> Vector:
        """diag(C⁻¹C⁻ᵀ), shape (n,), in O(np²)."""
        return inverse_row_norms(self.band)

    def leading(self, rounds: int) -> Banded:
        """The leading T×T block of C."""
        check_leading(rounds, self.rounds)
        band = self.band[:rounds, :rounds].copy()
        band[beyond_last_row(*band.shape)] = 0.0
        return Banded(band)

    def columns_divided_by(self, factors: Vector) -> Banded:
        """C with column j divided by s_j."""
        return Banded(self.band / column_factors(factors, self.rounds)[:, None])


def beyond_last_row(n: int, p: int) -> NDArray[np.bool_]:
    """Return which entries of a band of shape (n, p) lie below the last row of C."""
    return np.add.outer(np.arange(n), np.arange(p)) >= n


def padded_band(band: Any, before: int, after: int, rows: int) -> Any:
    """Pad an array or a tensor with columns of zeros before and after, and rows of zeros below."""
    if isinstance(band, np.ndarray):
        return np.pad(band, ((0, rows), (before, after)))
    import torch

    return torch.nn.functional.pad(band, (before, after, 0, rows))


def stacked_blocks(band: Any) -> Any:
    """L_i above N_i for each block, shape (m, 2s, s); rows past n are those of the identity.

    Row c of a block of columns, widened to 2s + 1 and read off at width 2s, moves c places to the
    right.
    """
    n, width = band.shape
    size = min(n, max(width - 1, _SMALLEST_BLOCK, n // 1024))
    count = -(-n // size)
    wide = padded_band(band, 0, 2 * size + 1 - width, count * size - n)
    wide[n:, 0] = 1.0
    blocks = wide.reshape(count, -1)[:, : 2 * size * size]
    return blocks.reshape(count, size, 2 * size).swapaxes(1, 2)


def inverse_row_norms(band: Array) -> Vector:
    """‖(K⁻¹)_{t,:}‖², shape (n,), for K with this band.

    >>> inverse_row_norms(np.array([[2.0, -1.0], [1.0, 0.0]]))
    array([0.25, 1.25])
    """
    stacked = stacked_blocks(band)
    size = stacked.shape[2]
    inverses = np.where(np.tri(size, dtype=bool), np.linalg.inv(stacked[:, :size]), 0.0)
    covariances = inverses @ inverses.swapaxes(1, 2)
    for i, through in enumerate(inverses[1:] @ stacked[:-1, size:]):
        covariances[i + 1] += through @ covariances[i] @ through.T
    return np.diagonal(covariances, axis1=1, axis2=2).reshape(-1)[: len(band)].copy()
