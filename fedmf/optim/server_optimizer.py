"""How a server optimizer moves the parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmf.mechanisms.workload import LearningRateSchedule


@dataclass(frozen=True)
class Move:
    """θ_{t+1} = (1 − η_t·w)·θ_t + η_t·Δ_t.

    Args:
        schedule: η_t.
        weight_decay: w ≥ 0, decoupled: it sees no noise and no second moment.

    Raises:
        ValueError: w is out of range, or η·w exceeds 1, so that the decay would overshoot zero.

    References:
        Loshchilov and Hutter (2019), "Decoupled weight decay regularization".

    >>> import torch
    >>> move = Move(LearningRateSchedule("constant", 0.5, 10))
    >>> move(0, torch.zeros(2), torch.full((2,), 4.0))
    tensor([2., 2.])
    """

    schedule: LearningRateSchedule
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"w (weight_decay) must be finite and >= 0; got {self.weight_decay}.")
        if self.weight_decay * self.schedule.peak > 1:
            raise ValueError(
                f"w (weight_decay) must be at most 1/η = {1 / self.schedule.peak:g}; "
                f"got {self.weight_decay}. It would overshoot zero."
            )

    def __call__(self, t: int, parameters: Tensor, direction: Tensor) -> Tensor:
        """θ_{t+1}, freshly allocated.

        Args:
            t: 0-based round.
            parameters: θ_t, shape (d,).
            direction: Δ_t, shape (d,), same type; a step uphill in minus the loss, hence added.
        """
        moved = torch.empty_like(parameters)
        self.into(moved, t, parameters, direction)
        return moved

    def into(self, moved: Tensor, t: int, parameters: Tensor, direction: Tensor) -> None:
        """Write θ_{t+1} to a vector."""
        rate = self.schedule(t)
        if self.weight_decay == 0.0:
            torch.add(parameters, direction, alpha=rate, out=moved)
        else:
            torch.mul(parameters, 1.0 - rate * self.weight_decay, out=moved)
            moved.add_(direction, alpha=rate)
