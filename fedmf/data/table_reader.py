"""The one reader of tables: CSV, JSON lines and Parquet, files or a pipe, as batches of columns of
cells.

What stands in a row decides that row alone: a line that is no row of its table gives a row without
cells. Cells are parsed by `fedmf.data.cells`.

    with open_table(Path("rows.csv.gz")) as table:
        table.select(["age", "user"])
        while (batch := table.read(4096)) is not None:
            batch.columns["age"], batch.faults
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import pyarrow as arrow
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from fedmf.data.line_reader import Lines, arriving

#: How rows are written: each format with the endings of files that have it, where ``.gz`` may
#: follow.
FORMATS: Final = {
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet", ".pq"),
}
#: The column of rows that have no names: lines of JSON that are arrays.
UNNAMED: Final = ""
_CHUNK: Final = 1 << 22
_ROWS: Final = 4096
_MOST_NAMES: Final = 20
_MOST_CHARACTERS: Final = 100
#: A field of CSV: in quotes, each inner one doubled, or not beginning with one.
_FIELD: Final = rb'(?:"(?:[^"]|"")*+"|[^",\r\n][^,\r\n]*+|)'
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BROKEN: Final = (arrow.ArrowException, OSError, EOFError, zlib.error)


class InputError(ValueError):
    """A table that cannot be read, or not on; the message is one line and holds no value of a
    row.
    """


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Consecutive rows.

    Args:
        rows: how many.
        columns: Arrow arrays by name, of those selected; null where a cell is missing. Text of CSV
            and JSON lines as it stands there, in lists where these are selected; in Parquet each of
            its type.
        faults: places in this batch of rows that have no cells, as their lines are no rows.
    """

    rows: int
    columns: Mapping[str, Any]
    faults: Set[int] = frozenset()


class TableReader(ABC):
    """The rows of one table, front to back, each once.

    Attributes:
        names: of all columns, as the header or the first row has them; of rows without names
            `UNNAMED`.
        headed: whether the first line holds names, which then is no row.
        first: of JSON lines the cells of the first row by name.
    """

    names: tuple[str, ...]
    headed: bool = False
    first: Mapping[str, object] = {}

    def __init__(self, place: str) -> None:
        self.place = place
        self.selected: tuple[str, ...] = ()

    def select(self, names: Sequence[str], lists: Sequence[str] = ()) -> None:
        """Choose the columns to read, before the first row is read.

        Args:
            names: of the columns.
            lists: those that hold lists where the format does not say so, as in JSON lines.

        Raises:
            InputError: one of them is not there, or there twice.
        """
        times = Counter(self.names)
        for name in names:
            if times[name] != 1:
                fault = "occurs more than once" if times[name] else "is missing"
                raise InputError(
                    f"column {name!r} {fault}; {self.place} has {shown_names(self.names)}."
                )
        self.selected = tuple(names)

    @abstractmethod
    def read(self, most: int) -> RowBatch | None:
        """Up to that many of the next rows, of a pipe those that are at hand; None at the end.

        Raises:
            InputError: the input breaks off.
        """

    def skip(self, rows: int) -> int:
        """Pass over that many rows; how many there were."""
        left = rows
        while left and (batch := self.read(min(left, _ROWS))) is not None:
            left -= batch.rows
        return rows - left


class _LineReader(TableReader):
    """One row a line; abstract."""

    def __init__(self, lines: Lines, place: str) -> None:
        super().__init__(place)
        self._lines = lines
        with _readable(place):
            first = lines.peek()
        if first is None:
            raise InputError(f"{place} must have rows; got an empty table.")
        try:
            self._first = first.decode()
        except UnicodeDecodeError:
            raise InputError(f"{place} must be UTF-8 text; its first line is not.") from None

    def read(self, most: int) -> RowBatch | None:
        """See `TableReader.read`."""
        with _readable(self.place):
            lines = self._lines.take(most)
        return self._batch(lines) if lines else None

    @abstractmethod
    def _batch(self, lines: list[bytes]) -> RowBatch:
        """The rows that lines are."""


@final
class CsvTable(_LineReader):
    """Comma-separated values. A first line of numbers alone is a row, and columns are called 1, 2,
    ….

    Args:
        lines: of the text, UTF-8; bytes that are not count as U+FFFD.
        place: what the table is called in messages.
        joined: whether a cell in quotes may hold line ends (`Lines.join_quoted`); else each line is
            a row.

    Raises:
        InputError: no lines, or a first one that is none of CSV.
    """

    def __init__(self, lines: Lines, place: str, joined: bool = False) -> None:
        super().__init__(lines, place)
        try:
            names = [name.strip() for name in next(csv.reader([self._first], strict=True))]
        except csv.Error:
            raise InputError(
                f"{place} (header) must be one line of CSV; got another one."
            ) from None
        if len(names) == 1 and (found := re.search("[;\t|]", names[0])):
            raise InputError(
                f"{place} must separate cells by commas; its header has {found.group()!r}:"
                f" {names[0]!r:.100}."
            )
        self.headed = not all(map(is_number, names))
        if self.headed:
            lines.take(1)
        self.names = tuple(names) if self.headed else tuple(map(str, range(1, len(names) + 1)))
        self._row = re.compile(_FIELD + rb"(?:,%b){%d}" % (_FIELD, len(names) - 1))
        if joined:
            lines.join_quoted(lambda row: self._row.fullmatch(row) is not None)

    def _batch(self, lines: list[bytes]) -> RowBatch:
        whole = [i for i, line in enumerate(lines) if self._is_row(line)]
        faults = {*range(len(lines))}.difference(whole)
        if not self.selected:
            return RowBatch(len(lines), {}, faults)
        wanted = [self.names.index(name) for name in self.selected]
        table = _cells([lines[i] for i in whole], len(self.names), wanted)
        if faults:  # rows without cells, each in its place
            place = {i: at for at, i in enumerate(whole)}
            table = table.take(arrow.array(map(place.get, range(len(lines))), arrow.int64()))
        columns = (column.combine_chunks() for column in table.columns)
        return RowBatch(len(lines), dict(zip(self.selected, columns, strict=True)), faults)

    def _is_row(self, line: bytes) -> bool:
        if b'"' in line or b"\r" in line:
            return self._row.fullmatch(line) is not None
        return line.count(b",") + 1 == len(self.names)


def _cells(lines: list[bytes], fields: int, wanted: Sequence[int]) -> Any:
    """Columns of text from lines that each are a row, read by Arrow."""
    names = [str(i) for i in range(fields)]
    filler = ",".join(
        names
    ).encode()  # there may be no lines, and a mark at the front of one is its own
    text = b"\n".join([filler, *lines]).decode(errors="replace").encode()
    table = arrow_csv.read_csv(
        io.BytesIO(text),
        read_options=arrow_csv.ReadOptions(
            use_threads=False, block_size=len(text) + 1, column_names=names
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, arrow.large_string()),
            include_columns=[names[i] for i in wanted],
        ),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
    ).slice(1)
    assert table.num_rows == len(lines)
    return table


@final
class JsonLinesTable(_LineReader):
    """JSON lines: objects by the names of the first one, or arrays, which are one column `UNNAMED`.

    Args:
        lines: of the text.
        place: what the table is called in messages.

    Raises:
        InputError: no lines, or a first one that is neither an object nor an array.
    """

    def __init__(self, lines: Lines, place: str) -> None:
        super().__init__(lines, place)
        row = _json(self._first)
        if not isinstance(row, dict | list):
            raise InputError(
                f"{place} must be JSON objects or arrays, one per line; row 1 is neither."
            )
        self._form = type(row)
        self.first = row if isinstance(row, dict) else {UNNAMED: row}
        self.names = tuple(self.first)
        self._listed = ()

    def select(self, names: Sequence[str], lists: Sequence[str] = ()) -> None:
        """See `TableReader.select`; a name that the first object lacks is one of missing cells
        there.
        """
        self.selected = tuple(names)
        self._listed = lists
        if self._form is list and self.selected not in ((), (UNNAMED,)):
            raise InputError(
                f"{self.place} must be JSON objects if columns are named; row 1 is an array."
            )

    def _batch(self, lines: list[bytes]) -> RowBatch:
        parsed = [_json(line.decode(errors="replace")) for line in lines]
        faults = {i for i, row in enumerate(parsed) if not isinstance(row, self._form)}
        rows: list[Any] = [{} if i in faults else row for i, row in enumerate(parsed)]
        if self._form is list:
            rows = [{UNNAMED: row} for row in rows]
        columns = {
            name: self._column(name, [row.get(name) for row in rows]) for name in self.selected
        }
        return RowBatch(len(lines), columns, faults)

    def _column(self, name: str, cells: list[Any]) -> Any:
        """Cells of one column; one that is a list where none is asked for, or none where one is, is
        null.
        """
        if name in self._listed:
            lists = [
                [_text(part) for part in cell] if isinstance(cell, list) else None for cell in cells
            ]
            return arrow.array(lists, arrow.list_(arrow.large_string()))
        return arrow.array([_text(cell) for cell in cells], arrow.large_string())


def _json(line: str) -> object:
    """The value of a line of JSON, numbers as they are written; None if it is invalid."""
    try:
        return json.loads(line, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None


def _text(cell: object) -> str | None:
    """A cell of text; halves of surrogate pairs, which JSON can name and UTF-8 cannot hold, are
    U+FFFD.
    """
    if isinstance(cell, bool):
        return str(cell).lower()
    return _SURROGATE.sub("\ufffd", cell) if isinstance(cell, str) else None


@final
class ParquetTable(TableReader):
    """A Parquet file.

    Args:
        path: of the file.

    Raises:
        InputError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        with _readable(self.place):
            self._file = parquet.ParquetFile(path, pre_buffer=False)  # which would hold all of it
        #: Of the columns.
        self.schema = self._file.schema_arrow
        self.names = tuple(self.schema.names)
        self._batches: Any = None
        self._rest: Any = None

    def read(self, most: int) -> RowBatch | None:
        """See `TableReader.read`."""
        if self._batches is None:
            self._batches = self._file.iter_batches(
                max(most, _ROWS), columns=[*self.selected], use_threads=False
            )
        while self._rest is None or not self._rest.num_rows:
            with _readable(self.place):
                self._rest = next(self._batches, None)
            if self._rest is None:
                return None
        batch = self._rest.slice(0, most)
        self._rest = self._rest.slice(most)
        return RowBatch(batch.num_rows, {name: batch.column(name) for name in self.selected})


@contextmanager
def open_table(source: Path | int, form: str | None = None) -> Iterator[TableReader]:
    """The table in a file, or of a descriptor, such as 0 for standard input.

    Args:
        source: the file, where a name that ends in ``.gz`` is unpacked; or a descriptor, which is
            read as rows arrive and is not closed here.
        form: a name of `FORMATS`; None guesses by the file's name, else by its first byte.

    Raises:
        InputError: it cannot be opened, or tells no columns.
    """
    if form not in (None, *FORMATS):
        raise InputError(f"format must be one of {', '.join(FORMATS)}; got {form!r}.")
    if isinstance(source, int):
        if form == "parquet":
            raise InputError("input must be a file for Parquet; a pipe takes csv or jsonl.")
        yield _table_of(Lines(arriving(source)), "the input", form, joined=False)
        return
    form = form or format_of(source)
    with ExitStack() as opened:
        try:
            file = opened.enter_context(source.open("rb"))
            form = "parquet" if form is None and file.read(4) == b"PAR1" else form
            file.seek(0)
        except OSError as error:
            raise InputError(f"{source} cannot be opened: {error.strerror}.") from None
        if form == "parquet":
            yield ParquetTable(source)
            return
        packed = gzip.GzipFile(fileobj=file) if source.suffix.lower() == ".gz" else file
        yield _table_of(Lines(lambda: packed.read1(_CHUNK)), str(source), form, joined=True)


def _table_of(lines: Lines, place: str, form: str | None, joined: bool) -> TableReader:
    if form is None:
        with _readable(place):
            first = (lines.peek() or b"").lstrip()
        form = "jsonl" if first.startswith((b"{", b"[")) else "csv"
    return CsvTable(lines, place, joined) if form == "csv" else JsonLinesTable(lines, place)


def format_of(path: Path) -> str | None:
    """The format that a file's name tells; None for one that tells none.

    >>> format_of(Path("rows.CSV.gz")), format_of(Path("rows.txt"))
    ('csv', None)
    """
    suffix = Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix
    return next((name for name, endings in FORMATS.items() if suffix.lower() in endings), None)


def table_files(path: Path) -> list[Path]:
    """The file itself, or all tables of a folder in the order of their names.

    Raises:
        InputError: there is none.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if format_of(file) and file.is_file())
    else:
        files = [path] if format_of(path) and path.is_file() else []
    if not files:
        endings = ", ".join(ending for several in FORMATS.values() for ending in several)
        raise InputError(
            f"path must name a file ({endings}) that exists, or a folder with some; got {path}."
        )
    return files


def is_number(text: str) -> bool:
    """Whether a text is a number as Python writes them, NaN and infinity included."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def shown_names(names: Sequence[str]) -> str:
    """The first few names, for a message of one line."""
    few = [repr(name[:_MOST_CHARACTERS]) for name in names[:_MOST_NAMES]]
    more = [f"… ({len(names)} in all)"] if len(names) > _MOST_NAMES else []
    return ", ".join([*few, *more]) or "none"


@contextmanager
def _readable(place: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError(f"{place} cannot be read any further: {reason}.") from None
