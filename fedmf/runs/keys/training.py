"""What users and server do with the model."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedmf.runs.keys.base import Count, Keys, Positive

__all__ = ["TrainingKeys"]


class TrainingKeys(Keys):
    """What users and server do with the model."""

    local_epochs: Count = 1
    local_batch_size: Count = 8
    local_learning_rate: Positive = 0.5
    local_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    local_proximal: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    local_engine: Literal["auto", "vectorised", "loop"] = "auto"
    server_learning_rate: Positive = 0.1
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    server_nesterov: bool = False
    server_schedule: Literal["constant", "linear", "cosine"] = "constant"
    server_warmup: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent_training(self) -> Self:
        if self.server_nesterov and self.server_momentum == 0:
            raise ValueError("server-momentum must be positive with server-nesterov = true; got 0.")
        return self
