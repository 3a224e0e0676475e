"""How the run is executed and where it is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedmf.runs.keys.base import Count, Keys, Positive

__all__ = ["ExecutionKeys"]


class ExecutionKeys(Keys):
    """How the run is executed and where it is kept."""

    messages: Literal["slice", "per-user"] = "slice"
    workers: Count = 1
    worker_cpus: Positive = 1.0
    worker_gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    ray_address: str = ""
    round_timeout: Positive = 600.0
    evaluate_every: Count = 1
    federated_evaluation: bool = False
    checkpoint_every: Count = 1
    output_dir: str = ""
    resume: bool = False
