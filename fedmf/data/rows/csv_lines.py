"""CSV read line by line: what stands in one line never decides how another is read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as arrow
import pyarrow.csv as arrow_csv

__all__ = ["csv_batches"]

#: Bytes of lines that are parsed at once.
_BLOCK: Final = 1 << 24


@dataclass(frozen=True)
class _Columns:
    """Which of so many fields of a line are read, and by which names.

    Args:
        fields: how many fields a line has.
        places: of the columns read, by name.
        text: names of those that are read even from a broken line, if they are there.
    """

    fields: int
    places: dict[str, int]
    text: Sequence[str]


def csv_batches(
    file: Path, wanted: Callable[[list[str]], list[str]], text: Sequence[str]
) -> Iterator[arrow.Table]:
    """Tables of bytes with a row for each line that is not blank; a line ends at a line feed, quoted or not.

    A line with too few or too many fields gives a row without values, but for the columns ``text``.

    Args:
        file: UTF-8 with a header.
        wanted: the columns to read, in order, from all that there are; may refuse.
        text: see above.

    Raises:
        ValueError: no header.
        OSError: not readable.
    """
    with file.open("rb") as handle:
        header = next((line for line in handle if line.strip(b"\r\n")), b"")
        if not header:
            raise ValueError(f"path must be readable; got {file}: Empty CSV file")
        present = _fields(header.removeprefix(b"\xef\xbb\xbf"))
        names = wanted(present)
        columns = _Columns(len(present), {name: present.index(name) for name in names}, text)
        while lines := handle.readlines(_BLOCK):
            yield from _parsed([line for line in lines if line.strip(b"\r\n")], columns)


def _parsed(lines: list[bytes], columns: _Columns) -> Iterator[arrow.Table]:
    """All lines at once; if they are not one row each, the halves, down to the lines that are broken."""
    if not lines:
        return
    table = _rows(lines, columns)
    if table is not None:
        yield table
    elif len(lines) == 1:
        yield _salvaged(lines[0], columns)
    else:
        middle = len(lines) // 2
        yield from _parsed(lines[:middle], columns)
        yield from _parsed(lines[middle:], columns)


def _rows(lines: list[bytes], columns: _Columns) -> arrow.Table | None:
    """One row for each line; None if a quote swallows a line's end or fields are too few or too many."""
    data = b"\n" + b"".join(lines)  # the blank line keeps a byte order mark from being one
    if data.count(b"\r") != data.count(b"\r\n"):
        return None
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(data),
            arrow_csv.ReadOptions(
                use_threads=False,
                block_size=len(data) + 1,
                column_names=[str(i) for i in range(columns.fields)],
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types={str(i): arrow.binary() for i in range(columns.fields)},
                include_columns=[str(place) for place in columns.places.values()],
            ),
        )
    except arrow.ArrowException:
        return None
    table = table.combine_chunks()
    return table.rename_columns(list(columns.places)) if table.num_rows == len(lines) else None


def _salvaged(line: bytes, columns: _Columns) -> arrow.Table:
    """The row of a broken line: whose it is and its label, where they can be read, and nothing else."""
    fields = _fields(line)
    values: dict[str, Any] = dict.fromkeys(columns.places)
    for name in columns.text:
        if columns.places[name] < len(fields):
            values[name] = fields[columns.places[name]].encode("utf-8", "surrogateescape")
    return arrow.table({name: arrow.array([value], arrow.binary()) for name, value in values.items()})


def _fields(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8", "surrogateescape").rstrip("\r\n").replace("\r", " ")]))
    except (csv.Error, StopIteration):
        return []
