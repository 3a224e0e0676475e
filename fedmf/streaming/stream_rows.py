"""Rows of a stream: read from a file or pipe, and made vectors with users and labels."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

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
from fedmf.matrices.arrays import Array
from fedmf.streaming.settings import Settings

#: Most characters of a label.
_LONGEST_LABEL: Final = 256
#: What would end a line or cannot be written: control characters, line separators, halves of
#: surrogate pairs.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Layout:
    """How a row is read as a vector, and which columns go with it.

    Args:
        columns: names of the d coordinates in order.
        user: name of the column with the user's id, None if there is none.
        labels: names of the columns with public texts that are released unchanged.
        array: the column of arrays of d numbers each; "" where a row is one; None where every
            number has a column.
    """

    columns: tuple[str, ...]
    user: str | None = None
    labels: tuple[str, ...] = ()
    array: str | None = None

    @property
    def dimension(self) -> int:
        """d."""
        return len(self.columns)

    @property
    def cells(self) -> tuple[str, ...]:
        """The columns of a table that hold the numbers."""
        return self.columns if self.array is None else (self.array,)


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Consecutive rows.

    Args:
        values: shape (rows, d), float64; zeros where a row is invalid.
        users: the id of each row's user, None where it cannot be read; None without a user column.
        measured: coordinates before any bound, shape (rows, d), NaN where a cell is missing or
            cannot be read, all of them in a row that belongs to nobody: for the operator's scores
            and counts, never for a release.
        labels: the texts of each row's label columns, "" where one cannot be read; empty without
            columns.
        nameless: indices of the rows with an empty cell of the user; not of rows without cells, as
            whether a line is a row is private.
        malformed: why some lines are not rows, by index: for the operator's counts.
    """

    values: NDArray[np.float64]
    users: Sequence[str | None] | None
    measured: Array
    labels: Sequence[tuple[str, ...]] = ()
    nameless: frozenset[int] = frozenset()
    malformed: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def faults(self) -> frozenset[int]:
        """Indices of the rows that are invalid."""
        return frozenset(np.flatnonzero(np.isnan(self.measured).any(axis=1)).tolist())

    def chosen(self, indices: Sequence[int]) -> RowBlock:
        """Some of the rows, without labels."""
        users = None if self.users is None else [self.users[i] for i in indices]
        rows = list(indices)
        nameless = frozenset(place for place, i in enumerate(rows) if i in self.nameless)
        return RowBlock(self.values[rows], users, self.measured[rows], nameless=nameless)


def declared_cells(settings: Settings) -> tuple[str, ...]:
    """With a schema, the columns with cells that are read as text: for the vector, and for
    labels."""
    assert settings.encoding is not None
    return tuple(dict.fromkeys((*settings.encoding.names, *settings.labels.values())))


def declared_layout(settings: Settings) -> Layout:
    """Of the vectors of a schema's rows: z, and where valid rows are counted a last coordinate
    c.
    """
    assert settings.coordinates is not None
    return Layout(settings.coordinates, settings.user_column, tuple(settings.labels.values()))


def encoded(
    cells: Mapping[str, list[str]],
    users: Sequence[str | None] | None,
    faults: Collection[int],
    settings: Settings,
) -> RowBlock:
    """Rows of a schema as vectors of `declared_layout`.

    A row in which a cell in use is missing or cannot be read is invalid like any other that cannot
    be read: it takes its step as a zero vector. No cell decides anything else.

    Args:
        cells: as text by the names of `declared_cells`, "" for a missing one.
        users: of the rows.
        faults: of rows with cells that could not be told apart.
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
    if weight := settings.count_weight:
        z = np.concatenate([z, weight * valid[:, None].astype(np.float64)], axis=1)
    labels = [
        map(label_of, schema.columns[name].labels(cells[name])) for name in settings.labels.values()
    ]
    return RowBlock(z, users, measured, list(zip(*labels, strict=True)))


def numbered(rows: Sequence[Sequence[object]], users: Sequence[str | None] | None) -> RowBlock:
    """Rows of d entries as vectors; one with an entry that is no finite number is invalid.

    >>> block = numbered([[1, 0.5], [1, True], [2.0, 1e999]], None)
    >>> block.values.tolist(), sorted(block.faults)
    ([[1.0, 0.5], [0.0, 0.0], [0.0, 0.0]], [1, 2])
    """
    return _unscaled(np.array([[_number(entry) for entry in row] for row in rows]), users)


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
    """Of a number, NaN for anything else; text is none, as `true` is none."""
    if type(entry) is float:
        return entry
    if isinstance(entry, bool) or not isinstance(entry, int | float):
        return math.nan
    try:
        return float(entry)
    except OverflowError:
        return math.inf


def label_of(value: object) -> str:
    """The text of a label as it is released: one line of at most 256 characters.

    Args:
        value: text, a Boolean, or a number, which is written the shortest way.

    Guarantees:
        The text depends on nothing but the value, UTF-8 can hold it, and it has no line breaks or
        other control characters: each is written as U+FFFD. Longer text ends with "…". Anything
        else is empty.

    >>> label_of("22 Nov"), label_of("a\\nb"), label_of(17), label_of(None), len(label_of(999 * "x"))
    ('22 Nov', 'a�b', '17', '', 256)
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
        file_format: "csv", "jsonl" or "parquet"; None guesses by the file's name, else by its first
            byte.
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


@contextmanager
def open_scored(source: Path, settings: Settings, layout: Layout) -> Iterator[Reader]:
    """The rows of a file to score, of which only the numbers are read: whose they are changes no
    score.

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
        unlabelled = replace(settings, timestamp=None, row_id=None)
        yield Reader(table, unlabelled, replace(layout, user=None, labels=()))


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
        InputError: no rows, a column is missing or of a type that holds nothing of its kind, or
            columns differ from the rows before.
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
        named = table.names
        if settings.schema is not None and isinstance(table, JsonLinesTable):
            named = tuple(settings.schema.columns)  # an object may lack some
        self.layout = layout or chosen_layout(named, settings)
        cells = declared_cells(settings) if settings.schema is not None else self.layout.cells
        user = [] if self.layout.user is None else [self.layout.user]
        # Of rows that are arrays the form of the first of the stream decides; else no cell may hold
        # a list.
        alone = settings.schema is None and len(cells) == 1
        begun = layout is None and alone and isinstance(table.first.get(cells[0]), list)
        listed = begun or self.layout.array is not None
        table.select(
            list(dict.fromkeys([*cells, *self.layout.labels, *user])), cells if listed else ()
        )
        first = table.read(1)
        if first is None and layout is None:
            raise InputError(_EMPTY)
        if layout is None and settings.schema is None and first is not None:
            column = first.columns[cells[0]]
            if alone and is_list(column.type):
                self.layout = array_layout(cells[0], int(list_lengths(column)[0]), settings)
            elif (
                settings.columns is None
            ):  # which of them are numbers, private rows would have to tell
                raise InputError(
                    "columns of numbers must be named (--columns A,B) or declared (--schema FILE,"
                    " which `fedmf schema` drafts); got none. The input has"
                    f" {shown_names(table.names)}."
                )
        self._first = None if first is None else self._block(first)

    def read(self, most: int) -> RowBlock | None:
        """Up to that many of the next rows, those at hand if there are any; None at the end.

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
        """Pass over that many rows without looking at them; how many there were."""
        held = int(self._first is not None and rows > 0)
        self._first = None if held else self._first
        return held + self._table.skip(rows - held)

    def _block(self, batch: RowBatch) -> RowBlock:
        try:
            return batch_block(batch, self._settings, self.layout)
        except ValueError as error:
            raise InputError(str(error)) from None


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
    columns = batch.columns
    faults = set(batch.faults)
    if users is None and layout.user is not None:
        users = ids(columns[layout.user], f"column {layout.user!r}").to_pylist()
    nameless = frozenset(
        i for i, user in enumerate(users or ()) if user is None and i not in faults
    )
    faults |= nameless
    if settings.encoding is not None:
        for name, column in zip(settings.encoding.names, settings.encoding.columns, strict=True):
            if isinstance(column, Number):
                require_numbers(columns[name], f"column {name!r}")
        cells = {
            name: cells_of(columns[name], f"column {name!r}") for name in declared_cells(settings)
        }
        block = encoded(cells, users, faults, settings)
        return replace(block, nameless=nameless, malformed=batch.faults)
    if layout.array is not None:
        values = lists_of_numbers(
            columns[layout.array], layout.dimension, f"column {layout.array!r}"
        )
    else:
        of = [numbers(columns[name], f"column {name!r}") for name in layout.columns]
        values = np.column_stack([np.zeros((batch.rows, 0)), *of])
    told = [map(label_of, cells_of(columns[name], f"column {name!r}")) for name in layout.labels]
    block = _unscaled(values, users, faults, list(zip(*told, strict=True)), nameless)
    return replace(block, malformed=batch.faults)


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
    user = settings.user_column
    labels = tuple(settings.labels.values())
    others = [*([] if user is None else [user]), *labels]
    wanted = settings.columns or [name for name in names if name not in others]
    asked = [*wanted, *others]
    times = Counter(names)
    for name in asked:
        if times[name] != 1:
            fault = "appears twice" if times[name] else "is missing"
            raise InputError(f"column {name!r} {fault}; the input has {shown_names(names)}.")
    if not wanted or len(set(asked)) != len(asked):
        raise InputError(
            "columns must be at least one, all different, and not the user's or a label's; got "
            f"{shown_names(asked)}."
        )
    return Layout(tuple(wanted), user, labels)
