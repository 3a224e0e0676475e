"""The reader of tables: batches of columns from CSV, JSON lines or Parquet, in files or a pipe.

The content of a row decides that row alone: a line that is not a row of its table gives a row
without cells. Cells are parsed by `fedmf.data.cells`.

    with open_table(Path("rows.csv.gz")) as table:
        table.select(["age", "user"])
        for batch in table.batches():
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, final

import pyarrow as arrow
import pyarrow.csv as arrow_csv

from fedmf.data.line_reader import Lines, arriving

#: The endings of files in each format; ``.gz`` may follow them.
FORMATS: Final = {
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet", ".pq"),
}
#: The single column of JSON lines that are arrays, which have no names.
UNNAMED: Final = ""
_CHUNK: Final = 1 << 22
_ROWS: Final = 4096
_BATCH_ROWS: Final = 65_536
_MOST_NAMES: Final = 20
_MOST_CHARACTERS: Final = 100
#: A field of CSV: quoted, with inner quotes doubled, or without a quote at its beginning.
_FIELD: Final = rb'(?:"(?:[^"]|"")*+"|[^",\r\n][^,\r\n]*+|)'
#: A field of CSV that holds nothing or blanks.
_EMPTY_FIELD: Final = rb'(?:"[ \t]*+"|[ \t]*+)'
#: Reasons why a line is not a row.
_MORE_FIELDS: Final = "more fields than the header"
_FEWER_FIELDS: Final = "fewer fields than the header"
_NO_CSV: Final = "quotes or line ends that are not CSV"
_NO_JSON: Final = "not a JSON value of the kind of the first row"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BROKEN: Final = (arrow.ArrowException, OSError, EOFError, zlib.error)


class InputError(ValueError):
    """A table that cannot be read, or not any further; the message is a line without row values."""


class ContentError(InputError):
    """A table with bytes that are not of its format, or without any."""


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Consecutive rows.

    Args:
        rows: number of rows.
        columns: the selected columns as Arrow arrays by name; null where a cell is missing. CSV and
            JSON lines give their text, in lists if selected as such; Parquet gives its own types.
        faults: places in this batch of lines that are not rows, with the reason of each. Their
            cells are missing, but for the first one of a line of CSV with too many fields, which
            no surplus field can have shifted.
    """

    rows: int
    columns: Mapping[str, Any]
    faults: Mapping[int, str] = field(default_factory=dict)


class TableReader(ABC):
    """The rows of one table, front to back, each once.

    Attributes:
        names: names of all columns, from the header or the first row; `UNNAMED` for rows without
            names.
        headed: whether the first line holds names and is not a row.
        first: for JSON lines, the cells of the first row by name.
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
            names: the columns.
            lists: those that hold lists, if the format does not say so, as in JSON lines.

        Raises:
            InputError: a column is missing or occurs more than once.
        """
        times = Counter(self.names)
        for name in names:
            if times[name] == 1:
                continue
            fault = "occurs more than once"
            if not times[name]:
                fault = "is missing"
            raise InputError(
                f"column {name!r} {fault}; {self.place} has {shown_names(self.names)}."
            )
        self.selected = tuple(names)

    @abstractmethod
    def read(self, most: int) -> RowBatch | None:
        """Return the next rows, at most ``most``; None at the end.

        A pipe gives the rows that have arrived.

        Raises:
            InputError: the input breaks off.
        """

    def batches(self, most: int = _BATCH_ROWS) -> Iterator[RowBatch]:
        """Yield all remaining rows, at most ``most`` at a time; errors are those of `read`."""
        batch = self.read(most)
        while batch is not None:
            yield batch
            batch = self.read(most)

    def skip(self, rows: int) -> int:
        """Pass over the next rows, and return how many there were."""
        passed = 0
        while passed < rows:
            batch = self.read(min(rows - passed, _ROWS))
            if batch is None:
                break
            passed += batch.rows
        return passed


class _LineReader(TableReader):
    """A table with one row a line; abstract."""

    def __init__(self, lines: Lines, place: str) -> None:
        super().__init__(place)
        self._lines = lines
        with _readable(place):
            first = lines.peek()
        if first is None:
            raise ContentError(f"{place} must have rows; got an empty table.")
        try:
            self._first = first.decode()
        except UnicodeDecodeError:
            self._first = "\0"
        if "\0" in self._first:  # as in spreadsheets and pictures
            raise ContentError(
                f"{place} must be UTF-8 text; its first line is not. Save it as comma-separated"
                " UTF-8, or as Parquet with the suffix .parquet."
            )

    def read(self, most: int) -> RowBatch | None:
        with _readable(self.place):
            lines = self._lines.take(most)
        if not lines:
            return None
        return self._batch(lines)

    @abstractmethod
    def _batch(self, lines: list[bytes]) -> RowBatch:
        """Return the rows that the lines hold."""


@final
class CsvTable(_LineReader):
    """Comma-separated values.

    A first line that consists of numbers is a row, and the columns are called 1, 2, …. Empty fields
    of a row beyond the header are ignored, as are columns at the end of the header without a name,
    with which rows may end or not.

    Args:
        lines: lines of UTF-8; bytes that are not count as U+FFFD.
        place: name of the table in messages.
        joined: whether a quoted cell may hold line ends (`Lines.join_quoted`); else each line is
            a row.

    Raises:
        InputError: there are no lines, or the first one is not a line of CSV.
    """

    def __init__(self, lines: Lines, place: str, joined: bool = False) -> None:
        super().__init__(lines, place)
        try:
            cells = next(csv.reader([self._first], strict=True))
        except csv.Error:
            raise InputError(
                f"{place} (header) must be one line of CSV; got something else."
            ) from None
        names = tuple(name.strip() for name in cells)
        if len(names) == 1:
            separator = re.search("[;\t|]", names[0])
            if separator is not None:
                raise InputError(
                    f"{place} must separate cells by commas; its header has"
                    f" {separator.group()!r}: {names[0]!r:.100}."
                )
        self.headed = not all(is_number(name) for name in names)
        unnamed = 0
        if self.headed:
            lines.take(1)
            unnamed = _empty_at_end(names)
            self.names = names[: len(names) - unnamed]
        else:
            self.names = tuple(str(place) for place in range(1, len(names) + 1))
        more = len(self.names) - 1
        fields = rb"(%b(?:,%b){%d})" % (_FIELD, _FIELD, more)
        surplus = rb"(?:,%b){0,%d}+(?:,%b)*+" % (_FIELD, unnamed, _EMPTY_FIELD)
        self._row = re.compile(fields + surplus)
        self._csv = re.compile(rb"(%b)((?:,%b)*+)" % (_FIELD, _FIELD))
        self._too_many = re.compile(fields + rb",(?s:.*)")
        self._missing = b"," * more
        if joined:
            lines.join_quoted(self._matches)

    def _batch(self, lines: list[bytes]) -> RowBatch:
        rows: list[bytes] = []
        faults: dict[int, str] = {}
        for i, line in enumerate(lines):
            row = self._row_of(line)
            if row is None:
                faults[i], first = self._fault(line)
                row = (first or b'""') + self._missing
            rows.append(row)
        if not self.selected:
            return RowBatch(len(lines), {}, faults)
        wanted = [str(self.names.index(name)) for name in self.selected]
        table = _cells(rows, len(self.names), wanted)
        columns: dict[str, Any] = {}
        for name, column in zip(self.selected, table.columns, strict=True):
            columns[name] = column.combine_chunks()
        return RowBatch(len(lines), columns, faults)

    def _row_of(self, line: bytes) -> bytes | None:
        """Return the fields of a row without those beyond the header; None if it is not a row."""
        plain = b'"' not in line and b"\r" not in line
        if plain and line.count(b",") == len(self._missing):
            return line
        row = self._row.fullmatch(line)
        if row is None:
            return None
        return row[1]

    def _fault(self, line: bytes) -> tuple[str, bytes]:
        """Return why a line is not a row, and its first field if it has too many."""
        fields = self._csv.fullmatch(line)
        if fields is None:
            return _NO_CSV, b""
        if self._too_many.fullmatch(line) is None:
            return _FEWER_FIELDS, b""
        return _MORE_FIELDS, fields[1]

    def _matches(self, line: bytes) -> bool:
        return self._row.fullmatch(line) is not None


def _empty_at_end(names: Sequence[str]) -> int:
    """Return how many of the last names are empty; the first one stays a name."""
    named = len(names)
    while named > 1 and not names[named - 1]:
        named -= 1
    return len(names) - named


def _cells(lines: list[bytes], fields: int, wanted: list[str]) -> Any:
    """Return columns of text, named "0", "1", …, from lines that each are a row."""
    names = [str(i) for i in range(fields)]
    # A first line of our own: there may be no others, and a byte order mark in one is its own.
    filler = ",".join(names).encode()
    text = b"\n".join([filler, *lines]).decode(errors="replace").encode()
    table = arrow_csv.read_csv(
        io.BytesIO(text),
        read_options=arrow_csv.ReadOptions(
            use_threads=False, block_size=len(text) + 1, column_names=names
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, arrow.large_string()),
            include_columns=wanted,
        ),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
    ).slice(1)
    if table.num_rows != len(lines):
        raise InputError("rows of CSV must each be one row to Arrow; write the table as Parquet.")
    return table


@final
class JsonLinesTable(_LineReader):
    """JSON lines: objects by the names of the first one, or arrays, which form column `UNNAMED`.

    Args:
        lines: lines of the text.
        place: name of the table in messages.

    Raises:
        InputError: there are no lines, or the first one is neither an object nor an array.
    """

    def __init__(self, lines: Lines, place: str) -> None:
        super().__init__(lines, place)
        row = _json(self._first)
        if not isinstance(row, dict | list):
            raise InputError(
                f"{place} must be JSON objects or arrays, one per line; row 1 is neither."
            )
        self._form = type(row)
        self.first = self._object(row)
        self.names = tuple(self.first)
        self._lists = ()

    def select(self, names: Sequence[str], lists: Sequence[str] = ()) -> None:
        """Choose the columns to read; a name that the first object lacks has missing cells."""
        self.selected = tuple(names)
        self._lists = lists
        if self._form is list and self.selected not in ((), (UNNAMED,)):
            raise InputError(
                f"{self.place} must be JSON objects if columns are named; row 1 is an array."
            )

    def _batch(self, lines: list[bytes]) -> RowBatch:
        rows: list[Mapping[str, Any]] = []
        faults: dict[int, str] = {}
        for i, line in enumerate(lines):
            row = _json(line.decode(errors="replace"))
            if isinstance(row, self._form):
                rows.append(self._object(row))
            else:
                rows.append({})
                faults[i] = _NO_JSON
        columns: dict[str, Any] = {}
        for name in self.selected:
            columns[name] = self._column(name, [row.get(name) for row in rows])
        return RowBatch(len(lines), columns, faults)

    def _object(self, row: Any) -> Mapping[str, Any]:
        """Return a row as cells by name."""
        if isinstance(row, dict):
            return row
        return {UNNAMED: row}

    def _column(self, name: str, cells: list[Any]) -> Any:
        """Return the cells of a column; null where a list is expected and absent, or vice versa."""
        if name in self._lists:
            lists = [_texts(cell) for cell in cells]
            return arrow.array(lists, arrow.list_(arrow.large_string()))
        return arrow.array(_texts(cells), arrow.large_string())


def _json(line: str) -> object:
    """Return the value of a line of JSON, numbers as they are written; None if it is invalid.

    A NaN without quotes, as Python writes what is missing, is null.
    """
    try:
        return json.loads(line, parse_float=str, parse_int=str, parse_constant=_constant)
    except (ValueError, RecursionError):
        return None


def _constant(name: str) -> str | None:
    if name == "NaN":
        return None
    return name


def _text(cell: object) -> str | None:
    """Return a cell of text, with U+FFFD for halves of surrogate pairs.

    JSON can name such halves, but UTF-8 cannot hold them.
    """
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, str):
        return _SURROGATE.sub("\ufffd", cell)
    return None


def _texts(cell: object) -> list[str | None] | None:
    """Return a list of text; None for a cell that is not a list."""
    if isinstance(cell, list):
        return [_text(entry) for entry in cell]
    return None


@final
class ParquetTable(TableReader):
    """A Parquet file.

    Args:
        path: the file.

    Raises:
        InputError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        super().__init__(str(path))
        with _readable(self.place):
            self._file = parquet.ParquetFile(path, pre_buffer=False)  # which would hold all of it
        #: Types of the columns.
        self.schema = self._file.schema_arrow
        self.names = tuple(self.schema.names)
        self._batches: Any = None
        self._rest: Any = None

    def read(self, most: int) -> RowBatch | None:
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
    """Open the table in a file, or of a descriptor, such as 0 for standard input.

    Args:
        source: the file, which is unpacked if its name ends in ``.gz``; or a descriptor, which is
            read as rows arrive and is not closed here.
        form: a name of `FORMATS`; None guesses by the file's name, else by its first byte.

    Raises:
        InputError: the table cannot be opened, or shows no columns.
    """
    if form not in (None, *FORMATS):
        raise InputError(f"format must be one of {', '.join(FORMATS)}; got {form!r}.")
    if isinstance(source, int):
        if form == "parquet":
            raise InputError("input must be a file for Parquet; a pipe takes csv or jsonl.")
        yield _table_of(Lines(arriving(source)), "the input", form, joined=False)
        return
    with ExitStack() as opened:
        try:
            file = opened.enter_context(source.open("rb"))
            form = form or format_of(source)
            if form is None and file.read(4) == b"PAR1":
                form = "parquet"
            file.seek(0)
        except OSError as error:
            raise InputError(f"{source} cannot be opened: {error.strerror}.") from None
        if form == "parquet":
            yield ParquetTable(source)
            return
        unpacked: Any = file
        if source.suffix.lower() == ".gz":
            unpacked = gzip.GzipFile(fileobj=file)
        yield _table_of(Lines(lambda: unpacked.read1(_CHUNK)), str(source), form, joined=True)


def _table_of(lines: Lines, place: str, form: str | None, joined: bool) -> TableReader:
    """Return the table of lines in a format; None guesses CSV or JSON lines by the first byte."""
    if form is None:
        with _readable(place):
            first = (lines.peek() or b"").lstrip()
        form = "csv"
        if first.startswith((b"{", b"[")):
            form = "jsonl"
    if form == "csv":
        return CsvTable(lines, place, joined)
    if form == "jsonl":
        return JsonLinesTable(lines, place)
    raise InputError(f"format must be one of lines of text here; got {form!r}.")


def format_of(path: Path) -> str | None:
    """Return the format that a file's name shows; None if it shows none.

    >>> format_of(Path("rows.CSV.gz")), format_of(Path("rows.txt"))
    ('csv', None)
    """
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower()
    for name, endings in FORMATS.items():
        if suffix in endings:
            return name
    return None


def table_files(path: Path) -> list[Path]:
    """Return the file itself, or all tables of a folder in the order of their names.

    Raises:
        InputError: there is none.
    """
    candidates = [path]
    if path.is_dir():
        candidates = sorted(path.iterdir())
    files = [file for file in candidates if format_of(file) and file.is_file()]
    if not files:
        endings = ", ".join(chain.from_iterable(FORMATS.values()))
        raise InputError(
            f"path must name a file ({endings}) that exists, or a folder with some; got {path}."
        )
    return files


def is_number(text: str) -> bool:
    """Return whether a text is a number as Python writes it, NaN and infinity included."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def shown_names(names: Sequence[str]) -> str:
    """Return the first few names, for a message of one line."""
    shown = [repr(name[:_MOST_CHARACTERS]) for name in names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        shown.append(f"… ({len(names)} in all)")
    return ", ".join(shown) or "none"


@contextmanager
def _readable(place: str) -> Iterator[None]:
    """Turn an error of the file or its format into a one-line `ContentError`."""
    try:
        yield
    except _BROKEN as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ContentError(f"{place} cannot be read any further: {reason}.") from None
