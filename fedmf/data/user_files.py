"""Folders with one file for each user, read as one table with a column of their names.

A file whose bytes cannot be read is one row without cells, which counts for no other user. Headers
are checked before any row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import pyarrow as arrow

from fedmf.data.table_reader import (
    ContentError,
    InputError,
    ParquetTable,
    RowBatch,
    TableReader,
    format_of,
    open_table,
    shown_names,
    table_files,
)

_BROKEN: Final = "file that cannot be read"


@dataclass(frozen=True)
class UserFiles:
    """A folder with one CSV or Parquet file for each user.

    Args:
        folder: the folder.
        column: the name of the column that the names of the files become, without their endings.
    """

    folder: Path
    column: str

    def __str__(self) -> str:
        return str(self.folder)


#: A file, or a folder with one for each user.
RowFiles = Path | UserFiles


@contextmanager
def open_rows(source: RowFiles | int, form: str | None = None) -> Iterator[TableReader]:
    """Open the rows of files, or of a descriptor; see `open_table`."""
    if isinstance(source, UserFiles):
        yield UserFilesTable(source)
        return
    with open_table(source, form) as table:
        yield table


def name_of(file: Path) -> str:
    """The name of a file without its endings.

    >>> name_of(Path("data/ann.b.csv.gz"))
    'ann.b'
    """
    name = file.name
    if name.lower().endswith(".gz"):
        name = name[: -len(".gz")]
    return Path(name).stem


@final
class UserFilesTable(TableReader):
    """The rows of all files in the order of their names, with a column of these names.

    Args:
        source: the folder.

    Raises:
        InputError: it is no folder of CSV or Parquet files, two files have one name, none can be
            read, or their columns differ or include that of the names.
    """

    def __init__(self, source: UserFiles) -> None:
        super().__init__(str(source.folder))
        if not source.folder.is_dir():
            raise InputError(
                f"path must be a folder with a file for each user (user-from filename); got"
                f" {source.folder}."
            )
        self.headed = True
        self._column = source.column
        self._files = sorted(table_files(source.folder), key=name_of)
        self._check_names()
        self._types: dict[str, Any] = {}
        columns = self._columns()
        if source.column in columns:
            raise InputError(
                f"column {source.column!r} must be the name of the file (user-from filename) and"
                f" not be in it; {self.place} has {shown_names(columns)}."
            )
        self.names = (source.column, *columns)
        self._rest = iter(self._files)
        self._batches: list[RowBatch] = []

    def _check_names(self) -> None:
        before = ""
        for file in self._files:
            if format_of(file) == "jsonl":
                raise InputError(
                    f"files (one for each user) must be CSV or Parquet; got {file.name!r}."
                )
            if name_of(file) == before:
                raise InputError(
                    f"files (one for each user) must have different names; got {before!r} twice."
                )
            before = name_of(file)

    def _columns(self) -> tuple[str, ...]:
        """The columns that all files have whose header can be read."""
        columns: tuple[str, ...] | None = None
        for file in self._files:
            try:
                with open_table(file) as table:
                    names = table.names
                    self._note_types(table)
            except ContentError:
                continue
            if columns is None:
                columns = names
            if sorted(names) != sorted(columns):
                raise InputError(
                    f"columns must be the same in all files; {file} has {shown_names(names)}, and"
                    f" others {shown_names(columns)}."
                )
        if columns is None:
            raise InputError(f"path must hold a file that can be read; got none in {self.place}.")
        return columns

    def _note_types(self, table: TableReader) -> None:
        """Note the types of the columns, by the first Parquet file."""
        if isinstance(table, ParquetTable) and not self._types:
            for field in table.schema:
                self._types[field.name] = field.type

    def read(self, most: int) -> RowBatch | None:
        while not self._batches:
            file = next(self._rest, None)
            if file is None:
                return None
            self._batches = list(self._of_file(file))
        batch = self._batches.pop(0)
        if batch.rows > most:
            self._batches.insert(0, _slice(batch, most, batch.rows))
            batch = _slice(batch, 0, most)
        return batch

    def _of_file(self, file: Path) -> Iterator[RowBatch]:
        """All rows of a file; one without cells if any part of it cannot be read."""
        wanted = [name for name in self.selected if name != self._column]
        try:
            with open_table(file) as table:
                table.select(wanted)
                batches = list(table.batches())
        except ContentError:
            batches = [RowBatch(1, self._missing(wanted), {0: _BROKEN})]
        for batch in batches:
            columns = dict(batch.columns)
            if self._column in self.selected:
                columns[self._column] = arrow.array([name_of(file)] * batch.rows)
            yield RowBatch(batch.rows, columns, batch.faults)

    def _missing(self, wanted: Sequence[str]) -> Mapping[str, Any]:
        """A row without cells."""
        columns: dict[str, Any] = {}
        for name in wanted:
            columns[name] = arrow.nulls(1, self._types.get(name, arrow.large_string()))
        return columns


def _slice(batch: RowBatch, start: int, stop: int) -> RowBatch:
    """The rows start … stop − 1 of a batch."""
    columns = {name: column.slice(start, stop - start) for name, column in batch.columns.items()}
    faults: dict[int, str] = {}
    for place, reason in batch.faults.items():
        if start <= place < stop:
            faults[place - start] = reason
    return RowBatch(stop - start, columns, faults)
