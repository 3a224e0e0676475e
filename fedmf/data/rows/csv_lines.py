"""CSV read line by line: what stands in one line never decides how another is read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as arrow
import pyarrow.csv as arrow_csv

from fedmf.lines import LONGEST_LINE, LineCutter, TooLong

#: Bytes of lines that are parsed at once.
_BLOCK: Final = 1 << 24
_MARK: Final = b"\xef\xbb\xbf"


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

    A line with too few or too many fields gives a row without values, but for the columns ``text``; one of
    more than `LONGEST_LINE` bytes, which is never held whole, a row without any.

    Args:
        file: UTF-8 with a header.
        wanted: the columns to read, in order, from all that there are; may refuse.
        text: see above.

    Raises:
        OSError: not readable, or no header.
    """
    with file.open("rb") as handle:
        blocks = _blocks(handle)
        lines = next(blocks, [])
        if not lines:
            raise OSError("Empty CSV file")
        header, *lines = lines
        if isinstance(header, TooLong):
            raise OSError(f"a header must have at most {LONGEST_LINE} bytes; it has more")
        present = _fields(header.removeprefix(_MARK))
        names = wanted(present)
        place = {name: i for i, name in enumerate(present)}
        columns = _Columns(len(present), {name: place[name] for name in names}, text)
        for block in chain([lines], blocks):
            yield from _parsed([_mended(line, columns) for line in block], columns)


def _blocks(handle: BinaryIO) -> Iterator[list[bytes]]:
    """Lines that are not blank with their line feeds, some at a time; never an empty list."""
    cutter = LineCutter()
    while piece := handle.read(_BLOCK):
        if lines := [line for line in map(_ended, cutter.add(piece)) if line.strip(b"\r\n")]:
            yield lines
    if lines := [line for line in cutter.end() if line.strip(b"\r\n")]:
        yield lines


def _ended(line: bytes) -> bytes:
    return line if isinstance(line, TooLong) else line + b"\n"


def _mended(line: bytes, columns: _Columns) -> bytes:
    """A line that is seen to be broken at a glance is replaced, so that the others are read together."""
    if isinstance(line, TooLong):
        return _stand_in(b"", columns)
    if line.count(b"\r") != line.count(b"\r\n"):
        return _stand_in(line, columns)
    quotes = line.count(b'"')
    if quotes % 2 and not _fields(line, strict=True):  # a quote that never ends
        return _stand_in(b"", columns)
    return line if quotes or line.count(b",") == columns.fields - 1 else _stand_in(line, columns)


def _parsed(lines: list[bytes], columns: _Columns) -> Iterator[arrow.Table]:
    """All lines together; if they are not one row each, without those that are broken."""
    table = _rows(lines, columns) if lines else None
    if lines and table is None:
        lines = list(_repaired(lines, columns))
        table = _rows(lines, columns)
    if table is not None:
        yield table
    elif len(lines) > 1:
        for line in lines:
            yield from _parsed([line], columns)


def _repaired(lines: list[bytes], columns: _Columns) -> Iterator[bytes]:
    """The lines, those replaced that are no row each; found by halves, reading one column alone."""
    first = replace(columns, places={"": 0})
    if _rows(lines, first) is not None:
        yield from lines
    elif len(lines) == 1:
        yield _stand_in(lines[0], columns)
    else:
        middle = len(lines) // 2
        yield from _repaired(lines[:middle], columns)
        yield from _repaired(lines[middle:], columns)


def _rows(lines: list[bytes], columns: _Columns) -> arrow.Table | None:
    """One row for each line; None if a quote swallows a line's end or fields are too few or too many."""
    data = b"\n" + b"".join(lines)  # the blank line keeps a byte order mark from being one
    places = [str(place) for place in columns.places.values()]
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(data),
            arrow_csv.ReadOptions(
                use_threads=False,
                block_size=len(data) + 1,
                column_names=[str(i) for i in range(columns.fields)],
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(places, arrow.binary()), include_columns=places
            ),
        )
    except arrow.ArrowException:
        return None
    table = table.combine_chunks()
    return table.rename_columns(list(columns.places)) if table.num_rows == len(lines) else None


def _stand_in(line: bytes, columns: _Columns) -> bytes:
    """In place of a broken line: whose it is and its label, where they can be read, and nothing else."""
    fields = _fields(line)
    stand_in = [b"nan"] * columns.fields
    for name in columns.text:
        place = columns.places[name]
        text = fields[place].encode("utf-8", "surrogateescape") if place < len(fields) else b""
        stand_in[place] = b'"' + text.replace(b'"', b'""') + b'"'
    return b",".join(stand_in) + b"\n"


def _fields(line: bytes, strict: bool = False) -> list[str]:
    """The fields of a line; none if it cannot be read."""
    text = line.decode("utf-8", "surrogateescape").rstrip("\r\n").replace("\r", " ")
    try:
        return next(csv.reader([text], strict=strict))
    except (csv.Error, StopIteration):
        return []
