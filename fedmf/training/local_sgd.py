"""What a user does with the model it receives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmf.values import Value, check_choices, check_whole

LocalEngine = Literal["auto", "vectorised", "loop"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class LocalSGD(Value):
    """Epochs of minibatch SGD on a user's own examples.

    With g the gradient of the mean loss of a batch, θ the user's model, θ_t the one it received:

        v ← β·v + g + μ·(θ − θ_t),        θ ← θ − η·v,        v = 0 at the start of a round.

    Args:
        epochs: passes over the examples, at least 1.
        batch_size: examples in a step, at least 1; the last of an epoch may have fewer.
        learning_rate: η > 0.
        momentum: 0 ≤ β < 1.
        proximal: μ ≥ 0, the weight of FedProx's term μ/2·‖θ − θ_t‖²; 0 leaves it out.
        engine: how gradients are computed. "vectorised" trains users in groups by torch.func, "loop" one user
            after another by automatic differentiation. "auto" takes a compiled program for chains of layers
            that it knows, else one of the two.
        micro_batch: most examples of a batch in one pass, so that memory is theirs; the gradient is that of
            the batch, to rounding. 0 takes the batch at once.
        precision: of the products in forward and backward passes; "bfloat16" goes through torch's autocast.
            Parameters, gradients, losses and updates are float32 either way.
        seed: public seed of the order in which users go through their examples.

    Raises:
        ValueError: a field out of range.

    References:
        Li et al. (2020), "Federated Optimization in Heterogeneous Networks", algorithm 2.
    """

    kind: ClassVar[str] = "sgd"

    epochs: int = 1
    batch_size: int = 8
    learning_rate: float = 0.5
    momentum: float = 0.0
    proximal: float = 0.0
    engine: LocalEngine = "auto"
    micro_batch: int = 0
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs)
        check_whole("batch_size", self.batch_size)
        check_whole("seed (of the order of examples)", self.seed, 0, 2**63 - 1)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate (η) must be positive and finite; got {self.learning_rate}.")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum (β) must lie in [0, 1); got {self.momentum}.")
        if not (math.isfinite(self.proximal) and self.proximal >= 0):
            raise ValueError(f"proximal (μ) must be finite and at least 0; got {self.proximal}.")
        check_whole("micro_batch", self.micro_batch, 0)
        check_choices(self)

    @property
    def plain(self) -> bool:
        """Whether a step needs nothing but the gradient."""
        return self.momentum == 0.0 and self.proximal == 0.0
