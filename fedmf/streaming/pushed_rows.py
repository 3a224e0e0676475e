"""Rows that a program hands over, one by one or as a table of any library, and what their shape must be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from fedmf.streaming.rows import Layout, RowBlock, RowReader, numbers_of, wanted_columns

#: As of JSON lines {"x": [0.1, 0.2], "user": "ann"}.
_ROW, _USER = "x", "user"

_FREE: Final = "Nothing was spent."
_UNFIT: Final = "x (row) must be {d} numbers; got {got}. {fix}"


@final
class PushedRows(RowReader):
    """Rows that a program hands over.

    Args:
        layout: of the stream.
        number: which row of the stream the first is.
        rows: the entries of each, d of them (`pushed_entries`).
        users: whose they are.
    """

    advice = "It took no step and spent nothing: correct it and push it again."

    def __init__(
        self, layout: Layout, number: int, rows: Sequence[Sequence[object]], users: Sequence[str]
    ) -> None:
        self.layout, self.first_row, self._users = layout, number, users
        names = [str(i) for i in range(1, layout.dimension + 1)] if layout.vector else layout.columns
        self._values, self._faults = np.zeros((len(rows), layout.dimension)), dict[int, str]()
        for i, row in enumerate(rows):
            found = numbers_of(row, names)
            if isinstance(found, str):
                self._faults[i] = found
            else:
                self._values[i] = found
        self._taken = False

    def content(self, i: int) -> bytes:
        """Bytes that another user or other values of a row would change."""
        values = b"" if i in self._faults else self._values[i].astype("<f8").tobytes()
        return len(values).to_bytes(8, "little") + values + self._users[i].encode()

    def chosen(self, indices: Sequence[int]) -> PushedRows:
        """Some of the rows, one after the other and not read yet."""
        chosen = PushedRows(self.layout, self.first_row, (), [self._users[i] for i in indices])
        chosen._values = self._values[indices]
        chosen._faults = {at: self._faults[i] for at, i in enumerate(indices) if i in self._faults}
        return chosen

    def part(self, start: int, stop: int) -> PushedRows:
        """The rows from start to stop − 1, which are so many further on in the stream."""
        part = self.chosen(range(start, stop))
        part.first_row = self.first_row + start
        return part

    def read(self, most: int) -> RowBlock | None:
        """See `RowReader.read`; all of them."""
        if self._taken:
            return None
        self._taken = True
        return RowBlock(self.first_row, self._values, self._users, self._faults)

    def skip(self, rows: int) -> int:
        """See `RowReader.skip`."""
        return 0

    def where(self, row: int) -> str:
        """See `RowReader.where`."""
        return f"row {row}"

    def close(self) -> None:
        """See `RowReader.close`."""


def pushed_entries(row: object, layout: Layout) -> list[object]:
    """The d entries of a row that a program hands over; what they hold is not looked at.

    Args:
        row: d numbers in a list, an array, a tensor; by name where the columns have names: a name that is
            missing is a number that cannot be read, others are passed over.
        layout: of the stream.

    Raises:
        ValueError: no row of d entries. Its shape is the program's and public; its numbers are a user's.
    """
    d, columns = layout.dimension, () if layout.vector else layout.columns
    if isinstance(row, Mapping):
        if not columns:
            raise ValueError(_UNFIT.format(d=d, got="a mapping", fix="Open the stream with columns=."))
        if not any(name in row for name in columns):
            raise ValueError(_UNFIT.format(d=d, got="a mapping without any of its columns", fix=_FREE))
        entries: list[object] = [row.get(name) for name in columns]
    elif isinstance(row, str | bytes | AbstractSet) or not isinstance(row, Iterable):
        raise ValueError(_UNFIT.format(d=d, got=f"{type(row).__name__}", fix=_FREE))
    else:
        try:
            entries = list(row)
        except (TypeError, RuntimeError):  # arrays and tensors without an axis
            raise ValueError(_UNFIT.format(d=d, got="a number", fix=_FREE)) from None
    entries = [_item(entry) for entry in entries]
    if len(entries) != d:
        raise ValueError(_UNFIT.format(d=d, got=f"{len(entries)}", fix=_FREE))
    if any(isinstance(entry, Iterable) and not isinstance(entry, str | bytes) for entry in entries):
        raise ValueError(_UNFIT.format(d=d, got="arrays in an array", fix=_FREE))
    return entries


def pushed_layout(dimension: int | None, columns: Sequence[str] | None) -> Layout:
    """Of rows that are pushed, by their number of entries or the names of those.

    Raises:
        ValueError: neither is given, they disagree, or a name is missing or there twice.
    """
    if columns is None:
        if dimension is None:
            raise ValueError("d (dimension) must be given, or the names of the columns; got neither.")
        return Layout((_ROW,), True, dimension, _USER)
    named = wanted_columns(columns, columns, None)
    if dimension not in (None, len(named)):
        raise ValueError(f"d (dimension) must be {len(named)}, as there are columns; got {dimension}.")
    return Layout(tuple(named), False, len(named), _USER)


def require_name(what: str, name: object) -> None:
    """Refuse what is no id or key."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what} must be text that is not empty; got {name!r}.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that UTF-8 can hold; got {name!r}.") from None


def _item(entry: Any) -> object:
    """The number that an array or tensor of one holds."""
    try:
        return entry.item() if hasattr(entry, "item") else entry
    except (TypeError, ValueError, RuntimeError):
        return entry


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows that were handed over together.

    Args:
        entries: d of each row.
        users: whose each is.
        keys: of each, None for a row without one.
    """

    entries: list[list[object]]
    users: list[str]
    keys: list[str | None]


def table_rows(
    rows: Any, users: str | Sequence[str], keys: str | Sequence[str] | None, layout: Layout
) -> TableRows:
    """The rows of a table or of a sequence of rows.

    Args:
        rows: a data frame or table (with ``__arrow_c_stream__`` or ``__dataframe__``), or rows one by one.
        users: the id of each row's user, or the name of the column of a table that has them.
        keys: the key of each row, or the name of such a column; None for rows without keys.
        layout: of the stream. Without names of columns a table's numbers are all columns but those two.

    Raises:
        ValueError: something has no row's shape, a column is missing or holds no numbers, or there are not as
            many users or keys as rows.
    """
    table = _table(rows)
    if table is None:
        named = [what for what in (users, keys) if isinstance(what, str)]
        if named:
            raise ValueError(f"rows must be a table for a column {named[0]!r}; got {type(rows).__name__}.")
        entries = [pushed_entries(row, layout) for row in rows]
    else:
        others = [name for name in (users, keys) if isinstance(name, str)]
        columns = None if layout.vector else layout.columns
        names = wanted_columns(table.column_names, columns, None, others)
        if len(names) != layout.dimension:
            raise ValueError(f"rows must have {layout.dimension} columns of numbers; got {len(names)}.")
        entries = list(map(list, zip(*(_numbers(table, name) for name in names), strict=True)))
        users, keys = _texts(table, users), _texts(table, keys)
    told = list(users)
    keyed: list[str | None] = [None] * len(entries) if keys is None else list(keys)
    for what, given in (("users", told), ("keys", keyed)):
        if len(given) != len(entries):
            raise ValueError(f"{what} (of the rows) must be {len(entries)}; got {len(given)}.")
    return TableRows(entries, told, keyed)


def _table(rows: Any) -> Any:
    """As an Arrow table; None where it is no table."""
    import pyarrow as arrow

    if hasattr(rows, "__arrow_c_stream__"):
        return arrow.table(rows)
    if hasattr(rows, "__dataframe__"):
        from pyarrow import interchange

        return interchange.from_dataframe(rows)
    return None


def _numbers(table: Any, name: str) -> list[object]:
    """A column of numbers; an empty cell is None, which cannot be read."""
    import pyarrow as arrow

    kind = table.schema.field(name).type
    if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
        raise ValueError(f"column {name!r} must hold numbers; got {kind}. Nothing was spent.")
    return table.column(name).to_pylist()


def _texts(table: Any, what: Any) -> Any:
    return table.column(what).to_pylist() if isinstance(what, str) else what
