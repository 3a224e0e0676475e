"""Rows of a file or pipe as vectors with users and labels, made of the cells that `open_table` gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from fedmf.data.cells import cells_of, ids, is_list, list_lengths, lists_of_numbers, numbers
from fedmf.data.table_reader import (
    InputError,
    JsonLinesTable,
    RowBatch,
    TableReader,
    open_table,
    shown_names,
)
from fedmf.streaming.rows import (
    Layout,
    RowBlock,
    declared_cells,
    declared_layout,
    encoded,
    label_of,
)
from fedmf.streaming.settings import Settings

_EMPTY: Final = "input must have rows; got an empty one."


@contextmanager
def open_reader(
    source: Path | None,
    settings: Settings,
    file_format: str | None = None,
    layout: Layout | None = None,
    first_row: int = 1,
) -> Iterator[Reader]:
    """The rows of a file, or of standard input for None.

    Args:
        source: where from.
        settings: which columns.
        file_format: "csv", "jsonl" or "parquet"; None guesses by the file's name, else by its first byte.
        layout: of an earlier part of the same input.
        first_row: number of the first row in it.

    Raises:
        InputError: it cannot be opened, has no rows, or lacks columns.
    """
    with open_table(0 if source is None else source, file_format) as table:
        try:
            yield Reader(table, settings, layout, first_row)
        except IsADirectoryError:
            raise InputError(f"input must be a file; {source} is a directory.") from None


class Reader:
    """Rows of one input, front to back, each once.

    Args:
        table: at its first row.
        settings: which columns.
        layout: of an earlier part of the same input.
        first_row: number of the first row in it.

    Attributes:
        layout: of the rows.
        first_row: which row of the stream the input begins with.

    Raises:
        InputError: no rows, a column is missing or of a type that holds nothing of its kind, or columns are
            not those of the rows before.
    """

    def __init__(
        self, table: TableReader, settings: Settings, layout: Layout | None = None, first_row: int = 1
    ) -> None:
        self._table, self._settings, self.first_row = table, settings, first_row
        named = table.names
        if settings.schema is not None and isinstance(table, JsonLinesTable):
            named = tuple(settings.schema.columns)  # an object may lack some
        self.layout = layout or chosen_layout(named, settings)
        if layout is not None:
            self._check_same(layout)
        cells = declared_cells(settings) if settings.schema is not None else self.layout.cells
        user = [] if self.layout.user is None else [self.layout.user]
        table.select(list(dict.fromkeys([*cells, *self.layout.labels, *user])))
        first = table.read(1)
        if first is None and layout is None:
            raise InputError(_EMPTY)
        if layout is None and settings.schema is None and len(cells) == 1 and first is not None:
            column = first.columns[cells[0]]
            if is_list(column.type):
                self.layout = array_layout(cells[0], int(list_lengths(column)[0]), settings)
        self._first = None if first is None else self._block(first)

    def read(self, most: int) -> RowBlock | None:
        """Up to that many of the next rows, those at hand if there are any; None at the end.

        Raises:
            InputError: the input breaks off.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        batch = self._table.read(most)
        return None if batch is None else self._block(batch)

    def skip(self, rows: int) -> int:
        """Pass over that many rows without looking at them; how many there were."""
        held = int(self._first is not None and rows > 0)
        self._first = None if held else self._first
        return held + self._table.skip(rows - held)

    def _block(self, batch: RowBatch) -> RowBlock:
        try:
            return batch_block(batch, self._settings, self.layout)
        except ValueError as error:
            raise InputError(str(error)) from None

    def _check_same(self, before: Layout) -> None:
        """Whether columns that nobody named are those of the rows before; of JSON, where the first row may
        lack some, whether it has none but them."""
        if self._settings.columns is not None or self._settings.schema is not None:
            return
        others = (before.user, *before.labels)
        present = [name for name in self._table.names if name not in others]
        lenient = isinstance(self._table, JsonLinesTable) and present and set(present) <= set(before.cells)
        if not lenient and sorted(present) != sorted(before.cells):
            raise InputError(
                f"columns (of numbers) must be {shown_names(before.cells)}, as in the rows before; got "
                f"{shown_names(present)}."
            )


def batch_block(
    batch: RowBatch, settings: Settings, layout: Layout, users: Sequence[str | None] | None = None
) -> RowBlock:
    """The rows of a batch, each by its own cells alone.

    Args:
        batch: with the columns of the layout.
        settings: of the stream.
        layout: of its rows.
        users: the users of the rows, where no column names them.

    Raises:
        ValueError: a column of a type that holds nothing of its kind.
    """
    columns, faults = batch.columns, set(batch.faults)
    if users is None and layout.user is not None:
        users = ids(columns[layout.user], f"column {layout.user!r}").to_pylist()
    faults.update(i for i, user in enumerate(users or ()) if user is None)
    if settings.encoding is not None:
        cells = {name: cells_of(columns[name], f"column {name!r}") for name in declared_cells(settings)}
        return encoded(cells, users, faults, settings)
    if layout.array is not None:
        values = lists_of_numbers(columns[layout.array], layout.dimension, f"column {layout.array!r}")
    else:
        of = [numbers(columns[name], f"column {name!r}") for name in layout.columns]
        values = np.column_stack([np.zeros((batch.rows, 0)), *of])
    faults.update(np.flatnonzero(~np.isfinite(values).all(axis=1)).tolist())
    values[list(faults)] = 0.0
    told = [map(label_of, cells_of(columns[name], f"column {name!r}")) for name in layout.labels]
    return RowBlock(values, users, frozenset(faults), list(zip(*told, strict=True)))


def array_layout(name: str, dimension: int, settings: Settings) -> Layout:
    """The layout of rows that are an array of numbers, by its name."""
    if dimension < 1:
        raise InputError("row 1 must hold numbers; got an empty array.")
    columns = tuple(f"{name}{i}" for i in range(1, dimension + 1))
    return Layout(columns, settings.user_column, tuple(settings.labels.values()), name)


def chosen_layout(names: Sequence[str], settings: Settings) -> Layout:
    """The layout of a table with these columns.

    Raises:
        InputError: a column is missing, there twice, or none of numbers is left.
    """
    if settings.schema is not None:
        try:
            settings.schema.check_header(names, "the input")
        except ValueError as error:
            raise InputError(str(error)) from None
        return declared_layout(settings)
    user, labels = settings.user_column, tuple(settings.labels.values())
    others = [*([] if user is None else [user]), *labels]
    wanted = settings.columns or [name for name in names if name not in others]
    asked, times = [*wanted, *others], Counter(names)
    for name in asked:
        if times[name] != 1:
            fault = "appears twice" if times[name] else "is missing"
            raise InputError(f"column {name!r} {fault}; the input has {shown_names(names)}.")
    if not wanted or len(set(asked)) != len(asked):
        raise InputError(
            "columns must be at least one, all different, and not the user's or a label's; got "
            f"{shown_names(asked)}."
        )
    if settings.columns is None and not all(wanted) and tuple(names) != ("",):
        raise InputError(
            "input must have a first line with the names of its columns; got an empty one. Name the columns "
            "(--columns) if it is one."
        )
    return Layout(tuple(wanted), user, labels)
