"""The settings of a private stream, as its operator gives them.

They are checked here, recorded in the state directory, and read by `StreamPlan`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, Self

from fedmf.data import Schema
from fedmf.data.schema import Encoding, Text, Time, is_step, time_of, width_of
from fedmf.matrices.factorization import Factorization, factorization_from_dict
from fedmf.moments import AIMS, METHODS, MomentMethod
from fedmf.participation import LARGEST_HORIZON, most_participations
from fedmf.values import check_whole

#: A mechanism that is chosen by its error.
AUTO: Final = "auto"

#: Ways to make both moments private, by the name of the option; their papers' names are those of
#: `METHODS`.
METHOD_NAMES: Final[Mapping[str, str]] = {
    "joint": "jme",
    "independent": "ime",
    "concatenated": "cs",
    "post-processing": "pp",
}

#: The coordinate that counts valid rows, or users with such rows.
COUNT: Final = "valid rows"

#: Limits of clip norms: squares, and noise in units of them, stay far from over- and underflow.
_SHORTEST = 1e-100
_LONGEST = 1e100


@dataclass(frozen=True)
class Settings:
    """The settings of a stream that affect noise and releases.

    Args:
        epsilon: ε.
        delta: δ.
        clip_norm: ζ, in 1e-100..1e100; with a schema by default the largest norm that its bounds
            allow.
        rounds: n, the largest number of rows that count; None: counted in the input. In a stream of
            periods n, k and b count periods, and n must be given.
        user_column: name of the column of user ids; None: that of the schema, or every row is a
            different user.
        max_participations: k, the largest number of rows of one user that count.
        min_separation: b, the smallest number of steps between two rows of one user; None for n
            with k = 1, else 1. With R rows per release, at most ⌈R/b⌉ of a user's rows are in one.
        workloads: A₁ and A₂ by name, or one for both; over releases, each of R rows.
        method: a name of `METHOD_NAMES`.
        mechanisms: C₁ and C₂, or one for both: names of mechanisms, "auto" for the best one, or
            factorizations as objects, with a round for each release.
        objective: the error that named mechanisms minimize, as `Objective.parse` reads it; None for
            the error of running averages relative to a single release of the same rows, later ones
            counting more, and for the RMSE of other workloads.
        bands: p, for mechanisms that take it.
        params: other parameters of mechanisms.
        second_moment: a name of `fedmf.moments.SECOND_MOMENTS`, or the sizes of blocks, "2,3".
        weight: how the method divides noise between the moments, such as λ of the joint method; for
            that also the purpose of the last release, a name of `fedmf.moments.AIMS`: "mean",
            "covariance" or "density". None for the default.
        adjacency: "zero-out" or "replace-one".
        columns: names of the numbers, and with a schema of categories; None for all of a schema,
            and for rows that are arrays. Other rows must name them, as only private cells would
            show which are numbers.
        release_every: R; after R, 2R, … and n rows there is a release, of the sums of the rows
            before it. Noise is drawn for releases alone. In a stream of periods it is their length,
            such as "1w" or "12 h", or a `timedelta`.
        seed: for a public key; None for one from the operating system.
        timestamp: name of a column of times, declared public: the text of the last row of a release
            is released with it, without noise.
        row_id: name of a column of ids of rows, declared public, likewise.
        keep_releases: whether all released integers are stored in the folder ``released`` of the
            state directory, so that anyone can check the statement.
        time_column: name of the column of the time of each row, for a stream of periods: each
            period has one release, of the mean of every user's rows of the period. Times are
            private, and never close a period.
        start: the public beginning of the first period, as ISO 8601.
        schema: what the columns may hold; rows are encoded by it, and releases are in its units.
            None for numbers as they are.

    Raises:
        ValueError: a value out of its range.
    """

    epsilon: float
    delta: float
    clip_norm: float = math.nan
    rounds: int | None = None
    user_column: str | None = None
    max_participations: int = 1
    min_separation: int | None = None
    workloads: tuple[str, ...] = ("average",)
    method: str = "joint"
    mechanisms: tuple[str | Factorization, ...] = (AUTO,)
    objective: str | None = None
    bands: int | None = None
    params: Mapping[str, float] = dataclasses.field(default_factory=dict)
    second_moment: str = "full"
    weight: float | str | None = None
    adjacency: str = "zero-out"
    columns: tuple[str, ...] | None = None
    release_every: int | str | timedelta = 1
    seed: int | None = None
    timestamp: str | None = None
    row_id: str | None = None
    keep_releases: bool = False
    time_column: str | None = None
    start: str | None = None
    schema: Schema | None = None

    def __post_init__(self) -> None:
        if self.schema is not None and self.user_column is None:
            object.__setattr__(self, "user_column", self.schema.user)
        if self.encoding is not None and math.isnan(self.clip_norm):
            object.__setattr__(self, "clip_norm", self.encoding.norm_bound)
        if self.method not in METHOD_NAMES:
            raise ValueError(
                f"method must be one of {', '.join(METHOD_NAMES)}; got {self.method!r}."
            )
        if isinstance(self.weight, str) and (self.weight not in AIMS or self.method != "joint"):
            raise ValueError(
                f"weight must be a number, or for joint {', '.join(AIMS)}; got {self.weight!r} for "
                f"{self.method}."
            )
        weight = self.weight
        if isinstance(weight, str):  # a purpose, for which a number is computed
            weight = None
        self.moment_method.check(len(self.mechanisms), weight)
        if not 1 <= len(self.workloads) <= 2:
            raise ValueError(
                "workload must be given once, or twice for the two moments; got"
                f" {len(self.workloads)}."
            )
        self._check_clip_norm()
        if self.time_column is None:
            self._check_rows_of_a_release()
        if self.rounds is not None:
            check_whole("n (rounds)", self.rounds, most=LARGEST_HORIZON)
        check_whole("k (max_participations)", self.max_participations)
        if self.min_separation is not None:
            check_whole("b (min_separation)", self.min_separation)
        if self.user_column is None and (self.max_participations, self.min_separation) != (1, None):
            raise ValueError(
                "k (max_participations) and b (min_separation) need a user column: without one,"
                " every row is a different user; got none."
            )
        self._check_labels()
        if self.time_column is not None:
            self._check_periods(self.time_column)
        if self.schema is not None:
            self._check_schema(self.schema)

    def _check_clip_norm(self) -> None:
        if self.clip_norm is None or math.isnan(self.clip_norm):
            raise ValueError(
                "ζ (clip_norm) must be given without a schema, as the largest norm of a row; got"
                " none."
            )
        if not _SHORTEST <= self.clip_norm <= _LONGEST:
            raise ValueError(
                f"ζ (clip_norm) must lie in {_SHORTEST}..{_LONGEST}; got {self.clip_norm}. Its"
                " square is the scale of second moments."
            )

    def _check_rows_of_a_release(self) -> None:
        if not isinstance(self.release_every, int):
            raise ValueError(
                "R (release every) must be a number of rows without a time column; got"
                f" {self.release_every!r}. Give time_column and start for a stream of periods."
            )
        check_whole("R (release every)", self.release_every)
        if self.release_every > 1 and not self.moment_method.second_noise:
            raise ValueError(
                f"R (release every) must be 1 for method {self.method}, which squares private rows;"
                f" got {self.release_every}."
            )
        if self.start is not None:
            raise ValueError(
                f"start (of the first period) must come with time_column; got {self.start!r} alone."
            )

    def _check_periods(self, column: str) -> None:
        """Check a stream of periods, of which everything but the rows is public."""
        if isinstance(self.release_every, timedelta):
            object.__setattr__(self, "release_every", _written(self.release_every))
        if not isinstance(self.release_every, str) or not is_step(self.release_every):
            raise ValueError(
                "release_every (length of a period) must be a number and s, min, h, d or w, such as"
                f" '1w', with a time column; got {self.release_every!r}."
            )
        if self.rounds is None:
            raise ValueError("n (rounds) must be given with a time column; got none.")
        start = None
        if isinstance(self.start, str):
            start = time_of(self.start)
        if start is None:
            raise ValueError(
                "start (of the first period) must be a time such as 2026-01-31; got"
                f" {self.start!r}."
            )
        left = datetime.max - start.replace(tzinfo=None)
        if self.rounds > left / width_of(self.release_every):
            raise ValueError(
                f"n (rounds) must end before the year 10000; got {self.rounds} periods of"
                f" {self.release_every} from {self.start}."
            )
        if self.columns is None and self.schema is None:
            raise ValueError("columns (of numbers) or a schema must be given with a time column.")
        if column in (self.user_column, *(self.columns or ())):
            raise ValueError(
                f"time_column must not be the column of users or of numbers; got {column!r}."
            )
        count = self.second_moment in ("full", "diagonal")
        rules = {
            "adjacency must be zero-out": (self.adjacency == "zero-out", self.adjacency),
            "method must add noise to both moments": (self.moment_method.second_noise, self.method),
            "weight must be a number (for means only, 0.001/ζ²)": (
                not isinstance(self.weight, str),
                self.weight,
            ),
            "second moment must be full or diagonal": (count, self.second_moment),
            "timestamp and row_id must be left out": (not self.labels, self.labels),
        }
        for rule, (kept, got) in rules.items():
            if not kept:
                raise ValueError(
                    f"{rule} with a time column; got {got!r}. In which period a row is, and how"
                    " many there are, is private."
                )

    def _check_schema(self, schema: Schema) -> None:
        if self.user_column != schema.user:
            declared = "no column of users" if schema.user is None else f"column {schema.user!r}"
            raise ValueError(
                f"user_column must be as in the schema, which declares {declared}; got"
                f" {self.user_column!r}."
            )
        for name, column in {**self.labels, "time_column": self.time_column}.items():
            if column is not None:
                schema.column(column, (Text, Time), f"{name} (column)")
        names = self.coordinates or ()
        if len(set(names)) < len(names):
            raise ValueError(
                f"coordinates must have different names; got {', '.join(names)[:200]}."
            )
        if schema.encoding(self.columns).counts and self.second_moment not in ("full", "diagonal"):
            raise ValueError(
                "second moment must be full or diagonal where valid rows are counted; got "
                f"{self.second_moment!r}."
            )

    def _check_labels(self) -> None:
        for name, column in self.labels.items():
            if not column:
                raise ValueError(f"{name} (column) must have a name; got an empty one.")
            for other, columns in {
                "that of the user ids": (self.user_column,),
                "one of the numbers": self.columns or (),
            }.items():
                if column in columns:
                    raise ValueError(
                        f"{name} (column) must not be {other}; got {column!r}. It is released"
                        " without noise."
                    )
        if len(set(self.labels.values())) < len(self.labels):
            raise ValueError(
                f"row_id (column) must not be the timestamp's; got {self.row_id!r} for both."
            )

    @property
    def moment_method(self) -> MomentMethod:
        """The method by its papers' name."""
        return METHODS[METHOD_NAMES[self.method]]

    @property
    def labels(self) -> dict[str, str]:
        """The column of each label ("timestamp", "row_id") that is released without noise."""
        labels = {}
        if self.timestamp is not None:
            labels["timestamp"] = self.timestamp
        if self.row_id is not None:
            labels["row_id"] = self.row_id
        return labels

    @cached_property
    def encoding(self) -> Encoding | None:
        """The encoding of rows as vectors by the schema; None without one."""
        return None if self.schema is None else self.schema.encoding(self.columns)

    @cached_property
    def calendar(self) -> Time | None:
        """The periods of a stream of periods, one for each release; None without a time column."""
        if self.time_column is None:
            return None
        start = time_of(str(self.start))
        every = str(self.release_every)
        assert start is not None
        assert self.rounds is not None
        return Time(start=start, end=start + self.rounds * width_of(every), step=every)

    @property
    def rows_of_release(self) -> int:
        """R; 1 in a stream of periods, in which a release has at most one mean of each user."""
        if self.time_column is not None:
            return 1
        assert isinstance(self.release_every, int)
        return self.release_every

    @cached_property
    def count_weight(self) -> float:
        """c = ζ·d^(−1/4), the last coordinate of valid rows that are counted; 0 if none are.

        It minimizes the worst error of the means (`fedmf.moments.fieller`). Periods always count:
        in which period a row is, is private, and so is how many users one has.
        """
        if self.encoding is None:
            if self.time_column is None:
                return 0.0
            return self.clip_norm * len(self.columns or ()) ** -0.25
        if self.time_column is None and not self.encoding.counts:
            return 0.0
        return self.clip_norm * len(self.encoding.coordinates) ** -0.25

    @property
    def vector_norm(self) -> float:
        """√(ζ² + c²), which no row exceeds with the coordinate that counts it."""
        if not self.count_weight:
            return self.clip_norm
        return math.hypot(self.clip_norm, self.count_weight)

    @cached_property
    def coordinates(self) -> tuple[str, ...] | None:
        """Names of the coordinates of a row, with the one that counts rows last.

        None where the input has the names.
        """
        if self.encoding is None:
            return self.columns
        if not self.count_weight:
            return tuple(self.encoding.coordinates)
        return (*self.encoding.coordinates, COUNT)

    def contract(self, rounds: int) -> tuple[int, int]:
        """(k, b) over that many rows, with k no larger than b allows."""
        k = self.max_participations
        if self.min_separation is not None:
            b = min(self.min_separation, rounds)
        elif k == 1:
            b = rounds
        else:
            b = min(1, rounds)
        return min(k, most_participations(rounds, b)), b

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict with every digit of coefficients that were given."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["mechanisms"] = [_described(choice) for choice in self.mechanisms]
        fields["params"] = dict(self.params)
        if self.schema is not None:
            fields["schema"] = self.schema.to_dict()
        return fields

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        fields: dict[str, Any] = {}
        for name, value in description.items():
            fields[name] = tuple(value) if isinstance(value, list) else value
        fields["mechanisms"] = tuple(_read(choice) for choice in description["mechanisms"])
        if description["schema"] is not None:
            fields["schema"] = Schema.from_dict(description["schema"])
        return cls(**fields)


def _written(width: timedelta) -> str:
    """A length of time in the largest unit that divides it.

    >>> _written(timedelta(days=14)), _written(timedelta(seconds=90))
    ('2w', '90s')
    """
    for unit, symbol in ((timedelta(weeks=1), "w"), (timedelta(days=1), "d")):
        if not width % unit:
            return f"{width // unit}{symbol}"
    return f"{width.total_seconds():.15g}s"


def _described(choice: str | Factorization) -> str | dict[str, Any]:
    """The choice of a mechanism, JSON-able."""
    return choice if isinstance(choice, str) else choice.to_dict()


def _read(choice: str | Mapping[str, Any]) -> str | Factorization:
    """The choice of a mechanism from its description."""
    return choice if isinstance(choice, str) else factorization_from_dict(choice)
