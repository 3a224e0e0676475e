"""Rows that a program hands over, one by one or as a table of any library, and what their shape must be."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, final

import numpy as np

from fedmf.data import Schema, canonical_id, texts_of_ids, written
from fedmf.streaming.declared_rows import declared_cells, declared_layout, encoded
from fedmf.streaming.parquet_rows import is_written_as_text, text_of
from fedmf.streaming.rows import Layout, RowBlock, label_of, numbers_of, wanted_columns
from fedmf.streaming.settings import Settings

#: As of JSON lines {"x": [0.1, 0.2], "user": "ann"}.
_ROW, _USER = "x", "user"

_FREE: Final = "Nothing was spent."
_UNFIT: Final = "x (row) must be {d} numbers; got {got}. {fix}"


def content_of(block: RowBlock, i: int) -> bytes:
    """Bytes that another user or other values of a row would change."""
    assert block.users is not None
    values = b"" if i in block.faults else block.values[i].astype("<f8").tobytes()
    return len(values).to_bytes(8, "little") + values + (block.users[i] or "").encode()


class RowForm(ABC):
    """What rows that are handed over must be, and the vectors that they become; abstract.

    Shapes and names are the program's and public: what does not fit is refused. What a row holds is a user's,
    and refuses nothing.
    """

    layout: Layout

    @abstractmethod
    def entries(self, row: object) -> list[Any]:
        """What is kept of a row, which is not looked at.

        Raises:
            ValueError: it is no row of this form.
        """

    @abstractmethod
    def columns(
        self, table: Any, users: Any, keys: Any, before: Sequence[str]
    ) -> tuple[list[list[Any]], Any, tuple[str, ...]]:
        """(what is kept of the rows of a table, column by column; their users; the columns' names).

        Args:
            table: of Arrow.
            users: the id of each row's user, or the name of a column.
            keys: the key of each row, or the name of a column, or None.
            before: the columns' names in earlier tables of the stream.

        Raises:
            ValueError: its columns are not of this form.
        """

    @abstractmethod
    def block(self, first: int, rows: TableRows) -> RowBlock:
        """The vectors of rows, of which the first has this number in the stream."""


@final
class NumberForm(RowForm):
    """Rows of d numbers.

    Args:
        dimension: d; None for as many as there are names.
        columns: names of the numbers; None for rows without names.

    Raises:
        ValueError: neither is given, they disagree, or a name is missing or there twice.
    """

    def __init__(self, dimension: int | None, columns: Sequence[str] | None) -> None:
        if columns is None:
            if dimension is None:
                raise ValueError("d (dimension) must be given, or the names of the columns; got neither.")
            self.layout = Layout((_ROW,), True, dimension, _USER)
            return
        named = wanted_columns(columns, columns, None)
        if dimension not in (None, len(named)):
            raise ValueError(f"d (dimension) must be {len(named)}, as there are columns; got {dimension}.")
        self.layout = Layout(tuple(named), False, len(named), _USER)

    def entries(self, row: object) -> list[Any]:
        """The d entries of a row.

        Args:
            row: d numbers in a list, an array, a tensor; by name where the columns have names: a name that is
                missing is a number that cannot be read, others are passed over.
        """
        d, columns = self.layout.dimension, () if self.layout.vector else self.layout.columns
        row = _by_name(row) if columns else row
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

    def columns(
        self, table: Any, users: Any, keys: Any, before: Sequence[str]
    ) -> tuple[list[list[Any]], Any, tuple[str, ...]]:
        """See `RowForm.columns`; without names a table's numbers are all columns but those two, and later
        tables must have the columns of the first one."""
        others = [name for name in (users, keys) if isinstance(name, str)]
        layout = self.layout
        columns = None if layout.vector else layout.columns
        names = wanted_columns(table.column_names, columns, None, others, before)
        if len(names) != layout.dimension:
            raise ValueError(f"rows must have {layout.dimension} columns of numbers; got {len(names)}.")
        named = isinstance(users, str)
        ids = _users(texts_of_ids(table.column(users), f"column {users!r}") if named else users)
        return [_numbers(table, name) for name in names], ids, tuple(names)

    def block(self, first: int, rows: TableRows) -> RowBlock:
        """See `RowForm.block`; a row with an entry that is no number has zeros and a fault."""
        layout, faults = self.layout, dict[int, str]()
        names = [str(i) for i in range(1, layout.dimension + 1)] if layout.vector else layout.columns
        values = np.zeros((len(rows.entries), layout.dimension))
        for i, row in enumerate(rows.entries):
            found = numbers_of(row, names)
            if isinstance(found, str):
                faults[i] = found
            else:
                values[i] = found
        return RowBlock(first, values, rows.users, faults)


@final
class DeclaredForm(RowForm):
    """Rows of raw cells by name, which a schema declares.

    Args:
        settings: with a schema.
    """

    def __init__(self, settings: Settings) -> None:
        assert settings.schema is not None
        self._settings, self._schema = settings, settings.schema
        self._names, self.layout = declared_cells(settings), declared_layout(settings)

    def entries(self, row: object) -> list[Any]:
        """The cells in use, as text; a name that is missing is a missing cell, others are passed over."""
        row = _by_name(row)
        if not isinstance(row, Mapping):
            raise ValueError(
                "x (row) must be a mapping by the names of the schema's columns; got "
                f"{type(row).__name__}. {_FREE}"
            )
        cells = [_item(row.get(name)) for name in self._names]
        # As a table writes them.
        return [str(cell).lower() if isinstance(cell, bool) else label_of(cell) for cell in cells]

    def columns(
        self, table: Any, users: Any, keys: Any, before: Sequence[str]
    ) -> tuple[list[list[Any]], Any, tuple[str, ...]]:
        """See `RowForm.columns`: those of the schema, as the head of a file; a column of users is read as
        that of a file is, and a row without one is nobody's."""
        user, declared = self._settings.user_column, self._schema.columns
        if isinstance(users, str) and users != user:
            raise ValueError(f"users (column) must be that of the schema, {user!r}; got {users!r}. {_FREE}")
        present = [name for name in table.column_names if name != keys or name in declared]
        self._schema.check_header(present, "the table", () if isinstance(users, str) else (str(user),))
        for name in self._names:
            if not is_written_as_text(kind := table.schema.field(name).type):
                raise ValueError(f"column {name!r} must hold text, numbers or times; got {kind}. {_FREE}")
        cells = [list(map(text_of, written(table.column(name)).to_pylist())) for name in self._names]
        if not isinstance(users, str):
            return cells, _users(users), self._names
        return cells, texts_of_ids(table.column(users), f"column {users!r}"), self._names

    def block(self, first: int, rows: TableRows) -> RowBlock:
        """See `RowForm.block`."""
        nobody = (i for i, user in enumerate(rows.users) if user is None)
        faults = dict.fromkeys(nobody, f"column {self._settings.user_column!r} must name a user")
        cells = [tuple(row) for row in rows.entries]
        return encoded(RowBlock(first, np.zeros((len(cells), 0)), rows.users, faults, cells), self._settings)


def pushed_user(schema: object) -> str:
    """The name of the column of users of rows that are pushed.

    Raises:
        ValueError: a schema that is none, or has no such column.
    """
    if schema is None:
        return _USER
    if not isinstance(schema, Schema):
        raise ValueError(f"schema must be what fedmf.data.read_schema gives; got {type(schema).__name__}.")
    if schema.user is None:
        raise ValueError("schema must declare a column of users for rows that are pushed; got none.")
    return schema.user


def row_form(settings: Settings, dimension: int | None) -> RowForm:
    """The form of rows that are pushed.

    Raises:
        ValueError: columns and dimension disagree, or there is a dimension beside a schema.
    """
    if settings.schema is None:
        return NumberForm(dimension, settings.columns)
    if dimension is not None:
        raise ValueError(f"d (dimension) must be left out with a schema; got {dimension}.")
    return DeclaredForm(settings)


def require_name(what: str, name: object) -> None:
    """Refuse what is no id or key."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what} must be text that is not empty; got {name!r}.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that UTF-8 can hold; got {name!r}.") from None


def require_user(name: object) -> str:
    """The id of a user as `canonical_id` writes it.

    Raises:
        ValueError: none, or a float whose last digits are lost.
    """
    require_name("user", name)
    if not (user := canonical_id(str(name))):
        raise ValueError(f"user must be an id that is whole; got {name!r}. Give ids as text, not as floats.")
    return user


def _users(names: Iterable[object]) -> list[str | None]:
    return [require_user(name) for name in names]


def _by_name(row: Any) -> object:
    """A row of a pandas table, which is no mapping, by the names of its columns."""
    return row.to_dict() if hasattr(row, "to_dict") and hasattr(row, "index") else row


def _item(entry: Any) -> object:
    """The number that a decimal, an array or tensor of one holds."""
    if isinstance(entry, Decimal):
        return float(entry) if not entry.is_snan() else math.nan
    try:
        return entry.item() if hasattr(entry, "item") else entry
    except (TypeError, ValueError, RuntimeError):
        return entry


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows that were handed over together.

    Args:
        entries: of each row, as its form keeps them.
        users: whose each is; None where a schema's column of users has none that can be read.
        keys: of each, None for a row without one.
        columns: names of the columns of a table; none of other rows.
    """

    entries: list[list[Any]]
    users: list[str | None]
    keys: list[str | None]
    columns: tuple[str, ...] = ()


def table_rows(rows: Any, users: Any, keys: Any, form: RowForm, before: Sequence[str] = ()) -> TableRows:
    """The rows of a table or of a sequence of rows.

    Args:
        rows: a data frame or table (with ``__arrow_c_stream__`` or ``__dataframe__``), or rows one by one.
        users: the id of each row's user, or the name of the column of a table that has them.
        keys: the key of each row, or the name of such a column; None for rows without keys.
        form: of the stream.
        before: the columns' names in earlier tables of the stream.

    Raises:
        ValueError: something has no row's shape, a column is missing, holds no numbers or was not there
            before, an id or key is none, or there are not as many users or keys as rows.
    """
    table, names = _table(rows), ()
    if table is None:
        named = [what for what in (users, keys) if isinstance(what, str)]
        if named:
            raise ValueError(f"rows must be a table for a column {named[0]!r}; got {type(rows).__name__}.")
        entries, told = [form.entries(row) for row in rows], _users(users)
    else:
        columns, told, names = form.columns(table, users, keys, before)
        entries, keys = list(map(list, zip(*columns, strict=True))), _texts(table, keys)
    keyed: list[str | None] = [None] * len(entries) if keys is None else list(keys)
    for what, given in (("users", told), ("keys", keyed)):
        if len(given) != len(entries):
            raise ValueError(f"{what} (of the rows) must be {len(entries)}; got {len(given)}.")
    return TableRows(entries, told, keyed, names)


def _table(rows: Any) -> Any:
    """As an Arrow table; None where it is no table."""
    import pyarrow as arrow

    if hasattr(rows, "__arrow_c_stream__"):
        try:
            return arrow.table(rows)
        except (arrow.ArrowInvalid, arrow.ArrowTypeError):
            if not hasattr(rows, "items"):
                raise
            return arrow.table({str(name): _mixed(cells) for name, cells in rows.items()})
    if hasattr(rows, "__dataframe__"):
        from pyarrow import interchange

        return interchange.from_dataframe(rows)
    return None


def _mixed(cells: Any) -> Any:
    """A column of pandas that may hold objects of several types, which are then text, cell by cell."""
    import pyarrow as arrow

    try:
        return arrow.Array.from_pandas(cells)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        return arrow.array([_text_of_object(cell) for cell in cells], arrow.string())


def _text_of_object(cell: Any) -> str | None:
    """As Arrow writes it where it is text or a number."""
    cell = _item(cell)
    if isinstance(cell, bool):
        return str(cell).lower()
    missing = cell is None or (isinstance(cell, float) and math.isnan(cell))
    return None if missing else label_of(cell)


def _numbers(table: Any, name: str) -> list[object]:
    """A column of numbers; an empty cell is None, which cannot be read."""
    import pyarrow as arrow

    kind = table.schema.field(name).type
    if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
        raise ValueError(f"column {name!r} must hold numbers; got {kind}. Nothing was spent.")
    return table.column(name).to_pylist()


def _texts(table: Any, what: Any) -> Any:
    return table.column(what).to_pylist() if isinstance(what, str) else what
