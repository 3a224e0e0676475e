"""What a user does with the model it receives."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["LocalSGD"]


@dataclass(frozen=True)
class LocalSGD:
    """Epochs of minibatch SGD on a user's own examples.

    With g the gradient of the mean loss of a batch, θ the user's model, θ_t the one it received:

        v ← β·v + g + μ·(θ − θ_t),        θ ← θ − η·v,        v = 0 at the start of a round.

    Args:
        epochs: passes over the examples.
        batch_size: examples in a step; the last of an epoch may have fewer.
        learning_rate: η.
        momentum: 0 ≤ β < 1.
        proximal: μ ≥ 0, the weight of FedProx's term μ/2·‖θ − θ_t‖²; 0 leaves it out.

    References:
        Li et al. (2020), "Federated Optimization in Heterogeneous Networks", algorithm 2.
    """

    epochs: int = 1
    batch_size: int = 8
    learning_rate: float = 0.1
    momentum: float = 0.0
    proximal: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"local-epochs must be at least 1; got {self.epochs}.")
        if self.batch_size < 1:
            raise ValueError(f"local-batch-size must be at least 1; got {self.batch_size}.")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"local-learning-rate must be positive and finite; got {self.learning_rate}.")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"β (local-momentum) must lie in [0, 1); got {self.momentum}.")
        if not (math.isfinite(self.proximal) and self.proximal >= 0):
            raise ValueError(f"μ (local-proximal) must be finite and at least 0; got {self.proximal}.")

    @property
    def plain(self) -> bool:
        """Whether a step needs nothing but the gradient."""
        return self.momentum == 0.0 and self.proximal == 0.0
