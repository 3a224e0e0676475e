"""FedAdagrad and FedYogi as post-processing of the privatised mean update."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.moments import SecondMoment
from fedmf.optim.adam import check_decay
from fedmf.optim.energies import Energies
from fedmf.optim.move import Move
from fedmf.optim.server_optimizer import RoundRelease

__all__ = ["FedAdagrad", "FedYogi"]


@dataclass(frozen=True)
class _FedOpt(ABC):
    """m ← β₁m + (1 − β₁)u, v_B from v_B and q_B/|B|, Δ = m/(√max(v, 0) + τ), v = τ² at first.

    Args:
        move: learning rate, update clipping and weight decay.
        energies: where q comes from.
        beta1: 0 ≤ β₁ < 1; with 0 no m is kept.
        epsilon: τ > 0, the degree of adaptivity, in units of the updates.

    Raises:
        ValueError: a value is out of range.

    References:
        Reddi et al. (2021), "Adaptive federated optimization", Algorithm 2.
    """

    move: Move
    energies: Energies
    beta1: float = 0.9
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        check_decay("β₁ (server-beta1)", self.beta1)
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"τ (server-adam-epsilon) must be positive and finite; got {self.epsilon}.")

    @abstractmethod
    def _accumulate(self, second: Tensor, energies: Tensor) -> Tensor:
        """v of the next round, freshly allocated."""

    @property
    def second_moment(self) -> SecondMoment | None:
        """What must be released beside the mean."""
        return self.energies.second_moment

    @property
    def second_form(self) -> SecondForm:
        """How that is formed."""
        return self.energies.second_form

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """m = 0, shape (d,), if β₁ > 0, and v = τ², shape (blocks,)."""
        state = {"second": parameters.new_full((self.energies.blocks.count,), self.epsilon**2)}
        return {"first": torch.zeros_like(parameters), **state} if self.beta1 > 0 else state

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `ServerOptimizer.step`."""
        mean, blocks = release.mean.to(parameters.dtype), self.energies.blocks
        first = mean
        if self.beta1 > 0:
            first = mean.mul(1 - self.beta1).add_(state["first"], alpha=self.beta1)
        second = self._accumulate(state["second"], blocks.means(self.energies.of(release, mean)))
        inverse = second.clamp(min=0.0).sqrt_().add_(self.epsilon).reciprocal_()
        parameters = self.move(t, parameters, blocks.spread(inverse).mul_(first))
        kept = {"first": first} if self.beta1 > 0 else {}
        return parameters, {**kept, "second": second}


@final
@dataclass(frozen=True)
class FedAdagrad(_FedOpt):
    """v ← v + q."""

    def _accumulate(self, second: Tensor, energies: Tensor) -> Tensor:
        return second + energies


@final
@dataclass(frozen=True)
class FedYogi(_FedOpt):
    """v ← v − (1 − β₂)·q·sign(v − q).

    Args:
        beta2: 0 ≤ β₂ < 1.
    """

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("β₂ (server-beta2)", self.beta2)

    def _accumulate(self, second: Tensor, energies: Tensor) -> Tensor:
        return second - (second - energies).sign_().mul_(energies).mul_(1 - self.beta2)
