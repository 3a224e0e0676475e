"""How the run is executed and where it is kept."""

from __future__ import annotations

from typing import Literal

from fedmf.runs.keys.base import Count, Keys, Positive

__all__ = ["ExecutionKeys"]


class ExecutionKeys(Keys):
    """How the run is executed and where it is kept."""

    messages: Literal["slice", "per-user"] = "slice"
    workers: Count = 1
    round_timeout: Positive = 600.0
    evaluate_every: Count = 1
    checkpoint_every: Count = 1
    output_dir: str = ""
    resume: bool = False
