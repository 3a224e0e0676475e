"""What adaptive server optimizers share, a first moment and a second one of each block; Adagrad and Yogi."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.mechanisms.workload import ToeplitzWorkload, decaying, iterates
from fedmf.moments import SecondMoment
from fedmf.optim.blocks import BlockKind, Blocks
from fedmf.optim.energies import Energies, SquaredRelease
from fedmf.optim.move import Move
from fedmf.optim.options import OptimizerOptions, check_decay
from fedmf.optim.server_optimizer import RoundRelease
from fedmf.values import Field


@dataclass(frozen=True)
class AdaptiveRule(ABC):
    """m ← β₁m + (1 − β₁)u, v_B from v_B and q_B/|B|, and a direction from both.

    Updates are new minus old parameters, so the direction is added.

    Args:
        move: learning rate, update clipping and weight decay.
        energies: where q comes from: `SquaredRelease` or `ReleasedEnergies`.
        beta1: 0 ≤ β₁ < 1; with 0 no m is kept.

    Raises:
        ValueError: a value is out of range.
    """

    move: Move
    energies: Energies
    beta1: float = 0.9

    def __post_init__(self) -> None:
        check_decay("β₁ (beta1)", self.beta1)

    @property
    @abstractmethod
    def _initial_second(self) -> float:
        """v before round 0."""

    @abstractmethod
    def _accumulate(self, second: Tensor, energies: Tensor) -> Tensor:
        """v of the next round, freshly allocated or in place of `energies`."""

    @abstractmethod
    def _direction(self, t: int, first: Tensor, second: Tensor) -> Tensor:
        """Δ_t from m and v, freshly allocated."""

    @property
    def second_moment(self) -> SecondMoment | None:
        """What must be released beside the mean."""
        return self.energies.second_moment

    @property
    def second_form(self) -> SecondForm:
        """How that is formed."""
        return self.energies.second_form

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """m = 0, shape (d,), if β₁ > 0, and v, shape (blocks,).

        Raises:
            ValueError: the blocks do not cover the parameters.
        """
        blocks, d = self.energies.blocks, parameters.numel()
        if blocks.dimension != d:
            raise ValueError(f"blocks must cover d = {d} parameters; got {blocks.dimension}.")
        state = {"second": parameters.new_full((blocks.count,), self._initial_second)}
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
        second = self._accumulate(state["second"], energies)
        parameters = self.move(t, parameters, self._direction(t, first, second))
        velocity = {"first": first} if self.beta1 > 0 else {}
        return parameters, {**velocity, "second": second}


@dataclass(frozen=True)
class AdaptiveOptions(OptimizerOptions):
    """An adaptive server optimizer."""

    beta1: Annotated[float, Field("decay of the first moment", "β₁")] = 0.9
    blocks: Annotated[
        BlockKind,
        Field("coordinates that share a second moment: each its own, an output channel, a tensor, the model"),
    ] = "tensor"

    def workload(self, rounds: int) -> ToeplitzWorkload:
        """That of momentum β₁: v is taken as fixed, the correction of m for its start is left out."""
        return iterates(self.rates(rounds), self.beta1, weight_decay=self.weight_decay)

    def energies(self, shapes: Sequence[Sequence[int]]) -> Energies:
        """Where the second moment comes from: squares of the noisy mean, as they are."""
        return SquaredRelease(Blocks.of(shapes, self.blocks), debias=False)


@dataclass(frozen=True)
class ServerAdagrad(AdaptiveRule):
    """Δ = m/(√max(v, 0) + τ) with v ← v + q and v = τ² at first.

    Args:
        epsilon: τ > 0, the degree of adaptivity, in units of the updates.

    References:
        Reddi et al. (2021), "Adaptive federated optimization", Algorithm 2.
    """

    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"τ (epsilon) must be positive and finite; got {self.epsilon}.")

    @property
    def _initial_second(self) -> float:
        return self.epsilon**2

    def _accumulate(self, second: Tensor, energies: Tensor) -> Tensor:
        return second + energies

    def _direction(self, t: int, first: Tensor, second: Tensor) -> Tensor:
        inverse = second.clamp(min=0.0).sqrt_().add_(self.epsilon).reciprocal_()
        return self.energies.blocks.spread(inverse).mul_(first)


@dataclass(frozen=True)
class ServerYogi(ServerAdagrad):
    """The same with v ← v − (1 − β₂)·q·sign(v − q).

    Args:
        beta2: 0 ≤ β₂ < 1.
    """

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("β₂ (beta2)", self.beta2)

    def _accumulate(self, second: Tensor, energies: Tensor) -> Tensor:
        return second - (second - energies).sign_().mul_(energies).mul_(1 - self.beta2)


@dataclass(frozen=True)
class FedAdagrad(AdaptiveOptions):
    """`ServerAdagrad`: steps shrink with the sum of all squared updates."""

    kind: ClassVar[str] = "fedadagrad"
    epsilon: Annotated[float, Field("degree of adaptivity τ in units of the updates")] = 1e-3

    def build(self, shapes: Sequence[Sequence[int]], rounds: int) -> ServerAdagrad:
        """See `ChosenOptimizer.build`."""
        return ServerAdagrad(self.move(rounds), self.energies(shapes), self.beta1, self.epsilon)


@dataclass(frozen=True)
class FedYogi(AdaptiveOptions):
    """`ServerYogi`: Adam's rule with a second moment that changes slowly."""

    kind: ClassVar[str] = "fedyogi"
    epsilon: Annotated[float, Field("degree of adaptivity τ in units of the updates")] = 1e-3
    beta2: Annotated[float, Field("decay of the second moment", "β₂")] = 0.99

    def build(self, shapes: Sequence[Sequence[int]], rounds: int) -> ServerYogi:
        """See `ChosenOptimizer.build`."""
        return ServerYogi(self.move(rounds), self.energies(shapes), self.beta1, self.epsilon, self.beta2)

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        """Decaying sums, β₂."""
        return decaying(self.beta2, rounds)
