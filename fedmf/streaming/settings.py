"""What the operator of a private stream asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

from fedmf.data import Encoding, Schema
from fedmf.mechanisms.matrix import Factorization, factorization_from_dict
from fedmf.moments import METHODS
from fedmf.participation import LARGEST_HORIZON
from fedmf.values import check_whole

#: A weight that is searched for.
BEST: Final = "best"

DEFAULT_MECHANISM: Final = "banded-toeplitz"

#: The coordinate that counts valid rows.
COUNT: Final = "valid rows"

#: Norm bounds whose squares, and noise in units of them, are far from overflow and underflow.
_SHORTEST, _LONGEST = 1e-100, 1e100


@dataclass(frozen=True)
class Settings:
    """What the operator asked for, as far as it shapes noise and releases.

    Args:
        norm_bound: ζ, in 1e-100..1e100.
        epsilon: ε.
        delta: δ.
        rounds: n; None for the number of rows of the input.
        user_column: name of the column of user ids; None: every row is another user.
        user_namespace: what user ids are ids of; streams and runs of one namespace concern the same people.
        timestamp: name of a column of times, declared public: the text of the row that took a step goes with
            its release as it is, without noise.
        key: name of a column of rows' keys, declared public, likewise.
        max_participations: k; None for 1.
        min_separation: b; None for n.
        workloads: A₁ and A₂ by name, or one for both.
        method: a name of `fedmf.moments.METHODS`.
        mechanisms: C₁ and C₂, or one for both: names of mechanisms, or factorizations of n rounds as objects.
        bands: p, for mechanisms that take it.
        params: other parameters of mechanisms.
        second: a name of `fedmf.moments.SECOND_MOMENTS`, or the sizes of blocks, "2,3".
        weight: how the method divides noise between the moments, λ of jme say; None for its default, "best"
            for the λ of jme with the least error of what is released (`asked_weight`).
        adjacency: "zero-out" or "replace-one".
        columns: names of the numbers, and with a schema of categories; None for all.
        schema: what the columns may hold; rows are encoded by it, and releases said in its units. None
            for numbers as they are.
        every: R; steps R, 2R, … and n are released.
        seed: for a public key; None for one from the operating system.

    Raises:
        ValueError: a value out of its range.
    """

    norm_bound: float
    epsilon: float
    delta: float
    rounds: int | None = None
    user_column: str | None = None
    max_participations: int | None = None
    min_separation: int | None = None
    workloads: tuple[str, ...] = ("average",)
    method: str = "jme"
    mechanisms: tuple[str | Factorization, ...] = (DEFAULT_MECHANISM,)
    bands: int | None = None
    params: Mapping[str, float] = dataclasses.field(default_factory=dict)
    second: str = "full"
    weight: float | str | None = None
    adjacency: str = "zero-out"
    columns: tuple[str, ...] | None = None
    every: int = 1
    seed: int | None = None
    user_namespace: str = ""
    timestamp: str | None = None
    key: str | None = None
    schema: Schema | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}.")
        METHODS[self.method].check(len(self.mechanisms), self._weight())
        if not 1 <= len(self.workloads) <= 2:
            raise ValueError(
                f"workload must be given once, or twice for the two moments; got {len(self.workloads)}."
            )
        if not _SHORTEST <= self.norm_bound <= _LONGEST:
            raise ValueError(
                f"zeta (norm bound) must lie in {_SHORTEST}..{_LONGEST}; got {self.norm_bound}. Its square "
                "is the scale of second moments."
            )
        check_whole("R (every)", self.every)
        if self.rounds is not None:
            check_whole("n (rounds)", self.rounds, most=LARGEST_HORIZON)
        self._check_labels()
        if self.schema is not None:
            self._check_schema(self.schema)
        if self.min_separation is not None and self.user_column is None and self.max_participations is None:
            raise ValueError("b (min_separation) needs k (max_participations) or a user column; got neither.")

    def _check_schema(self, schema: Schema) -> None:
        if self.user_column != schema.user:
            declared = "no column of users" if schema.user is None else f"column {schema.user!r}"
            raise ValueError(
                f"user_column must be that of the schema, which declares {declared}; got "
                f"{self.user_column!r}."
            )
        for name, column in self.labels.items():
            schema.check_label(column, f"{name} (column)")
        names = self.coordinates or ()
        if len(set(names)) < len(names):
            raise ValueError(f"coordinates must have different names; got {', '.join(names)[:200]}.")
        if schema.encoding(self.columns).counts and self.second not in ("full", "diagonal"):
            raise ValueError(
                "second moment must be full or diagonal where valid rows are counted (nullable); got "
                f"{self.second!r}."
            )

    @cached_property
    def encoding(self) -> Encoding | None:
        """How rows become vectors by the schema; None without one."""
        return None if self.schema is None else self.schema.encoding(self.columns)

    @cached_property
    def count_weight(self) -> float:
        """c = ζ·d^(−1/4), the last coordinate of a valid row where valid rows are counted; else 0.

        It makes the worst error of the means least (`fedmf.moments.fieller`).
        """
        encoding = self.encoding
        return (
            self.norm_bound * encoding.dimension**-0.25 if encoding is not None and encoding.counts else 0.0
        )

    @property
    def vector_norm(self) -> float:
        """√(ζ² + c²), which no row exceeds with the coordinate that counts it."""
        return math.hypot(self.norm_bound, self.count_weight) if self.count_weight else self.norm_bound

    @cached_property
    def coordinates(self) -> tuple[str, ...] | None:
        """Names of the coordinates of a row, that which counts it last; None where the input tells them."""
        if self.encoding is None:
            return self.columns
        return (*self.encoding.coordinates, *([COUNT] if self.count_weight else []))

    def _weight(self) -> float | None:
        """The weight that is a number."""
        if not isinstance(self.weight, str):
            return self.weight
        if self.weight != BEST or self.method != "jme":
            raise ValueError(
                f"weight must be a number, or {BEST} for jme; got {self.weight!r} for {self.method}."
            )
        return None

    def _check_labels(self) -> None:
        for name, column in self.labels.items():
            if not column:
                raise ValueError(f"{name} (column) must have a name; got an empty one.")
            if column == self.user_column:
                raise ValueError(
                    f"{name} (column) must not be that of the user ids; got {column!r}. What it holds is "
                    "released as it is."
                )
            if column in (self.columns or ()):
                raise ValueError(
                    f"{name} (column) must not be one of the numbers; got {column!r}. What it holds is "
                    "released as it is, without noise."
                )
        if len(set(self.labels.values())) < len(self.labels):
            raise ValueError(f"key (column) must not be the timestamp's; got {self.key!r} for both.")

    @property
    def labels(self) -> dict[str, str]:
        """What goes with each release ("timestamp", "key") and the column of the input it is taken from."""
        named = {"timestamp": self.timestamp, "key": self.key}
        return {name: column for name, column in named.items() if column is not None}

    def contract(self, rounds: int) -> tuple[int, int]:
        """(k, b) over so many steps.

        Raises:
            ValueError: k > 1 and b was not given.
        """
        k = 1 if self.max_participations is None else self.max_participations
        if k > 1 and self.min_separation is None:
            raise ValueError(f"b (min_separation) must be given with k (max_participations) = {k}; got none.")
        return k, rounds if self.min_separation is None else self.min_separation

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict with every digit of coefficients that were given."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        lists = {name: list(value) for name, value in fields.items() if isinstance(value, tuple)}
        given = [choice if isinstance(choice, str) else choice.to_dict() for choice in self.mechanisms]
        fields["schema"] = None if self.schema is None else self.schema.to_dict()
        return {**fields, **lists, "mechanisms": given, "params": dict(self.params)}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote."""
        fields = {
            name: tuple(value) if isinstance(value, list) else value for name, value in description.items()
        }
        chosen = (
            choice if isinstance(choice, str) else factorization_from_dict(choice)
            for choice in description["mechanisms"]
        )
        declared = description["schema"]
        fields["schema"] = None if declared is None else Schema.from_dict(declared)
        return cls(**{**fields, "mechanisms": tuple(chosen)})
