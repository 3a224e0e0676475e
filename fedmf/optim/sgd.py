"""Server SGD with heavy-ball or Nesterov momentum on the privatised mean update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmf.clipping.memory import in_parts, new_vector
from fedmf.mechanisms.workload import ToeplitzWorkload, iterates
from fedmf.optim.optimizer_options import OptimizerOptions, check_decay
from fedmf.optim.server_optimizer import Move
from fedmf.release.round_release import RoundRelease, ServerOptimizer
from fedmf.values import Field


@dataclass(frozen=True)
class ServerSGD(ServerOptimizer):
    """Δ = v with v ← β·v + u, where u is the privatised mean of the clients' updates.

    Updates are differences (new minus old parameters), so Δ is added. Everything here is
    post-processing of the privatised u and costs no privacy.

    Args:
        move: learning rate and weight decay.
        momentum: 0 ≤ β < 1; with β = 0 there is no state.

    Raises:
        ValueError: β lies outside [0, 1).
    """

    move: Move
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_decay("β (momentum)", self.momentum)

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """The state before round 0: the velocity v = 0, shape (d,), if β > 0."""
        if self.momentum == 0.0:
            return {}
        return {"velocity": torch.zeros_like(parameters)}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One round.

        Args:
            t: 0-based round.
            parameters: θ_t, shape (d,), float32.
            release: of this round; its mean may have any floating type and is cast to θ's.
            state: the state that ``init`` or the last ``step`` returned.

        Returns:
            θ_{t+1} and the new state, both freshly allocated.
        """
        update = release.mean.to(parameters.dtype)
        stepped = new_vector(parameters.numel(), parameters.dtype, parameters.device)
        if self.momentum == 0.0:
            in_parts(
                lambda part: self.move.into(stepped[part], t, parameters[part], update[part]),
                stepped,
            )
            return stepped, {}
        before = state["velocity"]
        velocity = new_vector(parameters.numel(), parameters.dtype, parameters.device)

        def step(part: slice) -> None:
            torch.add(update[part], before[part], alpha=self.momentum, out=velocity[part])
            self.move.into(stepped[part], t, parameters[part], velocity[part])

        in_parts(step, stepped)
        return stepped, {"velocity": velocity}


@dataclass(frozen=True)
class Sgd(OptimizerOptions):
    """`ServerSGD`: steps along the update, with momentum."""

    kind: ClassVar[str] = "sgd"
    momentum: Annotated[float, Field("momentum β", "β")] = 0.9

    def build(self, shapes: Sequence[Sequence[int]], rounds: int) -> ServerSGD:
        """`ServerSGD` with the schedule over the horizon."""
        return ServerSGD(self.move(rounds), self.momentum)

    def workload(self, rounds: int) -> ToeplitzWorkload:
        """The workload of momentum β with the learning rates and the weight decay."""
        return iterates(self.rates(rounds), self.momentum, self.weight_decay)
