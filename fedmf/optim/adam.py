"""Server Adam over blocks: post-processed, debiased, or with a second moment released jointly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.moments import SecondMoment
from fedmf.optim.energies import Energies
from fedmf.optim.move import Move
from fedmf.optim.server_optimizer import RoundRelease

__all__ = ["ServerAdam", "check_decay"]


@dataclass(frozen=True)
class ServerAdam:
    """Adam on the privatised mean update u, with one v for each block B:

        m ← β₁m + (1 − β₁)u,        v_B ← β₂v_B + (1 − β₂)q_B/|B|,
        m̂ = m/(1 − β₁^{t+1}),       v̂ = v/(1 − β₂^{t+1}),
        Δ_j = m̂_j/(√max(v̂_B(j), 0) + ε + ρ√v̄),

    where v̄ is the mean of max(v̂, 0) over coordinates. ρ is an ε in units of the updates themselves: with
    ε = 0 the rule does not change when all updates are rescaled. With single coordinates and q = u² it is
    Adam. Updates are new minus old parameters, so Δ is added.

    Args:
        move: learning rate, update clipping and weight decay.
        energies: where q comes from: `SquaredRelease` or `ReleasedEnergies`.
        beta1: 0 ≤ β₁ < 1; with 0 no m is kept.
        beta2: 0 ≤ β₂ < 1.
        epsilon: ε ≥ 0, in units of the updates.
        relative_epsilon: ρ ≥ 0.

    Raises:
        ValueError: a value is out of range, or ε = ρ = 0, so that noise that takes v̂ below zero would divide
            by zero.

    References:
        Kingma and Ba (2015); Kalinin, Upadhyay and Lampert (2025), Algorithm 2, corrected as docs/errata.md
        tells.
    """

    move: Move
    energies: Energies
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 0.0
    relative_epsilon: float = 0.1

    def __post_init__(self) -> None:
        check_decay("β₁ (server-beta1)", self.beta1)
        check_decay("β₂ (server-beta2)", self.beta2)
        for name, value in (("ε", self.epsilon), ("ρ", self.relative_epsilon)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} (of server Adam) must be finite and >= 0; got {value}.")
        if self.epsilon == self.relative_epsilon == 0:
            raise ValueError("ε or ρ (of server Adam) must be positive; got 0 for both.")

    @property
    def second_moment(self) -> SecondMoment | None:
        """What must be released beside the mean."""
        return self.energies.second_moment

    @property
    def second_form(self) -> SecondForm:
        """How that is formed."""
        return self.energies.second_form

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """m = 0, shape (d,), if β₁ > 0, and v = 0, shape (blocks,).

        Raises:
            ValueError: the blocks do not cover the parameters.
        """
        covered, d = self.energies.blocks.dimension, parameters.numel()
        if covered != d:
            raise ValueError(f"blocks must cover d = {d} parameters; got {covered}.")
        state = {"second": parameters.new_zeros(self.energies.blocks.count)}
        return {"first": torch.zeros_like(parameters), **state} if self.beta1 > 0 else state

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `ServerOptimizer.step`.

        Raises:
            ValueError: the release lacks the second moment that the rule needs.
        """
        mean = release.mean.to(parameters.dtype)
        first = mean
        if self.beta1 > 0:
            first = mean.mul(1 - self.beta1).add_(state["first"], alpha=self.beta1)
        energies = self.energies.blocks.means(self.energies.of(release, mean))
        second = energies.mul_(1 - self.beta2).add_(state["second"], alpha=self.beta2)
        parameters = self.move(t, parameters, self._direction(t, first, second))
        kept = {"first": first} if self.beta1 > 0 else {}
        return parameters, {**kept, "second": second}

    def _direction(self, t: int, first: Tensor, second: Tensor) -> Tensor:
        blocks = self.energies.blocks
        squares = second.div(1 - self.beta2 ** (t + 1)).clamp_(min=0.0)
        scale = squares.sqrt().add_(self.epsilon)
        if self.relative_epsilon > 0:
            scale += self.relative_epsilon * blocks.weighted_mean(squares).sqrt()
        # v̂ = 0 everywhere and ε = 0: nothing is known of the scale of the updates, so that none is made.
        inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
        return blocks.spread(inverse).mul_(first).div_(1 - self.beta1 ** (t + 1))


def check_decay(label: str, decay: float) -> None:
    """Refuse a decay outside [0, 1).

    Raises:
        ValueError: it is.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"{label} must lie in [0, 1); got {decay}.")
