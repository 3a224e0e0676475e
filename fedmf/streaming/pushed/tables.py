"""Rows of a table of any library: pandas, Polars, Arrow and whatever speaks Arrow's interchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmf.streaming.pushed.entries import pushed_entries
from fedmf.streaming.rows import Layout, wanted_columns


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
