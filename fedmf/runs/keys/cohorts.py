"""Who takes part when."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedmf.runs.keys.base import Count, Keys

__all__ = ["CohortKeys"]


class CohortKeys(Keys):
    """Who takes part when."""

    rounds: Count = 240
    cohort_size: Count = 36
    schedule: Literal["cyclic", "random", "cyclic-poisson", "balls-in-bins", "b-min-sep"] = "cyclic"
    accountant: Literal["none", "cyclic-poisson", "balls-in-bins", "b-min-sep"] = "none"
    min_separation: Annotated[int, Field(ge=0)] = 0
    max_participations: Annotated[int, Field(ge=0)] = 0
