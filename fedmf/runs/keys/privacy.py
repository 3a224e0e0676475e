"""What is promised to users, and the mechanism that keeps it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedmf.runs.keys.base import Keys, Positive
from fedmf.runs.keys.parameters import parse_parameters

__all__ = ["PrivacyKeys"]


class PrivacyKeys(Keys):
    """What is promised to users, and the mechanism that keeps it."""

    private: bool = True
    mechanism: str = "banded-toeplitz"
    workload: str = "prefix"
    bands: Annotated[int, Field(ge=0)] = 0
    mechanism_params: str = ""
    epsilon: Positive = 8.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    max_epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    user_budgets: str = ""
    adjacency: Literal["zero-out", "replace-one"] = "zero-out"
    clip_norm: Positive = 0.3
    second_workload: str = "auto"
    second_moment_importance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    noise_seed: Annotated[int, Field(ge=-1)] = -1

    @model_validator(mode="after")
    def _consistent_privacy(self) -> Self:
        parse_parameters(self.mechanism_params)
        if not self.private and (self.max_epsilon or self.user_budgets):
            raise ValueError("private must be true with max-epsilon or user-budgets; got false.")
        return self
