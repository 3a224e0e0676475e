"""What is learnt, from whom: data, partition, model, public seed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedmf.runs.keys.base import Count, Keys, Positive

__all__ = ["DataKeys"]


class DataKeys(Keys):
    """What is learnt, from whom: data, partition, model, public seed."""

    dataset: Literal["digits"] = "digits"
    users: Count = 360
    partition: Literal["iid", "dirichlet"] = "iid"
    dirichlet_alpha: Positive = 0.5
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    hidden_units: Count = 32
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
