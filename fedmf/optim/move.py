"""From a direction to the next parameters: learning rate, update clipping, decoupled weight decay."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fedmf.mechanisms.workload import LearningRateSchedule


@dataclass(frozen=True)
class Move:
    """θ_{t+1} = (1 − η_t·w)·θ_t + η_t·Δ_t·min(1, c/rms(Δ_t)), rms(Δ)² = ‖Δ‖²/d.

    Args:
        schedule: η_t.
        weight_decay: w ≥ 0, decoupled: it sees no noise and no second moment.
        update_clip: c > 0, largest root mean square of an entry of the direction; infinite for none.

    Raises:
        ValueError: w or c is out of range, or η·w exceeds 1, so that the decay would overshoot zero.

    References:
        Loshchilov and Hutter (2019), "Decoupled weight decay regularization"; Shazeer and Stern (2018),
        "Adafactor", section 6, for the clip.

    >>> import torch
    >>> move = Move(LearningRateSchedule("constant", 0.5, 10), update_clip=1.0)
    >>> move(0, torch.zeros(2), torch.full((2,), 4.0))
    tensor([0.5000, 0.5000])
    """

    schedule: LearningRateSchedule
    weight_decay: float = 0.0
    update_clip: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"w (weight_decay) must be finite and >= 0; got {self.weight_decay}.")
        if self.weight_decay * self.schedule.peak > 1:
            raise ValueError(
                f"w (weight_decay) must be at most 1/η = {1 / self.schedule.peak:g}; "
                f"got {self.weight_decay}. It would overshoot zero."
            )
        if not self.update_clip > 0:
            raise ValueError(f"c (update_clip) must be positive; got {self.update_clip}.")

    def __call__(self, t: int, parameters: Tensor, direction: Tensor) -> Tensor:
        """θ_{t+1}, freshly allocated.

        Args:
            t: 0-based round.
            parameters: θ_t, shape (d,).
            direction: Δ_t, shape (d,), same type; a step uphill in minus the loss, hence added.
        """
        rate = self.schedule(t)
        size = rate
        if self.update_clip < math.inf:
            rms = float(direction.norm()) / math.sqrt(max(1, direction.numel()))
            size = rate * (self.update_clip / rms if rms > self.update_clip else 1.0)
        if self.weight_decay == 0.0:
            return parameters.add(direction, alpha=size)
        return parameters.mul(1.0 - rate * self.weight_decay).add_(direction, alpha=size)
