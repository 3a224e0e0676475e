"""Schemas: declarations of the columns of a table, public and fixed before any row is read.

Training tables, nodes and streams are scaled by the same schema, and releases are in its units.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fedmf.data.cells import cells_of, numbers, places, texts
from fedmf.data.table_reader import shown_names
from fedmf.matrices.arrays import Array

#: Characters that no category may have: controls, line separators, halves of surrogate pairs.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MOST_CATEGORIES: Final = 10_000
_LONGEST_CATEGORY: Final = 255
_MOST_STEPS: Final = 10**9
_STEP: Final = re.compile(r"(\d{1,9}) ?(s|min|h|d|w|second|minute|hour|day|week)s?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

#: A number far from overflow.
Real = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]
_FILL: Final = Field(None, description="replaces a missing cell; else its row is ignored")
#: A time as ISO 8601; TOML has dates and times of its own.
Moment = Annotated[datetime, BeforeValidator(lambda at: time_of(str(at)) or at)]
AnyColumn = TypeVar("AnyColumn", bound="Column")


class Column(BaseModel):
    """One column; abstract.

    Its fields are the keys of a declaration; those without a default are required.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
    kind: Any

    def labels(self, cells: Any) -> list[str]:
        """Return what is published of each cell if this column labels releases."""
        return list(cells)


class Encoded(Column, ABC):
    """A column that becomes coordinates of a vector; abstract.

    Args:
        nullable: whether cells are expected to be missing, so that valid rows are counted, with
            noise.
    """

    nullable: bool = Field(False, description="with true, valid rows are counted, with noise")

    @property
    @abstractmethod
    def endings(self) -> tuple[str, ...]:
        """Names of the coordinates, to be appended to the column's name."""

    @property
    @abstractmethod
    def units(self) -> tuple[float, float, float, float]:
        """(center, scale, lower, upper) of the coordinates.

        A coordinate z stands for center + scale·z, which lies within the bounds.
        """

    @property
    def largest_square(self) -> float:
        """Largest sum of the squares of the coordinates of one cell; 1 for a category."""
        center, scale, lower, upper = self.units
        return (max(upper - center, center - lower) / scale) ** 2

    @abstractmethod
    def measure(self, cells: Any) -> Array:
        """Return the coordinates of each cell before bounds apply, shape (cells, coordinates).

        They are NaN for a cell that cannot be read.

        Args:
            cells: an Arrow array, or a list of strings with "" for a missing cell.

        Guarantees: the coordinates of a cell depend on that cell alone.
        """

    @model_validator(mode="after")
    def _fill_or_nullable(self) -> Self:
        if self.nullable and getattr(self, "fill", None) is not None:
            raise ValueError("fill must be left out with nullable: no cell is missing then")
        return self


@final
class Number(Encoded):
    """A number; x becomes (x − center)/scale, and `Encoding.encode` clips it into its bounds.

    Args:
        lower: least value that counts.
        upper: largest value that counts.
        center: the value that becomes 0; None for the middle of the bounds.
        scale: the distance from it that becomes 1; None for half the width of the bounds.
        fill: public value that stands for a missing cell; with None, its row is ignored.

    >>> Number(lower=0.0, upper=10.0, fill=5.0).measure(["0", "20", "", "many"]).ravel().tolist()
    [-1.0, 3.0, 0.0, nan]
    """

    kind: Literal["number"] = "number"
    lower: Real = Field(description="the least value that counts; smaller ones count as this")
    upper: Real = Field(description="the largest value that counts")
    center: Real | None = Field(None, description="what becomes 0; else the middle")
    scale: Annotated[float, Field(ge=1e-30, le=1e30)] | None = Field(
        None, description="what becomes 1; else half the width"
    )
    fill: Real | None = _FILL

    @model_validator(mode="after")
    def _within(self) -> Self:
        if not self.lower < self.upper:
            raise ValueError(
                f"lower (bound) must be less than upper; got {self.lower} and {self.upper}"
            )
        for name in ("center", "fill"):
            value = getattr(self, name)
            if value is not None and not self.lower <= value <= self.upper:
                raise ValueError(f"{name} must lie within {self.lower}..{self.upper}; got {value}")
        return self

    @property
    def endings(self) -> tuple[str, ...]:
        return ("",)

    @property
    def units(self) -> tuple[float, float, float, float]:
        center = self.center
        if center is None:
            center = (self.lower + self.upper) / 2
        scale = self.scale
        if scale is None:
            scale = (self.upper - self.lower) / 2
        return center, scale, self.lower, self.upper

    def measure(self, cells: Any) -> Array:
        """Return (x − center)/scale of each cell, shape (cells, 1).

        It is NaN for a cell that is neither missing nor a finite number.
        """
        values = numbers(cells)
        if self.fill is not None:
            missing = texts(cells).is_null().to_numpy(zero_copy_only=False)
            values = np.where(missing, self.fill, values)
        center, scale, *_ = self.units
        with np.errstate(over="ignore"):
            scaled = (np.where(np.isfinite(values), values, np.nan) - center) / scale
        return scaled[:, None]


@final
class Category(Encoded):
    """One of several values; each has a coordinate that is 1 in its rows and 0 in others.

    Args:
        categories: all possible values, in order.
        fill: the value that stands for a missing cell; with None, its row is ignored.

    >>> Category(categories=("no", "yes")).measure(["yes", "perhaps"]).tolist()
    [[0.0, 1.0], [nan, nan]]
    """

    kind: Literal["category"] = "category"
    categories: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=_LONGEST_CATEGORY)], ...],
        Field(
            min_length=2,
            max_length=_MOST_CATEGORIES,
            strict=False,
            description="all values, in order",
        ),
    ]
    fill: str | None = _FILL

    @field_validator("categories")
    @classmethod
    def _readable(cls, categories: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(categories)) < len(categories):
            raise ValueError("categories must be different")
        for category in categories:
            if category != category.strip() or _CONTROL.search(category):
                raise ValueError(
                    "categories must have no blanks at their ends and no control characters; got "
                    f"{category[:40]!r}"
                )
        return categories

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.fill is not None and self.fill not in self.categories:
            raise ValueError(f"fill must be one of categories; got {self.fill!r:.100}")
        return self

    @property
    def endings(self) -> tuple[str, ...]:
        return tuple(f"={category}" for category in self.categories)

    @property
    def units(self) -> tuple[float, float, float, float]:
        return 0.0, 1.0, 0.0, 1.0  # shares of rows stay shares

    def places(self, cells: Any) -> NDArray[np.int64]:
        """Return the place of each cell's value among the categories; −1 if it is none of them."""
        return places(cells, self.categories, self.fill or "")

    def measure(self, cells: Any) -> Array:
        """Return the coordinates of each cell, NaN for one that is none of the categories."""
        place = self.places(cells)[:, None]
        return np.where(place < 0, np.nan, place == np.arange(len(self.categories)))


@final
class Time(Column):
    """A time on a public grid: start, start + step, … before end. A row chooses only its own step.

    Args:
        start: the first time, as ISO 8601.
        end: the first time that is too late.
        step: width of the grid: a number of seconds, minutes, hours, days or weeks, such as
            "15 min" or "1 day".

    >>> hours = Time(start="2026-01-01", end="2026-01-02", step="1 h")
    >>> hours.labels(["2026-01-01T01:59", "2026-01-01T01:59+01:00", "2025-12-31", "soon"])
    ['2026-01-01T01:00:00', '2026-01-01T00:00:00', '', '']
    """

    kind: Literal["time"] = "time"
    start: Moment = Field(description="such as 2026-01-01")
    end: Moment = Field(description="the first time that is too late")
    step: str = Field(description='such as "15 min"')

    @model_validator(mode="after")
    def _grid(self) -> Self:
        if (self.start.tzinfo is None) != (self.end.tzinfo is None) or not self.start < self.end:
            raise ValueError(
                f"start must lie before end, in the same zone; got {self.start} and {self.end}"
            )
        steps = math.ceil((self.end - self.start) / self._width)
        if steps > _MOST_STEPS:
            raise ValueError(f"step must leave at most {_MOST_STEPS} steps; got {steps}")
        return self

    @cached_property
    def _width(self) -> timedelta:
        return width_of(self.step)

    def labels(self, cells: Any) -> list[str]:
        """Return the beginning of the step of each cell's time, in the zone of ``start``.

        It is "" for a time outside the grid.

        Args:
            cells: times as ISO 8601. Those without a zone are in the zone of ``start``; if that has
                none, all are in UTC.
        """
        labels: list[str] = []
        for step in self.steps(cells).tolist():
            labels.append("" if step < 0 else self.beginning(step).isoformat())
        return labels

    def steps(self, cells: Any) -> NDArray[np.int64]:
        """Return the step of each cell's time, counted from 0; −1 for a time outside the grid.

        Args:
            cells: times as for `labels`.
        """
        return np.array([self._step(time_of(cell)) for cell in cells_of(cells)], np.int64)

    def beginning(self, step: int) -> datetime:
        """Return the first time of a step."""
        return self.start + step * self._width

    @property
    def zone(self) -> tzinfo:
        """The time zone of times that name none."""
        return self.start.tzinfo or UTC

    def passed(self, at: datetime) -> int:
        """Return how many steps ended at a time or before, of any number; negative before start."""
        first = self.start.replace(tzinfo=self.zone)
        return (at.replace(tzinfo=at.tzinfo or self.zone) - first) // self._width

    def _step(self, at: datetime | None) -> int:
        if at is None:
            return -1
        step = self.passed(at)
        end = self.end.replace(tzinfo=self.zone)
        if step < 0 or at.replace(tzinfo=at.tzinfo or end.tzinfo) >= end:
            return -1
        return step


@final
class Text(Column):
    """A text of any kind, which is not part of a vector."""

    kind: Literal["text"] = "text"


@final
class User(Column):
    """The id of the user who owns the row."""

    kind: Literal["user"] = "user"


@final
class Ignored(Column):
    """A column that is not read."""

    kind: Literal["ignore"] = "ignore"


#: The classes of columns by kind.
KINDS: Final[dict[str, type[Column]]] = {
    "number": Number,
    "category": Category,
    "text": Text,
    "time": Time,
    "user": User,
    "ignore": Ignored,
}


@dataclass(frozen=True)
class Schema:
    """Declarations of columns by name.

    A row counts for no user if a cell of a column in use cannot be read, or is missing without a
    public value to fill it. Nothing else depends on such a row: errors depend on header, schema and
    configuration.

    Args:
        columns: declarations by name, in their order.

    Raises:
        ValueError: there are no columns, or more than one of users.
    """

    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        if not self.columns or not all(self.columns):
            raise ValueError("schema (columns) must declare columns, each with a name; got none.")
        users = self.named(User)
        if len(users) > 1:
            raise ValueError(
                f"schema (columns) must have at most one of users; got {shown_names(users)}."
            )

    def named(self, kind: type[Column]) -> tuple[str, ...]:
        """Return the names of the columns of a kind."""
        return tuple(name for name, column in self.columns.items() if isinstance(column, kind))

    @property
    def user(self) -> str | None:
        """The name of the column of users; None if there is none."""
        return next(iter(self.named(User)), None)

    def column(
        self, name: str, kind: type[AnyColumn] | tuple[type[AnyColumn], ...], what: str
    ) -> AnyColumn:
        """Return one column, which must be of a kind.

        Args:
            name: name of the column.
            kind: required kind, or several of which it must be one.
            what: the argument that names the column, for messages.

        Raises:
            ValueError: it is not declared, or is of another kind.
        """
        column = self.columns.get(name)
        if isinstance(column, kind):
            return column
        wanted = " or ".join(name for name, one in KINDS.items() if issubclass(one, kind))
        got = "none of its columns"
        if column is not None:
            got = f"a column of kind {column.kind!r}"
        raise ValueError(
            f"{what} must be a column that the schema declares as {wanted}; got {name!r:.100},"
            f" {got}."
        )

    def check_header(self, names: Sequence[str], source: str, optional: Sequence[str] = ()) -> None:
        """Check that a table has exactly the columns that are declared, each once.

        Args:
            names: column names of the table; empty for one without a header.
            source: name of the table in messages.
            optional: names of declared columns that may be absent.

        Raises:
            ValueError: a column is not declared, or a declared one is absent or occurs twice.
        """
        undeclared = [name for name in names if name not in self.columns]
        if undeclared:
            raise ValueError(
                f"columns must all be declared in the schema; got {shown_names(undeclared)} in"
                f' {source}, which it does not declare. Declare their content, or kind = "ignore".'
            )
        times = Counter(names)
        for name in self.columns:
            fault = ""
            if times[name] > 1:
                fault = "twice or more"
            elif not times[name] and name not in optional:
                fault = "no such column"
            if fault:
                raise ValueError(
                    f"columns must each occur once; got {fault} for {name!r:.100} in {source}."
                )

    def encoding(self, names: Sequence[str] | None = None) -> Encoding:
        """Return the encoding of rows as vectors.

        Args:
            names: columns of numbers and categories to use; None for all.

        Raises:
            ValueError: there are none, or one is of another kind.
        """
        if names is None:
            names = self.named(Encoded)
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"columns must be different ones, at least one; got {shown_names(names)}."
            )
        columns = tuple(self.column(name, Encoded, "columns (of a vector)") for name in names)
        return Encoding(tuple(names), columns)

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits of the declarations, independent of the layout of the file."""
        content = json.dumps(self.to_dict(), ensure_ascii=False).encode(errors="surrogatepass")
        return hashlib.sha256(content).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dict, columns in their order."""
        columns: dict[str, Any] = {}
        for name, column in self.columns.items():
            columns[name] = column.model_dump(mode="json", exclude_none=True)
        return columns

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Create a schema from the result of `to_dict`, or the table ``columns`` of a file.

        Raises:
            ValueError: a column is not declared as its kind requires; the column and key are named.
        """
        return cls({name: _column(name, given) for name, given in description.items()})


def _column(name: str, given: object) -> Column:
    """Create a column from its declaration in a file or record.

    Raises:
        ValueError: it is not declared as its kind requires; the column and key are named.
    """
    declaration: dict[str, Any] = {}
    if isinstance(given, Mapping):
        declaration = dict(given)
    where = f"columns.{name[:200]}"
    kind = KINDS.get(str(declaration.get("kind")))
    if kind is None:
        raise ValueError(
            f"{where}.kind must be one of {', '.join(KINDS)}; got {declaration.get('kind')!r:.100}."
        )
    try:
        return kind.model_validate(declaration)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    error = errors[0]
    for each in errors:
        if each["type"] == "extra_forbidden":  # may be another key misspelt, which is then missing
            error = each
            break
    key = str(error["loc"][0]) if error["loc"] else ""
    if key:
        where = f"{where}.{key}"
    kind_name = declaration["kind"]
    raise ValueError(f"{where} (kind {kind_name}) {_fault(kind, key, error)}")


def _fault(kind: type[Column], key: str, error: Any) -> str:
    """Return the end of a message on an error of pydantic in a key of a column."""
    if error["type"] == "missing":
        meaning = kind.model_fields[key].description
        return f"must be filled in: {meaning}. Declare public facts; never take them from the rows."
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, kind.model_fields, 1) or kind.model_fields
        return (
            f"must be left out: no such key; did you mean {' or '.join(repr(one) for one in near)}?"
        )
    message = error["msg"].removeprefix("Value error, ").replace("tuple", "list")
    fault = "is wrong: " + re.sub("(Input|Tuple) should", "must", message)
    if key:
        fault += f"; got {error['input']!r:.100}"
    return f"{fault}."


def is_step(text: str) -> bool:
    """Return whether a text is a step such as "15 min" or "1w"."""
    parts = _STEP.fullmatch(text)
    return parts is not None and int(parts[1]) > 0


def width_of(step: str) -> timedelta:
    """Return the width of a step such as "15 min" or "1w".

    Raises:
        ValueError: it is not a positive number and a unit.
    """
    parts = _STEP.fullmatch(step)
    if parts is None or not is_step(step):
        raise ValueError(
            f"step must be a number and s, min, h, d or w, such as '15 min'; got {step!r:.100}."
        )
    return timedelta(seconds=int(parts[1]) * _SECONDS[parts[2][0]])


def time_of(text: str) -> datetime | None:
    """Return a time that is written as ISO 8601; None for other text."""
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoding of the columns in use as coordinates z, in bounded public units.

    Args:
        names: names of the columns.
        columns: their declarations.
    """

    names: tuple[str, ...]
    columns: tuple[Encoded, ...]

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the coordinates: "age" for a number, "city=Graz" for a value of a category."""
        names: list[str] = []
        for name, column in zip(self.names, self.columns, strict=True):
            names += [name + ending for ending in column.endings]
        return tuple(names)

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The column of each coordinate."""
        owners: list[str] = []
        for name, column in zip(self.names, self.columns, strict=True):
            owners += [name] * len(column.endings)
        return tuple(owners)

    @property
    def counts(self) -> bool:
        """Whether valid rows are counted, because a column may have missing cells."""
        return any(column.nullable for column in self.columns)

    @property
    def filled(self) -> bool:
        """Whether a value stands for a missing cell in every column."""
        return all(getattr(column, "fill", None) is not None for column in self.columns)

    @property
    def norm_bound(self) -> float:
        """The largest norm of a row that the schema admits; no row is clipped to it."""
        return math.sqrt(sum(column.largest_square for column in self.columns))

    @cached_property
    def units(self) -> Array:
        """(center, scale, lower, upper) of each coordinate, shape (d, 4), as in `Encoded.units`."""
        units: list[tuple[float, float, float, float]] = []
        for column in self.columns:
            units += [column.units] * len(column.endings)
        return np.array(units)

    def measure(self, cells: Sequence[Any]) -> Array:
        """Return coordinates of rows before bounds apply, shape (rows, d).

        They are NaN where a cell cannot be read.

        Args:
            cells: for each column in use an Arrow array, or a list of strings with "" for a missing
                cell.
        """
        parts: list[Array] = []
        for column, cells_of_column in zip(self.columns, cells, strict=True):
            parts.append(column.measure(cells_of_column))
        return np.concatenate(parts, axis=1)

    def encode(self, measured: Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return coordinates of rows within the bounds, and which rows are valid.

        The coordinates of other rows are zeros.

        Args:
            measured: coordinates as `measure` returns them.

        Returns:
            (z, valid), shapes (rows, d) and (rows,).

        Guarantees: a row of z depends on that row alone and has norm `norm_bound` at most.
        """
        valid = np.all(~np.isnan(measured), axis=1)
        centers, scales, lower, upper = self.units.T
        z = np.clip(measured, (lower - centers) / scales, (upper - centers) / scales)
        return np.where(valid[:, None], z, 0.0), valid
