"""Where a server optimizer takes the second moment of a round from, and what it is worth beside the sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.moments import SecondMoment, default_weight
from fedmf.optim.blocks import Blocks
from fedmf.optim.server_optimizer import RoundRelease
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

    >>> from fedmf.mechanisms.closed_forms import identity
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


class Energies(Protocol):
    """Block totals q_t of a round, and what must be released for them.

    Attributes:
        blocks: which coordinates share one.
    """

    @property
    def blocks(self) -> Blocks:
        """Which coordinates share one second moment."""
        ...

    @property
    def second_moment(self) -> SecondMoment | None:
        """What must be released beside the mean."""
        ...

    @property
    def second_form(self) -> SecondForm:
        """How that is formed."""
        ...

    def of(self, release: RoundRelease, mean: Tensor) -> Tensor:
        """q_t, shape (blocks.count,), for the mean cast to the type of the parameters."""
        ...


@dataclass(frozen=True)
class SquaredRelease:
    """Post-processing: squares of the noisy mean u_t itself, q_B = ‖u_B‖² − |B|·Var_t.

    With Var_t = `RoundRelease.mean_variance` subtracted it estimates ‖ū_B‖² without bias, ū the mean without
    noise, under independent and correlated noise alike; without, DP-Adam's v is mostly the noise.

    Args:
        blocks: which coordinates share one second moment.
        debias: whether |B|·Var_t is subtracted.

    References:
        Tang, Shpilevskiy and Lécuyer (2024), "DP-AdamBC", for independent noise and single coordinates.
    """

    blocks: Blocks
    debias: bool = True

    @property
    def second_moment(self) -> None:
        """None."""
        return None

    @property
    def second_form(self) -> SecondForm:
        """Of no meaning here."""
        return "per-user"

    def of(self, release: RoundRelease, mean: Tensor) -> Tensor:
        """See `Energies.of`."""
        energies = self.blocks.energies(mean)
        if not self.debias:
            return energies
        sizes = torch.ones_like(energies) if self.blocks.count == self.blocks.dimension else self._sizes(mean)
        return energies.sub_(sizes, alpha=release.mean_variance)

    def _sizes(self, like: Tensor) -> Tensor:
        return torch.tensor(self.blocks.sizes, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class ReleasedEnergies:
    """Joint moment estimation: block energies released with noise of their own.

    Args:
        blocks: which coordinates share one second moment.
        form: how it is formed, which decides what v means: "per-user" the mean over users of their energies,
            E_u‖x_u,B‖² = ‖ū_B‖² + Var_u; "squared-mean" ‖ū_B‖² alone.
    """

    blocks: Blocks
    form: SecondForm = "per-user"

    @property
    def second_moment(self) -> SecondMoment:
        """Squares, or sums of squares over the blocks."""
        return self.blocks.second_moment()

    @property
    def second_form(self) -> SecondForm:
        """As given."""
        return self.form

    def of(self, release: RoundRelease, mean: Tensor) -> Tensor:
        """See `Energies.of`.

        Raises:
            ValueError: the round released no second moment, or one of another size.
        """
        if release.second is None or release.second.numel() != self.blocks.count:
            got = "none" if release.second is None else release.second.numel()
            raise ValueError(f"q (second) must hold {self.blocks.count} block energies; got {got}.")
        return release.second.to(mean.dtype)
