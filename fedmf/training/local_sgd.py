"""Local SGD: the steps by which a user trains the model that it receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedmf.values import Field, Value

LocalEngine = Literal["auto", "vmap", "loop"]


@dataclass(frozen=True)
class LocalSGD(Value):
    """Epochs of minibatch SGD on a user's own examples.

    With g the gradient of the mean loss of a batch, θ the user's model, θ_t the one it received:

        v ← β·v + g + μ·(θ − θ_t),        θ ← θ − η·v,        v = 0 at the start of a round.

    Raises:
        ValueError: a field out of range.

    References:
        Li et al. (2020), "Federated Optimization in Heterogeneous Networks", algorithm 2.
    """

    kind: ClassVar[str] = "sgd"

    epochs: Annotated[
        int, Field("number of passes of a user over its examples per round", ge=1)
    ] = 1
    batch_size: Annotated[int, Field("number of examples per step of a user", ge=1)] = 8
    learning_rate: Annotated[float, Field("client learning rate η", "η", gt=0)] = 0.5
    momentum: Annotated[
        float, Field("client momentum β, reset to 0 in each round", "β", ge=0, lt=1)
    ] = 0.0
    proximal: Annotated[float, Field("weight of FedProx's term μ/2·‖θ − θ_t‖²", "μ", ge=0)] = 0.0
    engine: Annotated[
        LocalEngine,
        Field("auto: compiled if possible; vmap: groups with torch.func; loop: one user at a time"),
    ] = "auto"
    micro_batch: Annotated[
        int,
        Field("largest number of examples in one pass, to save memory; 0: the whole batch", ge=0),
    ] = 0

    held_out: Annotated[
        float,
        Field(
            "share of each user's examples that it does not train on, for client metrics",
            ge=0,
            lt=1,
        ),
    ] = 0.0

    @property
    def plain(self) -> bool:
        """Whether a step needs nothing but the gradient."""
        return self.momentum == 0.0 and self.proximal == 0.0
