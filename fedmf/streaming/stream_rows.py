"""Rows of a stream: read from a file or pipe, and converted to vectors with users and labels.

`Reader` reads an input from front to back in blocks of rows; pushed rows become blocks by the same
functions. A row depends on its own cells alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.data.cells import (
    cells_of,
    ids,
    is_list,
    list_lengths,
    lists_of_numbers,
    numbers,
    require_numbers,
    require_times,
)
from fedmf.data.schema import Number
from fedmf.data.table_reader import (
    InputError,
    JsonLinesTable,
    RowBatch,
    TableReader,
    open_table,
    shown_names,
)
from fedmf.data.user_files import RowFiles, open_rows
from fedmf.matrices.arrays import Array
from fedmf.streaming.settings import COUNT, Settings

#: Most characters of a label.
_LONGEST_LABEL: Final = 256
#: Characters that end a line or cannot be written: control characters, line separators, halves of
#: surrogate pairs.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Layout:
    """The columns of a vector, of its user and of its labels.

    Args:
        columns: names of the d coordinates in order.
        user: name of the column with the user's id, None if there is none.
        labels: names of the columns with public labels, which are released unchanged.
        array: the column of arrays of d numbers each; "" where a row is an array; None where every
            number has a column.
        time: name of the column with the row's time, in a stream of periods.
    """

    columns: tuple[str, ...]
    user: str | None = None
    labels: tuple[str, ...] = ()
    array: str | None = None
    time: str | None = None

    @property
    def dimension(self) -> int:
        """d."""
        return len(self.columns)

    @property
    def cells(self) -> tuple[str, ...]:
        """The columns of a table that hold the numbers."""
        if self.array is not None:
            return (self.array,)
        return self.numbers

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns without the coordinate that counts rows of a stream of periods."""
        return tuple(name for name in self.columns if self.time is None or name != COUNT)


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Consecutive rows.

    Args:
        values: shape (rows, d), float64; zeros where a row is invalid.
        users: the id of each row's user, None where it cannot be read; None without a user column.
        measured: coordinates before any bound, shape (rows, d), NaN where a cell is missing or
            cannot be read, all of them in a row without a user id: for the operator's scores and
            counts, never for a release.
        labels: the labels of each row, "" where one cannot be read; empty without label columns.
        nameless: indices of the rows with an empty cell of the user; not of rows without cells, as
            whether a line is a row is private.
        malformed: why some lines are not rows, by index: for the operator's counts.
        periods: the period of each row, from 0; −1 for a time that is in none or cannot be read.
            Empty without a time column.
    """

    values: NDArray[np.float64]
    users: Sequence[str | None] | None
    measured: Array
    labels: Sequence[tuple[str, ...]] = ()
    nameless: frozenset[int] = frozenset()
    malformed: Mapping[int, str] = field(default_factory=dict)
    periods: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def invalid(self) -> NDArray[np.bool_]:
        """Which rows are invalid, shape (rows,)."""
        return np.any(np.isnan(self.measured), axis=1)

    def chosen(self, indices: list[int]) -> RowBlock:
        """Some of the rows, without labels."""
        users = None
        if self.users is not None:
            users = [self.users[i] for i in indices]
        nameless = frozenset(place for place, i in enumerate(indices) if i in self.nameless)
        return RowBlock(self.values[indices], users, self.measured[indices], nameless=nameless)


def declared_cells(settings: Settings) -> tuple[str, ...]:
    """With a schema, the columns of which cells are read: for the vector and for labels."""
    assert settings.encoding is not None
    return tuple(dict.fromkeys((*settings.encoding.names, *settings.labels.values())))


def declared_layout(settings: Settings) -> Layout:
    """The layout of a schema's rows: z, and a last coordinate c where valid rows are counted."""
    assert settings.coordinates is not None
    labels = tuple(settings.labels.values())
    time = settings.time_column
    return Layout(settings.coordinates, settings.user_column, labels, time=time)


def encoded(
    cells: Mapping[str, list[str]],
    users: Sequence[str | None] | None,
    faults: Collection[int],
    settings: Settings,
) -> RowBlock:
    """Rows of a schema as vectors of `declared_layout`.

    A row in which a cell in use is missing or cannot be read is invalid, like any other row that
    cannot be read: it takes its step as a zero vector. No cell decides anything else.

    Args:
        cells: strings by the names of `declared_cells`, "" for a missing one.
        users: of the rows.
        faults: indices of rows that could not be split into cells.
        settings: with a schema.

    Guarantees: a row depends on its own cells alone.
    """
    schema = settings.schema
    encoding = settings.encoding
    assert schema is not None
    assert encoding is not None
    measured = encoding.measure([cells[name] for name in encoding.names])
    measured[list(faults)] = np.nan
    z, valid = encoding.encode(measured)
    z = _counted(z, valid, settings)
    labels = []
    for name in settings.labels.values():
        texts = schema.columns[name].labels(cells[name])
        labels.append(map(label_of, texts))
    return RowBlock(z, users, measured, list(zip(*labels, strict=True)))


def _counted(values: Array, valid: NDArray[np.bool_], settings: Settings) -> Array:
    """Vectors with a last coordinate c for valid rows, where these are counted."""
    if not settings.count_weight:
        return values
    counts = settings.count_weight * valid[:, None].astype(np.float64)
    return np.concatenate([values, counts], axis=1)


def numbered(rows: Sequence[Sequence[object]], users: Sequence[str | None] | None) -> RowBlock:
    """Rows of d entries as vectors; a row with an entry that is no finite number is invalid.

    >>> block = numbered([[1, 0.5], [1, True], [2.0, 1e999]], None)
    >>> block.values.tolist(), block.invalid.tolist()
    ([[1.0, 0.5], [0.0, 0.0], [0.0, 0.0]], [False, True, True])
    """
    values = [list(map(_number, row)) for row in rows]
    return _unscaled(np.array(values), users)


def _unscaled(
    values: Array,
    users: Sequence[str | None] | None,
    faults: Collection[int] = (),
    labels: Sequence[tuple[str, ...]] = (),
    nameless: frozenset[int] = frozenset(),
) -> RowBlock:
    """Rows without a schema; one of the faults, or with an entry that is not finite, is invalid."""
    measured = np.where(np.isfinite(values), values, np.nan)
    measured[list(faults)] = np.nan
    values = np.where(np.any(np.isnan(measured), axis=1, keepdims=True), 0.0, measured)
    return RowBlock(values, users, measured, labels, nameless)


def _number(entry: object) -> float:
    """A number as float; NaN for anything else, such as a string or a Boolean."""
    if type(entry) is float:
        return entry
    if isinstance(entry, bool) or not isinstance(entry, int | float):
        return math.nan
    try:
        return float(entry)
    except OverflowError:
        return math.inf


def label_of(value: object) -> str:
    """A label as it is released: one line of at most 256 characters.

    Args:
        value: a string, a Boolean, or a number, which is written the shortest way.

    Guarantees:
        The label depends on nothing but the value, UTF-8 can encode it, and it has no line breaks
        or other control characters: each is written as U+FFFD. A longer string ends with "…". Any
        other value gives an empty label.

    >>> label_of("22 Nov"), label_of("a\\nb"), label_of(17), label_of(None)
    ('22 Nov', 'a�b', '17', '')
    >>> len(label_of(999 * "x"))
    256
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        return ""
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return "…"
    if len(text) > _LONGEST_LABEL:
        text = text[: _LONGEST_LABEL - 1] + "…"
    return _UNFIT.sub("\ufffd", text)


_EMPTY: Final = "input must have rows; got an empty one."


@contextmanager
def open_reader(
    source: RowFiles | None,
    settings: Settings,
    file_format: str | None = None,
    layout: Layout | None = None,
    first_row: int = 1,
) -> Iterator[Reader]:
    """Open the rows of a file, or of standard input for None.

    Args:
        source: the file, or a folder with a file for each user.
        settings: of the stream.
        file_format: "csv", "jsonl" or "parquet"; None guesses by the file's name, else by its first
            byte.
        layout: of an earlier part of the same input.
        first_row: number of the first row in it.

    Raises:
        InputError: it cannot be opened, has no rows, or lacks columns.
    """
    with open_rows(0 if source is None else source, file_format) as table:
        try:
            yield Reader(table, settings, layout, first_row)
        except IsADirectoryError:
            raise InputError(f"input must be a file; {source} is a directory.") from None


@contextmanager
def open_scored(source: Path, settings: Settings, layout: Layout) -> Iterator[Reader]:
    """Open the rows of a file to score; only their numbers are read, not their users or labels.

    Args:
        source: the file.
        settings: of the stream with the releases.
        layout: of its rows.

    Raises:
        InputError: it cannot be opened, or lacks columns.
    """
    wanted = layout.cells if settings.encoding is None else settings.encoding.names
    with open_table(source) as table:
        if {*wanted}.isdisjoint(table.names):  # lines of JSON may lack some
            got = f"got {shown_names(table.names)} in {source}"
            raise InputError(
                f"columns to score must be {shown_names(wanted)}, as in the stream; {got}."
            )
        unlabeled = replace(settings, timestamp=None, row_id=None)
        if settings.time_column is not None:
            unlabeled = replace(settings, time_column=None, start=None, release_every=1)
        yield Reader(table, unlabeled, replace(layout, user=None, labels=(), time=None))


class Reader:
    """The rows of one input, front to back, each once.

    Args:
        table: at its first row.
        settings: of the stream.
        layout: of an earlier part of the same input.
        first_row: number of the first row in it.

    Attributes:
        layout: of the rows.
        first_row: number in the stream of the first row of the input.

    Raises:
        InputError: no rows, a column is missing or has a type without such cells, or the columns
            differ from those of earlier rows.
    """

    def __init__(
        self,
        table: TableReader,
        settings: Settings,
        layout: Layout | None = None,
        first_row: int = 1,
    ) -> None:
        self._table = table
        self._settings = settings
        self.first_row = first_row
        names = table.names
        if settings.schema is not None and isinstance(table, JsonLinesTable):
            names = tuple(settings.schema.columns)  # an object may lack some
        self.layout = layout or chosen_layout(names, settings)
        cells = self.layout.cells
        if settings.schema is not None:
            cells = declared_cells(settings)
        is_new = layout is None and settings.calendar is None  # whose columns are all named
        self._select(cells, is_new)
        first = table.read(1)
        if is_new:
            if first is None:
                raise InputError(_EMPTY)
            if settings.schema is None:
                self._settle_layout(first, cells)
        self._first = None if first is None else self._block(first)

    def _select(self, cells: Sequence[str], is_new: bool) -> None:
        """Have the table read the columns in use.

        The first row of a stream alone decides whether rows are arrays. If they are not, no cell
        may hold a list.
        """
        alone = self._settings.schema is None and len(cells) == 1
        arrays = self.layout.array is not None
        if is_new and alone and isinstance(self._table.first.get(cells[0]), list):
            arrays = True
        columns = [*cells, *self.layout.labels]
        if self.layout.user is not None:
            columns.append(self.layout.user)
        if self.layout.time is not None:
            columns.append(self.layout.time)
        self._table.select(list(dict.fromkeys(columns)), cells if arrays else ())

    def _settle_layout(self, first: RowBatch, cells: Sequence[str]) -> None:
        """Choose the layout of arrays if the first row of the stream is one.

        Else the columns of numbers must have been named: private rows would have to tell which
        they are.
        """
        column = first.columns[cells[0]]
        if len(cells) == 1 and is_list(column.type):
            self.layout = array_layout(cells[0], int(list_lengths(column)[0]), self._settings)
        elif self._settings.columns is None:
            raise InputError(
                "columns of numbers must be named (--columns A,B) or declared (--schema FILE,"
                " which `fedmf schema` drafts); got none. The input has"
                f" {shown_names(self._table.names)}."
            )

    def read(self, most: int) -> RowBlock | None:
        """Read up to that many of the next rows, or those that have arrived; None at the end.

        Raises:
            InputError: the input breaks off.
        """
        if self._first is not None:
            first = self._first
            self._first = None
            return first
        batch = self._table.read(most)
        return None if batch is None else self._block(batch)

    def skip(self, rows: int) -> int:
        """Skip that many rows without parsing them; return how many there were."""
        if self._first is None or rows <= 0:
            return self._table.skip(rows)
        self._first = None
        return 1 + self._table.skip(rows - 1)

    def _block(self, batch: RowBatch) -> RowBlock:
        time = self.layout.time
        try:
            if time is not None:
                require_times(batch.columns[time], f"column {time!r}")
            return batch_block(batch, self._settings, self.layout)
        except ValueError as error:
            raise InputError(str(error)) from None


def batch_block(
    batch: RowBatch, settings: Settings, layout: Layout, users: Sequence[str | None] | None = None
) -> RowBlock:
    """The rows of a batch, each from its own cells alone.

    Args:
        batch: with the columns of the layout.
        settings: of the stream.
        layout: of its rows.
        users: the users of the rows, where no column names them.

    Raises:
        ValueError: a column has a type without such cells.
    """
    columns = batch.columns
    if users is None and layout.user is not None:
        users = ids(columns[layout.user], f"column {layout.user!r}").to_pylist()
    nameless = set[int]()
    for i, user in enumerate(users or ()):
        if user is None and i not in batch.faults:
            nameless.add(i)
    faults = nameless.union(batch.faults)
    if settings.encoding is not None:
        for name, column in zip(settings.encoding.names, settings.encoding.columns, strict=True):
            if isinstance(column, Number):
                require_numbers(columns[name], f"column {name!r}")
        cells = {}
        for name in declared_cells(settings):
            cells[name] = cells_of(columns[name], f"column {name!r}")
        block = encoded(cells, users, faults, settings)
        block = replace(block, nameless=frozenset(nameless), malformed=batch.faults)
    else:
        block = _undeclared(batch, users, faults, layout, frozenset(nameless))
    if layout.time is None:
        return block
    return in_periods(block, columns[layout.time], settings)


def _undeclared(
    batch: RowBatch,
    users: Sequence[str | None] | None,
    faults: Collection[int],
    layout: Layout,
    nameless: frozenset[int],
) -> RowBlock:
    """The rows of a batch without a schema."""
    columns = batch.columns
    if layout.array is not None:
        column = columns[layout.array]
        values = lists_of_numbers(column, layout.dimension, f"column {layout.array!r}")
    else:
        coordinates = [numbers(columns[name], f"column {name!r}") for name in layout.cells]
        values = np.column_stack([np.zeros((batch.rows, 0)), *coordinates])
    labels = []
    for name in layout.labels:
        texts = cells_of(columns[name], f"column {name!r}")
        labels.append(map(label_of, texts))
    rows_of_labels = list(zip(*labels, strict=True))
    block = _unscaled(values, users, faults, rows_of_labels, nameless)
    return replace(block, malformed=batch.faults)


def in_periods(block: RowBlock, times: Any, settings: Settings) -> RowBlock:
    """Rows with the period of each, and with a coordinate that counts valid rows.

    Args:
        block: the rows; with a schema they are counted already.
        times: of the rows, as an Arrow array or a list of strings.
        settings: with a calendar.
    """
    assert settings.calendar is not None
    values = block.values
    if settings.schema is None:
        values = _counted(values, ~block.invalid, settings)
    return replace(block, values=values, periods=settings.calendar.steps(times))


def array_layout(name: str, dimension: int, settings: Settings) -> Layout:
    """The layout of rows that are arrays of numbers in a column of that name."""
    if dimension < 1:
        raise InputError("row 1 must hold numbers; got an empty array.")
    columns = tuple(f"{name}{i}" for i in range(1, dimension + 1))
    return Layout(columns, settings.user_column, tuple(settings.labels.values()), name)


def chosen_layout(names: Sequence[str], settings: Settings) -> Layout:
    """The layout of a table with these columns.

    Raises:
        InputError: a column is missing or appears twice, or no column of numbers is left.
    """
    if settings.schema is not None:
        try:
            settings.schema.check_header(names, "the input")
        except ValueError as error:
            raise InputError(str(error)) from None
        return declared_layout(settings)
    user = settings.user_column
    labels = tuple(settings.labels.values())
    others = list(labels)
    if user is not None:
        others.insert(0, user)
    if settings.time_column is not None:
        others.append(settings.time_column)
    wanted = settings.columns or [name for name in names if name not in others]
    used = [*wanted, *others]
    occurrences = Counter(names)
    for name in used:
        if occurrences[name] != 1:
            fault = "appears twice" if occurrences[name] else "is missing"
            raise InputError(f"column {name!r} {fault}; the input has {shown_names(names)}.")
    if not wanted or len(set(used)) != len(used):
        raise InputError(
            "columns must be at least one, all different, and not the user's or a label's; got "
            f"{shown_names(used)}."
        )
    if settings.count_weight:
        wanted = [*wanted, COUNT]
    return Layout(tuple(wanted), user, labels, time=settings.time_column)
