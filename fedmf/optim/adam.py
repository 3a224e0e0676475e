"""Server Adam over blocks: post-processed, debiased, or with a second moment released jointly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmf.mechanisms.workload import ToeplitzWorkload, decaying
from fedmf.optim.adaptive import AdaptiveOptions, AdaptiveRule
from fedmf.optim.blocks import Blocks
from fedmf.optim.energies import Energies, ReleasedEnergies, SquaredRelease
from fedmf.optim.options import check_decay
from fedmf.values import Field


@dataclass(frozen=True)
class ServerAdam(AdaptiveRule):
    """Adam on the privatised mean update u, with one v for each block B:

        m ← β₁m + (1 − β₁)u,        v_B ← β₂v_B + (1 − β₂)q_B/|B|,
        m̂ = m/(1 − β₁^{t+1}),       v̂ = v/(1 − β₂^{t+1}),
        Δ_j = m̂_j/(√max(v̂_B(j), 0) + ε + ρ√v̄),

    where v̄ is the mean of max(v̂, 0) over coordinates. ρ is an ε in units of the updates themselves: with
    ε = 0 the rule does not change when all updates are rescaled. With single coordinates and q = u² it is
    Adam.

    Args:
        beta2: 0 ≤ β₂ < 1.
        epsilon: ε ≥ 0, in units of the updates.
        relative_epsilon: ρ ≥ 0.

    Raises:
        ValueError: a value is out of range, or ε = ρ = 0, so that noise that takes v̂ below zero would divide
            by zero.

    References:
        Kingma and Ba (2015); Kalinin, Upadhyay and Lampert (2025), Algorithm 2, corrected as
        docs/dev/errata.md tells.
    """

    beta2: float = 0.99
    epsilon: float = 0.0
    relative_epsilon: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("β₂ (beta2)", self.beta2)
        for label, value in (("ε (epsilon)", self.epsilon), ("ρ (relative_epsilon)", self.relative_epsilon)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{label} must be finite and >= 0; got {value}.")
        if self.epsilon == self.relative_epsilon == 0:
            raise ValueError("ε (epsilon) or ρ (relative_epsilon) must be positive; got 0 for both.")

    @property
    def _initial_second(self) -> float:
        return 0.0

    def _accumulate(self, second: Tensor, energies: Tensor) -> Tensor:
        return energies.mul_(1 - self.beta2).add_(second, alpha=self.beta2)

    def _direction(self, t: int, first: Tensor, second: Tensor) -> Tensor:
        blocks = self.energies.blocks
        squares = second.div(1 - self.beta2 ** (t + 1)).clamp_(min=0.0)
        scale = squares.sqrt().add_(self.epsilon)
        if self.relative_epsilon > 0:
            scale += self.relative_epsilon * blocks.weighted_mean(squares).sqrt()
        # v̂ = 0 everywhere and ε = 0: nothing is known of the scale of the updates, so that none is made.
        inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
        return blocks.spread(inverse).mul_(first).div_(1 - self.beta1 ** (t + 1))


@dataclass(frozen=True)
class Adam(AdaptiveOptions):
    """`ServerAdam` on squares of the noisy mean: its second moment is mostly the noise."""

    kind: ClassVar[str] = "adam"
    beta2: Annotated[float, Field("decay of the second moment", "β₂")] = 0.99
    epsilon: Annotated[float, Field("damping ε in units of the updates")] = 0.0
    relative_epsilon: Annotated[
        float, Field("damping ρ relative to the mean second moment; not 0 together with ε")
    ] = 0.1

    def build(self, shapes: Sequence[Sequence[int]], rounds: int) -> ServerAdam:
        """See `ChosenOptimizer.build`."""
        decays, damping = (self.beta1, self.beta2), (self.epsilon, self.relative_epsilon)
        return ServerAdam(self.move(rounds), self.energies(shapes), *decays, *damping)

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        """Decaying sums, β₂."""
        return decaying(self.beta2, rounds)


@dataclass(frozen=True)
class AdamDebiased(Adam):
    """`Adam` with the known variance of the noise subtracted from the squares."""

    kind: ClassVar[str] = "adam-debiased"

    def energies(self, shapes: Sequence[Sequence[int]]) -> Energies:
        """Squares of the noisy mean less the variance of their noise."""
        return SquaredRelease(Blocks.of(shapes, self.blocks))


@dataclass(frozen=True)
class JmeAdam(Adam):
    """`Adam` with a second moment that is released beside the mean, with noise of its own."""

    kind: ClassVar[str] = "jme-adam"

    def energies(self, shapes: Sequence[Sequence[int]]) -> Energies:
        """Energies released with noise of their own."""
        return ReleasedEnergies(Blocks.of(shapes, self.blocks))
