"""Predicted bias and variance of the second moment v of an adaptive server optimizer."""

from __future__ import annotations

import numpy as np

from fedmf.matrices.arrays import Array
from fedmf.matrices.factorization import Factorization


def released_variances(weights: Array, strategy: Factorization, std: float, size: int) -> Array:
    """Var v̂_t of energies released with noise of their own: std²·‖(A₂C₂⁻¹)_t‖²/s², shape (n,).

    Args:
        weights: A₂, shape (n, n).
        strategy: C₂.
        std: τ₂/m, the standard deviation of z in the released block energy.
        size: s; 1 for single coordinates.
    """
    solved = np.linalg.solve(strategy.materialize().T, weights.T)
    return (std / size) ** 2 * np.sum(solved**2, axis=0)


def squared_variances(
    weights: Array, strategy: Factorization, std: float, size: int, signal: Array
) -> Array:
    """Var v̂_t of squares of the noisy mean: Σ_ij a_i a_j (4Q_ij⟨ū_i, ū_j⟩ + 2s Q_ij²)/s², shape
    (n,).

    Args:
        weights: A₂, shape (n, n).
        strategy: C₁, so that Q = std²·C₁⁻¹C₁⁻ᵀ.
        std: τ₁/m, the standard deviation of z in an entry of the mean.
        size: s.
        signal: Gram matrix ⟨ū_i, ū_j⟩ of the block over rounds, shape (n, n).

    References:
        Kalinin, Upadhyay and Lampert (2025), Lemma C.4, for single coordinates, in absolute noise
        levels.
    """
    Q = _covariance(strategy, std)
    kernel = 4 * Q * signal + 2 * size * Q**2
    return np.einsum("ti,ij,tj->t", weights, kernel, weights, optimize=True) / size**2


def squared_biases(weights: Array, strategy: Factorization, std: float) -> Array:
    """E v̂_t − (v without noise) of squares that are not debiased: Σ_i a_i Q_ii, shape (n,), for
    any block.
    """
    return weights @ np.diag(_covariance(strategy, std))


def _covariance(strategy: Factorization, std: float) -> Array:
    inverse = np.linalg.inv(strategy.materialize())
    return std**2 * (inverse @ inverse.T)
