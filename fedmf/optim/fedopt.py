"""FedAdagrad and FedYogi as post-processing of the privatised mean update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmf.optim.adaptive import AdaptiveOptions, AdaptiveRule
from fedmf.optim.options import check_decay
from fedmf.workload import ToeplitzWorkload, decaying


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
    """`ServerAdagrad`: steps shrink with the sum of all squared updates.

    Args:
        epsilon: τ > 0, the degree of adaptivity, in units of the updates.
    """

    kind: ClassVar[str] = "fedadagrad"
    epsilon: float = 1e-3

    def build(self, shapes: Sequence[Sequence[int]], rounds: int) -> ServerAdagrad:
        """See `ChosenOptimizer.build`."""
        return ServerAdagrad(self.move(rounds), self.energies(shapes), self.beta1, self.epsilon)


@dataclass(frozen=True)
class FedYogi(AdaptiveOptions):
    """`ServerYogi`: Adam's rule with a second moment that changes slowly.

    Args:
        epsilon: τ > 0, the degree of adaptivity, in units of the updates.
        beta2: 0 ≤ β₂ < 1, decay of the second moment.
    """

    kind: ClassVar[str] = "fedyogi"
    epsilon: float = 1e-3
    beta2: float = 0.99

    def build(self, shapes: Sequence[Sequence[int]], rounds: int) -> ServerYogi:
        """See `ChosenOptimizer.build`."""
        return ServerYogi(self.move(rounds), self.energies(shapes), self.beta1, self.epsilon, self.beta2)

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        """Decaying sums, β₂."""
        return decaying(self.beta2, rounds)
