"""What is learnt, from whom: data, partition, model, public seed."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedmf.runs.keys.base import Count, Keys, Positive

__all__ = ["DataKeys", "parse_counts", "parse_names"]


def _counted(value: Any) -> Any:
    """``hidden-units = 32`` means the list with one entry."""
    return str(value) if type(value) is int else value


class DataKeys(Keys):
    """What is learnt, from whom: data, partition, model, public seed."""

    task: Annotated[str, Field(pattern=r"^(|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")] = ""
    dataset: Literal["digits", "synthetic", "prototypes", "table", "hub"] = "digits"
    users: Count = 360
    partition: Literal["iid", "dirichlet", "dirichlet-sizes", "power-law", "shards", "natural"] = "iid"
    dirichlet_alpha: Positive = 0.5
    size_exponent: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0
    shards_per_user: Count = 2
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    data_path: str = ""
    feature_columns: str = ""
    label_column: Annotated[str, Field(min_length=1)] = "label"
    user_column: str = ""
    hold_out: Literal["examples", "users"] = "examples"
    input_shape: str = ""
    examples_per_user: Count = 20
    features: Count = 60
    classes: Annotated[int, Field(ge=2, le=2**31 - 1)] = 10
    clusters: Annotated[int, Field(ge=1, le=1000)] = 2
    synthetic_alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    synthetic_beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    model: Literal["mlp", "cnn", "logistic"] = "mlp"
    hidden_units: Annotated[str, BeforeValidator(_counted)] = "32"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _consistent_data(self) -> Self:
        parse_counts("hidden-units", self.hidden_units)
        parse_counts("input-shape", self.input_shape)
        parse_names(self.feature_columns)
        if self.task:
            return self
        if self.dataset in ("table", "hub") and not self.data_path:
            raise ValueError(f"data-path must name the file of dataset {self.dataset!r}; got none.")
        if self.partition == "natural" and not (self.dataset in ("table", "hub") and self.user_column):
            raise ValueError(
                f"partition 'natural' needs dataset 'table' or 'hub' and a user-column; got {self.dataset!r} "
                f"and {self.user_column!r}."
            )
        if self.hold_out == "users" and not (self.dataset == "table" and self.user_column):
            raise ValueError(
                f"hold-out 'users' needs dataset 'table' and a user-column; got {self.dataset!r} "
                f"and {self.user_column!r}."
            )
        if self.dataset == "synthetic":
            self._check_synthetic()
        return self

    def _check_synthetic(self) -> None:
        if self.partition not in ("iid", "power-law"):
            raise ValueError(
                "partition of dataset 'synthetic' must be iid (equal sizes) or power-law; got "
                f"{self.partition!r}."
            )
        if self.input_shape:
            raise ValueError(
                f"input-shape must be empty with dataset 'synthetic'; got {self.input_shape!r}. "
                "Its examples have as many entries as features says."
            )


def parse_counts(key: str, text: str) -> tuple[int, ...]:
    """Positive whole numbers separated by commas; none in an empty text.

    >>> parse_counts("hidden-units", "128, 64")
    (128, 64)
    """
    if not text.strip():
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,10}", part) and 1 <= int(part) < 2**31 for part in parts):
        raise ValueError(f"{key} must be positive whole numbers separated by commas; got {text!r}.")
    return tuple(int(part) for part in parts)


def parse_names(text: str) -> tuple[str, ...]:
    """Column names separated by commas; none in an empty text.

    >>> parse_names("age, income")
    ('age', 'income')
    """
    names = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"feature-columns must be different names separated by commas; got {text!r}.")
    return names
