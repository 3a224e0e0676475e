"""What the server does with the private mean update."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedmf.runs.keys.base import Keys, Positive

__all__ = ["OptimizerKeys"]

Decay = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class OptimizerKeys(Keys):
    """What the server does with the private mean update."""

    server_optimizer: Literal["sgd", "fedadagrad", "fedyogi", "adam", "adam-debiased", "jme-adam"] = "sgd"
    server_learning_rate: Positive = 0.1
    server_momentum: Decay = 0.9
    server_nesterov: bool = False
    server_schedule: Literal["constant", "linear", "cosine"] = "constant"
    server_warmup: Annotated[int, Field(ge=0)] = 0
    server_weight_decay: NonNegative = 0.0
    server_update_clip: NonNegative = 0.0
    server_beta1: Decay = 0.9
    server_beta2: Decay = 0.99
    server_epsilon: NonNegative = 0.0
    server_relative_epsilon: NonNegative = 0.1
    second_moment: Literal["per-user", "squared-mean"] = "per-user"
    second_moment_blocks: Literal["coordinate", "channel", "tensor", "model"] = "tensor"

    @model_validator(mode="after")
    def _consistent_optimizer(self) -> Self:
        if self.server_nesterov and self.server_momentum == 0:
            raise ValueError("server-momentum must be positive with server-nesterov = true; got 0.")
        if self.server_nesterov and self.server_optimizer != "sgd":
            raise ValueError(
                f"server-optimizer must be 'sgd' with server-nesterov = true; got {self.server_optimizer!r}."
            )
        most = 1 / self.server_learning_rate
        if self.server_weight_decay > most:
            raise ValueError(
                f"server-weight-decay must be at most 1/server-learning-rate = {most:g}; "
                f"got {self.server_weight_decay}. It would overshoot zero."
            )
        self._check_epsilon()
        return self

    def _check_epsilon(self) -> None:
        if self.server_optimizer.startswith("fed") and self.server_epsilon == 0:
            raise ValueError(
                f"server-epsilon (τ) must be positive with server-optimizer {self.server_optimizer!r}; got 0."
            )
        if "adam" in self.server_optimizer and self.server_epsilon == self.server_relative_epsilon == 0:
            raise ValueError(
                "server-epsilon or server-relative-epsilon must be positive with "
                f"server-optimizer = {self.server_optimizer!r}; got 0 for both."
            )
