"""A schema: what the columns of a table may hold, public and declared before any row is looked at.

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
from datetime import UTC, datetime, timedelta
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

from fedmf.data.cells import cells_of, numbers, places
from fedmf.data.table_reader import shown_names
from fedmf.matrices.arrays import Array

#: What a cell is never read with: control characters, line separators, halves of surrogate pairs.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MOST_CATEGORIES: Final = 10_000
_LONGEST_CATEGORY: Final = 255
_MOST_STEPS: Final = 10**9
_STEP: Final = re.compile(r"(\d{1,9}) ?(s|min|h|d|second|minute|hour|day)s?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

#: A number far from overflow.
Real = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]
_FILL: Final = Field(None, description="stands for a missing cell; else its row is ignored")
#: A time as ISO 8601; TOML has dates and times of its own.
Moment = Annotated[datetime, BeforeValidator(lambda at: _time(str(at)) or at)]
AnyColumn = TypeVar("AnyColumn", bound="Column")


class Column(BaseModel):
    """One column; abstract. Its fields are what a schema says of it, without a default where it
    must.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    kind: Any

    def labels(self, cells: Any) -> list[str]:
        """What is published of each cell, where a label of releases is taken from this column."""
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
        """What the coordinates are called, behind the column's name."""

    @property
    @abstractmethod
    def units(self) -> tuple[float, float, float, float]:
        """(center, scale, lower, upper): a coordinate z stands for center + scale·z, within these
        bounds.
        """

    @property
    def largest_square(self) -> float:
        """The largest that the squares of the coordinates of one cell add up to: of a category one
        is 1.
        """
        center, scale, lower, upper = self.units
        return (max(upper - center, center - lower) / scale) ** 2

    @abstractmethod
    def measure(self, cells: Any) -> Array:
        """Coordinates of each cell before bounds apply, shape (cells, coordinates); NaN if it
        cannot be read.

        Args:
            cells: an Arrow array, or a list of text with "" for a missing cell.

        Guarantees: what a cell becomes depends on that cell alone.
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
        center: what becomes 0; None for the middle of the bounds.
        scale: what becomes 1; None for half the width of the bounds.
        fill: public value that stands for a missing cell; None: its row is ignored.

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
        """See `Encoded.endings`."""
        return ("",)

    @property
    def units(self) -> tuple[float, float, float, float]:
        """See `Encoded.units`."""
        center = (self.lower + self.upper) / 2 if self.center is None else self.center
        scale = (self.upper - self.lower) / 2 if self.scale is None else self.scale
        return center, scale, self.lower, self.upper

    def measure(self, cells: Any) -> Array:
        """See `Encoded.measure`; a cell that is neither missing nor a finite number cannot be
        read.
        """
        found = numbers(cells)
        if self.fill is not None:
            found = np.where([not cell for cell in cells_of(cells)], self.fill, found)
        center, scale, *_ = self.units
        with np.errstate(over="ignore"):
            return ((np.where(np.isfinite(found), found, np.nan) - center) / scale)[:, None]


@final
class Category(Encoded):
    """One of some values; each has a coordinate that is 1 in its rows and 0 in others.

    Args:
        categories: all values that there are, in order.
        fill: the one that stands for a missing cell; None: its row is ignored.

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
        unfit = [one for one in categories if one != one.strip() or _CONTROL.search(one)]
        if unfit:
            raise ValueError(
                "categories must have no blanks at their ends and no control characters; got "
                f"{unfit[0][:40]!r}"
            )
        return categories

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.fill is not None and self.fill not in self.categories:
            raise ValueError(f"fill must be one of categories; got {self.fill!r:.100}")
        return self

    @property
    def endings(self) -> tuple[str, ...]:
        """See `Encoded.endings`."""
        return tuple(f"={one}" for one in self.categories)

    @property
    def units(self) -> tuple[float, float, float, float]:
        """See `Encoded.units`: shares of rows stay shares."""
        return 0.0, 1.0, 0.0, 1.0

    def places(self, cells: Any) -> NDArray[np.int64]:
        """Place of each cell's value among the categories, −1 for one that is none of them."""
        return places(cells, self.categories, self.fill or "")

    def measure(self, cells: Any) -> Array:
        """See `Encoded.measure`; a cell that is none of the categories cannot be read."""
        found = self.places(cells)[:, None]
        return np.where(found < 0, np.nan, found == np.arange(len(self.categories)))


@final
class Time(Column):
    """A time on a public grid: start, start + step, … before end. A row chooses only its own step.

    Args:
        start: the first time, as ISO 8601.
        end: the first time that is too late.
        step: width of the grid: a number of seconds, minutes, hours or days, such as "15 min" or "1
            day".

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
        if (steps := math.ceil((self.end - self.start) / self._width)) > _MOST_STEPS:
            raise ValueError(f"step must leave at most {_MOST_STEPS} steps; got {steps}")
        return self

    @cached_property
    def _width(self) -> timedelta:
        parts = _STEP.fullmatch(self.step)
        if parts is None or not int(parts[1]):
            raise ValueError(
                "step must be a number and s, min, h or d, such as '15 min'; got"
                f" {self.step!r:.100}"
            )
        return timedelta(seconds=int(parts[1]) * _SECONDS[parts[2][0]])

    def labels(self, cells: Any) -> list[str]:
        """The beginning of the step of each cell's time, in the zone of ``start``; "" outside the
        grid.

        Args:
            cells: as ISO 8601, without a zone in that of ``start``; where that has none, all are in
                UTC.
        """
        first = self.start.replace(tzinfo=self.start.tzinfo or UTC)
        labels = []
        for at in map(_time, cells_of(cells)):
            passed = (
                timedelta(-1)
                if at is None
                else at.replace(tzinfo=at.tzinfo or first.tzinfo) - first
            )
            inside = timedelta(0) <= passed < self.end - self.start
            labels.append(
                (self.start + passed // self._width * self._width).isoformat() if inside else ""
            )
        return labels


@final
class Text(Column):
    """Any text; no vector holds it."""

    kind: Literal["text"] = "text"


@final
class User(Column):
    """The id of the user who owns the row."""

    kind: Literal["user"] = "user"


@final
class Ignored(Column):
    """A column that nothing reads."""

    kind: Literal["ignore"] = "ignore"


#: What a column may be, by kind.
KINDS: Final[dict[str, type[Column]]] = {
    kind.model_fields["kind"].default: kind
    for kind in (Number, Category, Text, Time, User, Ignored)
}


@dataclass(frozen=True)
class Schema:
    """Columns by name, each with what its cells may hold.

    A row in which a cell of a column in use is missing, without a public value to fill it, or
    cannot be read counts for no user. Nothing else depends on it: errors depend on header, schema
    and configuration.

    Args:
        columns: by name, in the order in which they are declared.

    Raises:
        ValueError: no columns, or more than one of users.
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
        """The columns of a kind."""
        return tuple(name for name, column in self.columns.items() if isinstance(column, kind))

    @property
    def user(self) -> str | None:
        """The column of users, None if there is none."""
        return next(iter(self.named(User)), None)

    def column(self, name: str, kind: type[AnyColumn], what: str) -> AnyColumn:
        """One column, which must be of a kind.

        Args:
            name: of the column.
            kind: of which it must be.
            what: who asks, for the message.

        Raises:
            ValueError: it is not declared, or is of another kind.
        """
        column = self.columns.get(name)
        if not isinstance(column, kind):
            wanted = " or ".join(name for name, one in KINDS.items() if issubclass(one, kind))
            got = "none of its columns" if column is None else f"a column of kind {column.kind!r}"
            raise ValueError(
                f"{what} must be a column that the schema declares as {wanted}; got {name!r:.100},"
                f" {got}."
            )
        return column

    def check_header(self, names: Sequence[str], source: str, optional: Sequence[str] = ()) -> None:
        """Whether a table has the columns that are declared, each once, and no others.

        Args:
            names: of its columns; of one without a header none.
            source: what it is called in messages.
            optional: names of declared columns that need not be there.

        Raises:
            ValueError: a column is not declared, or a declared one is not there.
        """
        if undeclared := [name for name in names if name not in self.columns]:
            raise ValueError(
                f"columns must all be declared in the schema; got {shown_names(undeclared)} in"
                f' {source}, which it does not declare. Declare their content, or kind = "ignore".'
            )
        times = Counter(names)
        for name in self.columns:
            if times[name] > 1 or (not times[name] and name not in optional):
                fault = "twice or more" if times[name] else "no such column"
                raise ValueError(
                    f"columns must each occur once; got {fault} for {name!r:.100} in {source}."
                )

    def encoding(self, names: Sequence[str] | None = None) -> Encoding:
        """How rows become vectors.

        Args:
            names: of the columns of numbers and categories to use; None for all.

        Raises:
            ValueError: there is none, or one is of another kind.
        """
        wanted = self.named(Encoded) if names is None else tuple(names)
        if not wanted or len(set(wanted)) < len(wanted):
            raise ValueError(
                f"columns must be different ones, at least one; got {shown_names(wanted)}."
            )
        return Encoding(
            wanted, tuple(self.column(name, Encoded, "columns (of a vector)") for name in wanted)
        )

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits of the declarations, independent of the layout of the file."""
        said = json.dumps(self.to_dict(), ensure_ascii=False).encode(errors="surrogatepass")
        return hashlib.sha256(said).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict, columns in their order."""
        return {
            name: column.model_dump(mode="json", exclude_none=True)
            for name, column in self.columns.items()
        }

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote, or a file says under ``columns``.

        Raises:
            ValueError: a column is not declared as its kind requires; the column and key are named.
        """
        return cls({name: _column(name, given) for name, given in description.items()})


def _column(name: str, given: object) -> Column:
    """A column from what a file or record says of it."""
    given = dict(given) if isinstance(given, Mapping) else {}
    where = f"columns.{name[:200]}"
    kind = str(given.get("kind"))
    if kind not in KINDS:
        raise ValueError(
            f"{where}.kind must be one of {', '.join(KINDS)}; got {given.get('kind')!r:.100}."
        )
    keys = {key: about.description for key, about in KINDS[kind].model_fields.items()}
    try:
        return KINDS[kind].model_validate(given)
    except ValidationError as found:
        errors = found.errors(include_url=False)
    # A key that there is not may be another one misspelt, which is then missing.
    error = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    key = "".join(map(str, error["loc"][:1]))
    where = f"{where}.{key}".removesuffix(".")
    near = difflib.get_close_matches(key, keys, 1) or keys
    faults = {
        "missing": (
            f"must be filled in: {keys.get(key)}. Declare public facts; never read them off the"
            " rows."
        ),
        "extra_forbidden": (
            f"must be left out: no such key; did you mean {' or '.join(map(repr, near))}?"
        ),
    }
    said = error["msg"].removeprefix("Value error, ").replace("tuple", "list")
    fault = re.sub("(Input|Tuple) should", "must", said)
    got = f"; got {error['input']!r:.100}." if key else "."
    raise ValueError(
        f"{where} (kind {kind}) " + faults.get(error["type"], f"is wrong: {fault}{got}")
    )


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None


@dataclass(frozen=True, eq=False)
class Encoding:
    """How the columns in use become coordinates z, in bounded public units.

    Args:
        names: of the columns.
        columns: their declarations.
    """

    names: tuple[str, ...]
    columns: tuple[Encoded, ...]

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the coordinates: of a number its column's, of a category one a value,
        "city=Graz".
        """
        endings = [ending for column in self.columns for ending in column.endings]
        return tuple(map(str.__add__, self.owners, endings))

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The column of each coordinate."""
        return tuple(
            name for name, of in zip(self.names, self.columns, strict=True) for _ in of.endings
        )

    @property
    def counts(self) -> bool:
        """Whether valid rows are counted: a column may have missing cells."""
        return any(column.nullable for column in self.columns)

    @property
    def norm_bound(self) -> float:
        """The largest norm of a row that the schema lets through; no row is cut to it."""
        return math.sqrt(sum(column.largest_square for column in self.columns))

    @cached_property
    def units(self) -> Array:
        """(center, scale, lower, upper) of each coordinate, shape (d, 4), as in `Encoded.units`."""
        return np.array([column.units for column in self.columns for _ in column.endings])

    def measure(self, cells: Sequence[Any]) -> Array:
        """Coordinates of rows before bounds apply, shape (rows, d); NaN where a cell cannot be
        read.

        Args:
            cells: of each column in use, Arrow arrays or lists of text, "" for a missing cell.
        """
        return np.concatenate(
            [one.measure(of) for one, of in zip(self.columns, cells, strict=True)], axis=1
        )

    def encode(self, measured: Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Coordinates of rows within the bounds, and which rows are valid; others are zeros.

        Args:
            measured: as `measure` gives them.

        Returns:
            (z, valid), shapes (rows, d) and (rows,).

        Guarantees: a row of z depends on that row alone and has norm `norm_bound` at most.
        """
        valid = np.all(~np.isnan(measured), axis=1)
        centers, scales, lower, upper = self.units.T
        z = np.clip(measured, (lower - centers) / scales, (upper - centers) / scales)
        return np.where(valid[:, None], z, 0.0), valid
