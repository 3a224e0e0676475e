"""Server SGD with heavy-ball or Nesterov momentum on the privatised mean update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.optim.move import Move
from fedmf.optim.server_optimizer import RoundRelease

__all__ = ["ServerSGD"]


@dataclass(frozen=True)
class ServerSGD:
    """Δ = v with v ← β·v + u, where u is the privatised mean of the clients' updates.

    Updates are differences (new minus old parameters), so Δ is added. Everything here is
    post-processing of the privatised u and costs no privacy.

    Args:
        move: learning rate, update clipping and weight decay.
        momentum: 0 ≤ β < 1; with β = 0 no state is kept.
        nesterov: step along u + β·v instead of v.

    Raises:
        ValueError: β lies outside [0, 1), or Nesterov without momentum.
    """

    move: Move
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"β (server momentum) must lie in [0, 1); got {self.momentum}.")
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("β (server momentum) must be positive for Nesterov momentum; got 0.")

    @property
    def second_moment(self) -> None:
        """None: the mean is all that is needed."""
        return None

    @property
    def second_form(self) -> SecondForm:
        """See `ServerOptimizer.second_form`."""
        return "per-user"

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """The state before round 0: the velocity v = 0, shape (d,), if β > 0."""
        return {"velocity": torch.zeros_like(parameters)} if self.momentum > 0 else {}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One round.

        Args:
            t: 0-based round.
            parameters: θ_t, shape (d,), float32.
            release: of this round; its mean may have any floating type and is cast to that of θ.
            state: what ``init`` or the last ``step`` returned.

        Returns:
            θ_{t+1} and the new state, both freshly allocated.
        """
        update = release.mean.to(parameters.dtype)
        if self.momentum == 0.0:
            return self.move(t, parameters, update), {}
        velocity = update.add(state["velocity"], alpha=self.momentum)
        direction = update.add(velocity, alpha=self.momentum) if self.nesterov else velocity
        return self.move(t, parameters, direction), {"velocity": velocity}
