"""Predicted errors of the second moment v of an adaptive server optimizer, and the weight λ they suggest.

For one block B of s coordinates, v̂_t is the weighted mean a = row t of A₂ of the rounds' energies over s.
ū_i is block B of round i's mean without noise, Q the covariance of its noise over rounds.
"""

from __future__ import annotations

import math

import numpy as np

from fedmf.factorization import Factorization, UserRange, stated_sensitivity
from fedmf.moments import default_weight
from fedmf.participation import Participation
from fedmf.typing import Array


def averaging_weights(decay: float, rounds: int) -> Array:
    """A₂ of Adam: (1 − β)β^{t−i}/(1 − β^{t+1}) for i ≤ t, shape (n, n). Rows sum to one.

    >>> averaging_weights(0.5, 2).round(4).tolist()
    [[1.0, 0.0], [0.3333, 0.6667]]
    """
    lag = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    weights = np.where(lag >= 0, (1 - decay) * decay ** np.maximum(lag, 0).astype(float), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


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


def squared_variances(weights: Array, strategy: Factorization, std: float, size: int, signal: Array) -> Array:
    """Var v̂_t of squares of the noisy mean: Σ_ij a_i a_j (4Q_ij⟨ū_i, ū_j⟩ + 2s Q_ij²)/s², shape (n,).

    Args:
        weights: A₂, shape (n, n).
        strategy: C₁, so that Q = std²·C₁⁻¹C₁⁻ᵀ.
        std: τ₁/m, the standard deviation of z in an entry of the mean.
        size: s.
        signal: Gram matrix ⟨ū_i, ū_j⟩ of the block over rounds, shape (n, n).

    References:
        Kalinin, Upadhyay and Lampert (2025), Lemma C.4, for single coordinates, in absolute noise levels.
    """
    Q = _covariance(strategy, std)
    kernel = 4 * Q * signal + 2 * size * Q**2
    return np.einsum("ti,ij,tj->t", weights, kernel, weights, optimize=True) / size**2


def squared_biases(weights: Array, strategy: Factorization, std: float) -> Array:
    """E v̂_t − (v without noise) of squares that are not debiased: Σ_i a_i Q_ii, shape (n,), for any block."""
    return weights @ np.diag(_covariance(strategy, std))


def relative_energy_error(
    second: Factorization,
    participation: Participation,
    noise_multiplier: float,
    cohort_size: int,
    share: float,
) -> float:
    """ρ = σ·sens(C₂)·[C₂⁻¹]_00/(m·p): std of v̂_B over v_B in the first round, before any averaging.

    For a block that holds the share p of ζ² in each user's energy, under zero-out and for the noise that a
    release of the second moment alone would need. Neither ζ nor the size of the block matters. Averaging
    over 1/(1 − β₂) rounds makes the error smaller later, but a v̂ that is mostly noise in the first rounds
    has moved the model by then.

    Args:
        second: C₂.
        participation: (n, k, b).
        noise_multiplier: σ.
        cohort_size: m.
        share: p, in (0, 1]; one over the number of blocks where they are alike.
    """
    if not 0 < share <= 1:
        raise ValueError(f"p (share of the energy in a block) must be in (0, 1]; got {share}.")
    first_row = math.sqrt(float(second.noise_row_variances()[0]))
    sens = stated_sensitivity(second, participation).value
    return noise_multiplier * sens * first_row / (cohort_size * share)


def energy_weight(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    relative_error: float,
) -> float:
    """λ that minimises (noise of the first moment)·(1 + relative variance of v).

    Under zero-out, with ν = λζ² sens(C₂)²/sens(C₁)², the first moment's variance grows by 1 + ν and the
    relative variance of v is ρ²(1 + ν)/ν; their product (1 + ν)(1 + ρ²(1 + ν)/ν) is least at
    ν = ρ/√(1 + ρ²). So an accurate v costs the mean next to nothing, and no v gets more than half of s².
    Under replace-one what is free is taken.

    Args:
        first: C₁.
        second: C₂.
        participation: (n, k, b).
        users: ζ, dimension class, adjacency.
        relative_error: ρ, `relative_energy_error`.

    Raises:
        ValueError: ρ is not positive.

    >>> from fedmf.factorization import identity
    >>> C, p = identity(4), Participation(4, 1, 4)
    >>> round(energy_weight(C, C, p, UserRange(1.0, 2, "zero-out"), 0.1), 4)
    0.0995
    """
    if not 0 < relative_error < math.inf:
        raise ValueError(f"ρ (relative error of v) must be positive and finite; got {relative_error}.")
    even = default_weight(first, second, participation, users)
    if users.adjacency == "replace-one":
        return even
    return even * relative_error / math.hypot(1.0, relative_error)


def _covariance(strategy: Factorization, std: float) -> Array:
    inverse = np.linalg.inv(strategy.materialize())
    return std**2 * (inverse @ inverse.T)
