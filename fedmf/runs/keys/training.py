"""What users do with the model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedmf.runs.keys.base import Count, Keys, Positive

__all__ = ["TrainingKeys"]


class TrainingKeys(Keys):
    """What users do with the model."""

    local_epochs: Count = 1
    local_batch_size: Count = 8
    local_learning_rate: Positive = 0.5
    local_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    local_proximal: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    local_engine: Literal["auto", "vectorised", "loop"] = "auto"
