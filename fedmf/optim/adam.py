"""Adam as a server optimizer, with one second moment per block of coordinates.

`ServerAdam` is the update rule. `Adam`, `AdamDebiased` and `JmeAdam` are the options of a run, and
differ in the source of the second moment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmf.mechanisms.workload import ToeplitzWorkload, decaying, iterates
from fedmf.moments import SecondMoment
from fedmf.optim.energies import BlockKind, Blocks, Energies
from fedmf.optim.optimizer_options import OptimizerOptions, check_decay
from fedmf.optim.server_optimizer import Move
from fedmf.release.round_release import RoundRelease, ServerOptimizer
from fedmf.values import Field


@dataclass(frozen=True)
class ServerAdam(ServerOptimizer):
    """Adam on the privatised mean update u, with one v per block B.

        m ← β₁m + (1 − β₁)u,        v_B ← β₂v_B + (1 − β₂)q_B/|B|,
        m̂ = m/(1 − β₁^{t+1}),       v̂ = v/(1 − β₂^{t+1}),
        Δ_j = m̂_j/(√max(v̂_B(j), 0) + eps + ρ√v̄),

    where v̄ is the mean of max(v̂, 0) over coordinates. ρ is damping relative to the updates: with
    eps = 0 the rule is invariant to their scale. With single coordinates and q = u² it is Adam.
    Updates are new minus old parameters, so the direction Δ is added.

    Args:
        move: learning rate and weight decay.
        energies: where q comes from.
        beta1: 0 ≤ β₁ < 1; with 0 there is no m.
        beta2: 0 ≤ β₂ < 1.
        eps: damping in units of the updates, at least 0.
        relative_eps: ρ ≥ 0.

    Raises:
        ValueError: a value is out of range, or eps = ρ = 0, where noise that takes v̂ below zero
            would lead to a division by zero.

    References:
        Kingma and Ba (2015); Kalinin, Upadhyay and Lampert (2025), Algorithm 2, with the correction
        in docs/dev/errata.md.
    """

    move: Move
    energies: Energies
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 0.0
    relative_eps: float = 0.1

    def __post_init__(self) -> None:
        check_decay("β₁ (beta1)", self.beta1)
        check_decay("β₂ (beta2)", self.beta2)
        _check_damping("eps (damping)", self.eps)
        _check_damping("ρ (relative_eps)", self.relative_eps)
        if self.eps == self.relative_eps == 0:
            raise ValueError("eps or ρ (relative_eps) must be positive; got 0 for both.")

    @property
    def second_moment(self) -> SecondMoment | None:
        """The second moment that must be released with the mean, if any."""
        return self.energies.second_moment

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """m = 0, shape (d,), if β₁ > 0, and v = 0, shape (blocks,).

        Raises:
            ValueError: the blocks do not cover the parameters.
        """
        blocks = self.energies.blocks
        d = parameters.numel()
        if blocks.dimension != d:
            raise ValueError(f"blocks must cover d = {d} parameters; got {blocks.dimension}.")
        second = parameters.new_zeros(blocks.count)
        if self.beta1 == 0:
            return {"second": second}
        return {"first": torch.zeros_like(parameters), "second": second}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """θ_{t+1}, and m and v after round t.

        Raises:
            ValueError: the release lacks the second moment that the rule needs.
        """
        mean = release.mean.to(parameters.dtype)
        energies = self.energies.blocks.means(self.energies.of(release, mean))
        second = energies.mul_(1 - self.beta2).add_(state["second"], alpha=self.beta2)
        if self.beta1 == 0:
            return self.move(t, parameters, self._direction(t, mean, second)), {"second": second}
        first = mean.mul(1 - self.beta1).add_(state["first"], alpha=self.beta1)
        parameters = self.move(t, parameters, self._direction(t, first, second))
        return parameters, {"first": first, "second": second}

    def _direction(self, t: int, first: Tensor, second: Tensor) -> Tensor:
        """Δ_t from m and v, freshly allocated."""
        blocks = self.energies.blocks
        squares = second.div(1 - self.beta2 ** (t + 1)).clamp_(min=0.0)
        scale = squares.sqrt().add_(self.eps)
        if self.relative_eps > 0:
            scale += self.relative_eps * blocks.weighted_mean(squares).sqrt()
        # With v̂ = 0 everywhere and eps = 0 the scale of the updates is unknown: make no step.
        inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
        return blocks.spread(inverse).mul_(first).div_(1 - self.beta1 ** (t + 1))


def _check_damping(label: str, damping: float) -> None:
    if not 0 <= damping < math.inf:
        raise ValueError(f"{label} must be finite and >= 0; got {damping}.")


@dataclass(frozen=True)
class Adam(OptimizerOptions):
    """`ServerAdam` on squares of the noisy mean, which are mostly noise."""

    kind: ClassVar[str] = "adam"
    beta1: Annotated[float, Field("decay of the first moment", "β₁")] = 0.9
    blocks: Annotated[
        BlockKind,
        Field(
            "coordinates that share a second moment: coordinate (none), channel, tensor or model"
        ),
    ] = "tensor"
    beta2: Annotated[float, Field("decay of the second moment", "β₂")] = 0.99
    eps: Annotated[float, Field("damping in units of the updates")] = 0.0
    relative_eps: Annotated[
        float, Field("damping ρ relative to the mean second moment; not 0 together with eps")
    ] = 0.1

    def build(self, shapes: Sequence[Sequence[int]], rounds: int) -> ServerAdam:
        """`ServerAdam` with the schedule over the horizon and the blocks of the model."""
        return ServerAdam(
            self.move(rounds),
            self.energies(shapes),
            self.beta1,
            self.beta2,
            self.eps,
            self.relative_eps,
        )

    def energies(self, shapes: Sequence[Sequence[int]]) -> Energies:
        """The source of the second moment: squares of the noisy mean, as they are."""
        return Energies(Blocks.of(shapes, self.blocks), "squared")

    def workload(self, rounds: int) -> ToeplitzWorkload:
        """The workload of momentum β₁, with v taken as fixed and m without its correction."""
        return iterates(self.rates(rounds), self.beta1, weight_decay=self.weight_decay)

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        """Sums that decay by β₂ in each round."""
        return decaying(self.beta2, rounds)


@dataclass(frozen=True)
class AdamDebiased(Adam):
    """`Adam` with the known variance of the noise subtracted from the squares."""

    kind: ClassVar[str] = "adam-debiased"

    def energies(self, shapes: Sequence[Sequence[int]]) -> Energies:
        """Squares of the noisy mean less the variance of their noise."""
        return Energies(Blocks.of(shapes, self.blocks), "debiased")


@dataclass(frozen=True)
class JmeAdam(Adam):
    """`Adam` with a second moment that is released with the mean and has its own noise."""

    kind: ClassVar[str] = "jme-adam"

    def energies(self, shapes: Sequence[Sequence[int]]) -> Energies:
        """Energies released with noise of their own."""
        return Energies(Blocks.of(shapes, self.blocks), "released")
