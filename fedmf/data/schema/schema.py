"""A public schema: what every column of a table may hold, declared before any row is looked at."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cached_property
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmf.data.schema.columns import (
    KINDS,
    Category,
    Column,
    Encoded,
    FreeText,
    Number,
    Time,
    User,
    numbers_of_cells,
)
from fedmf.typing import Array

_MOST_NAMES: Final = 20
_MOST_CHARACTERS: Final = 100
AnyColumn = TypeVar("AnyColumn", bound=Column)


@dataclass(frozen=True)
class Schema:
    """Columns by name, each with what its cells may hold.

    A row in which a cell of a column in use is missing, without a public value to fill it, or cannot be read
    counts for nobody. It decides nothing else: what is refused depends on header, schema and configuration.

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
            raise ValueError(f"schema (columns) must have at most one of users; got {_shown(users)}.")

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
                f"{what} must be a column that the schema declares as {wanted}; got {name!r:.100}, {got}."
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
        undeclared = [name for name in names if name not in self.columns]
        if undeclared:
            raise ValueError(
                f"columns must all be declared in the schema; got {_shown(undeclared)} in {source}, which "
                'it does not declare. Say what they hold, or kind = "ignore".'
            )
        times = Counter(names)
        for name in self.columns:
            if times[name] > 1 or (not times[name] and name not in optional):
                fault = "twice or more" if times[name] else "no such column"
                raise ValueError(
                    f"columns must each be there once; got {fault} for {name!r:.100} in {source}."
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
            raise ValueError(f"columns must be different ones, at least one; got {_shown(wanted) or 'none'}.")
        return Encoding(wanted, tuple(self.column(name, Encoded, "columns (of a vector)") for name in wanted))

    def check_label(self, name: str, what: str) -> None:
        """Whether a column may be a public label.

        Raises:
            ValueError: it is neither of times nor of texts.
        """
        if not isinstance(self.columns.get(name), Time):
            self.column(name, FreeText, what)

    def label_of(self, name: str, cells: list[str]) -> list[str]:
        """Public labels of rows: of a column of times the beginning of a row's own step, else the cell."""
        column = self.columns.get(name)
        return (
            [column.label(step) for step in column.steps_of(cells).tolist()]
            if isinstance(column, Time)
            else cells
        )

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits: of what is said, however a file is laid out."""
        said = json.dumps(self.to_dict(), ensure_ascii=False).encode(errors="surrogatepass")
        return hashlib.sha256(said).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict, columns in their order."""
        return {name: column.to_dict() for name, column in self.columns.items()}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote, or a file says under ``columns``.

        Raises:
            ValueError: what is said of a column is not what its kind needs; it is named.
        """
        return cls({name: _column(name, given) for name, given in description.items()})


@dataclass(frozen=True, eq=False)
class Encoding:
    """How the columns in use become coordinates z, in bounded public units.

    Args:
        names: of the columns.
        columns: what is declared of them.
    """

    names: tuple[str, ...]
    columns: tuple[Encoded, ...]

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the coordinates: of a number its column's, of a category one a word, "city=Graz"."""
        each = zip(self.names, self.columns, strict=True)
        return tuple(name + ending for name, column in each for ending in column.endings)

    @property
    def dimension(self) -> int:
        """d."""
        return len(self.coordinates)

    @property
    def counts(self) -> bool:
        """Whether valid rows are counted: a column may have missing cells."""
        return any(column.nullable for column in self.columns)

    @property
    def norm_bound(self) -> float:
        """The largest norm of a row that the schema lets through; no row is cut to it."""
        return math.sqrt(sum(column.largest_square for column in self.columns))

    @cached_property
    def centers(self) -> Array:
        """Of each coordinate what 0 stands for."""
        return np.array([column.center_and_scale[0] for column in self.columns for _ in column.endings])

    @cached_property
    def scales(self) -> Array:
        """Of each coordinate what a difference of 1 stands for."""
        return np.array([column.center_and_scale[1] for column in self.columns for _ in column.endings])

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Least and largest value of each coordinate, in the columns' own units."""
        ends = np.array([column.bounds for column in self.columns for _ in column.endings])
        return ends[:, 0], ends[:, 1]

    def encode(self, cells: Sequence[list[str]]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Coordinates of rows, and which rows are valid; others are zeros.

        Args:
            cells: for each column in use its cells as text, "" for a missing one.

        Returns:
            (z, valid), shapes (rows, d) and (rows,).

        Guarantees: a row of z depends on that row alone and has norm `norm_bound` at most.
        """
        parts = [column.encode(texts) for column, texts in zip(self.columns, cells, strict=True)]
        valid = np.logical_and.reduce([readable for _, readable in parts])
        return np.where(valid[:, None], np.concatenate([z for z, _ in parts], axis=1), 0.0), valid


def _column(name: str, given: object) -> Column:
    """A column from what a file or record says of it."""
    if not isinstance(given, Mapping):
        raise ValueError(f"columns.{name:.100} must be a table with a kind; got {given!r:.100}.")
    said = {str(key).replace("-", "_"): value for key, value in given.items()}
    kind = said.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"columns.{name:.100} (kind) must be one of {', '.join(KINDS)}; got {kind!r:.100}.")
    known = {one: field for one, field in KINDS[kind].__dataclass_fields__.items() if field.init}
    unknown = [key for key in said if key not in known]
    if unknown:
        allowed = ", ".join(known).replace("_", "-") or "no keys"
        raise ValueError(
            f"columns.{name:.100} of kind {kind!r} must have {allowed}; got {unknown[0]!r:.100}."
        )
    needed = [key for key in known if key not in said and not _has_default(known[key])]
    if needed:
        raise ValueError(
            f"columns.{name:.100} of kind {kind!r} must say {' and '.join(needed)}; it does not. What is "
            "public is declared, never read off the rows."
        )
    said = {
        key: tuple(value) if isinstance(value, list) else _text_of_time(value) for key, value in said.items()
    }
    try:
        return KINDS[kind](**said)
    except ValueError as error:
        raise ValueError(f"columns.{name}: {error}") from None


def _has_default(field: Any) -> bool:
    return field.default is not MISSING


def _text_of_time(value: object) -> object:
    """TOML has dates and times of its own."""
    return value.isoformat() if hasattr(value, "isoformat") else value  # type: ignore[attr-defined]


def _shown(names: Sequence[str]) -> str:
    few = [repr(name[:_MOST_CHARACTERS]) for name in names[:_MOST_NAMES]]
    return ", ".join([*few, *([f"… ({len(names)} in all)"] if len(names) > _MOST_NAMES else [])])


@dataclass
class Kept:
    """What was seen of one column. Not private.

    Args:
        missing: rows without a cell.
        unreadable: rows whose cell is not what was declared.
        clipped: rows whose number lies outside its bounds, and counts as the nearer one.
        filled: whether a missing cell is filled.
    """

    missing: int = 0
    unreadable: int = 0
    clipped: int = 0
    filled: bool = False


def check_rows(schema: Schema, blocks: Iterator[dict[str, list[str]]]) -> tuple[dict[str, Kept], int, int]:
    """(what was seen of each column that is read, how many rows there are, how many of them are valid).

    Args:
        schema: what was declared.
        blocks: cells as text by column, "" for a missing one, some rows at a time.
    """
    read = {
        name: column for name, column in schema.columns.items() if isinstance(column, Encoded | Time | User)
    }
    seen = {name: Kept(filled=getattr(column, "fill", None) is not None) for name, column in read.items()}
    rows = valid = 0
    for cells in blocks:
        good = np.ones(len(next(iter(cells.values()))), dtype=bool)
        for name, column in read.items():
            missing = np.array([not cell for cell in cells[name]])
            readable = _readable(column, cells[name])
            seen[name].missing += int(missing.sum())
            seen[name].unreadable += int((~readable & ~missing).sum())
            if isinstance(column, Number):
                with np.errstate(invalid="ignore"):
                    numbers = numbers_of_cells(cells[name])
                    outside = (numbers < column.lower) | (numbers > column.upper)
                seen[name].clipped += int((outside & readable).sum())
            good &= readable
        rows, valid = rows + len(good), valid + int(good.sum())
    return seen, rows, valid


def _readable(column: Encoded | Time | User, cells: list[str]) -> NDArray[np.bool_]:
    if isinstance(column, Number | Category):
        return column.encode(cells)[1]
    if isinstance(column, Time):
        return column.steps_of(cells) >= 0
    return np.array([bool(cell) for cell in cells])
