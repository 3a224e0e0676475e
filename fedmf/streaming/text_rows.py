"""Rows of CSV and JSON lines, each line by itself as it arrives."""

from __future__ import annotations

import csv
import json
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, final

import numpy as np

from fedmf.data import canonical_id
from fedmf.lines import LONGEST_LINE, TooLong
from fedmf.streaming.lines import Lines
from fedmf.streaming.rows import (
    SURROGATE,
    InputError,
    Layout,
    RowBlock,
    RowReader,
    label_of,
    numbers_of,
    shown_names,
    wanted_columns,
)

#: A row's numbers, user and labels; or what is wrong with it, and user and labels where they can be read.
Parsed = tuple[list[float] | str, str | None, tuple[str, ...]]
#: How deep brackets may be nested in a line of JSON.
_DEEPEST: Final = 64
_BRACKETS: Final = re.compile(r"[\[\]{}]")


class _TextReader(RowReader):
    """One row a line; abstract."""

    def __init__(self, lines: Lines, first_row: int, header: int) -> None:
        self._lines, self.first_row = lines, first_row
        self._row, self._offset = first_row, header if first_row == 1 else None

    def read(self, most: int) -> RowBlock | None:
        """See `RowReader.read`."""
        lines = self._lines.take(most)
        if not lines:
            return None
        first = self._row
        self._row += len(lines)
        return self._block(first, lines)

    def skip(self, rows: int) -> int:
        """See `RowReader.skip`."""
        left = rows
        while left:
            lines = self._lines.take(left)
            if not lines:
                break
            left -= len(lines)
        self._row += rows - left
        return rows - left

    def where(self, row: int) -> str:
        """See `RowReader.where`."""
        plain = self._offset is not None and not self._lines.blank
        return f"row {row} (line {row + (self._offset or 0)})" if plain else f"row {row}"

    def close(self) -> None:
        """See `RowReader.close`."""

    def _block(self, first: int, lines: Sequence[bytes]) -> RowBlock:
        values = np.zeros((len(lines), self.layout.dimension))
        users: list[str | None] = []
        labels: list[tuple[str, ...]] = []
        faults: dict[int, str] = {}
        for i, line in enumerate(lines):
            numbers, user, texts = self._parsed(line)
            if isinstance(numbers, str):
                faults[i] = numbers
            elif self.layout.user is not None and user is None:
                faults[i] = f"column {self.layout.user!r} must name a user"
            else:
                values[i] = numbers
            users.append(user)
            labels.append(texts)
        named, labelled = self.layout.user is not None, bool(self.layout.labels)
        return RowBlock(first, values, users if named else None, faults, labels if labelled else ())

    def _parsed(self, line: bytes) -> Parsed:
        if isinstance(line, TooLong):
            return f"must take at most {LONGEST_LINE} bytes", None, self.layout.unlabelled
        try:
            return self._row_of(line.decode())
        except UnicodeDecodeError:
            return "must be UTF-8", None, self.layout.unlabelled

    @abstractmethod
    def _row_of(self, line: str) -> Parsed:
        """What a line holds."""


@final
class CsvReader(_TextReader):
    """Comma-separated values with a header line; without one if the first line holds numbers only.

    Args:
        lines: of the input.
        columns: names of the numbers; None for all but the user's.
        user: name of the user's column.
        layout: of an earlier part of the same input, whose order of columns is kept.
        first_row: number of the first row in this input.
        labels: names of the columns of labels.
        check: refuses the names of all columns, if they are not those that were declared.

    Raises:
        InputError: nothing to read, or a column is missing.
    """

    def __init__(
        self,
        lines: Lines,
        columns: Sequence[str] | None,
        user: str | None,
        layout: Layout | None = None,
        first_row: int = 1,
        labels: Sequence[str] = (),
        check: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        header = lines.peek()
        if header is None:
            raise InputError("input must have rows; got an empty one.")
        names = _fields(_decoded(header))
        headed = isinstance(names, str) or not all(isinstance(_number(name), float) for name in names)
        if isinstance(names, str):
            raise InputError(f"input (header) {names}.")
        if headed:
            lines.take(1)
            names = [name.strip() for name in names]
            if columns is None and check is None and any(_is_no_name(name) for name in names):
                raise InputError(
                    "input must have a first line with the names of its columns; got an empty one or a "
                    "number among them, as in a row. Name the columns (--columns) if it is one."
                )
        else:
            names = [str(i) for i in range(1, len(names) + 1)]
        super().__init__(lines, first_row, int(headed))
        self._names = names
        if check is not None:
            check(names)
        wanted = wanted_columns(names, columns, user, labels, layout.columns if layout else ())
        self.layout = Layout(tuple(wanted), False, len(wanted), user, tuple(labels))
        place = {name: i for i, name in enumerate(names)}
        self._places = [place[name] for name in wanted]
        self._user_place = None if user is None else place[user]
        self._label_places = [place[name] for name in labels]

    def _row_of(self, line: str) -> Parsed:
        fields = _fields(line)
        if isinstance(fields, str):
            return fields, None, self.layout.unlabelled
        if len(fields) != len(self._names):  # what stands at a label's place may be a number
            return f"must have {len(self._names)} fields; got {len(fields)}", None, self.layout.unlabelled
        user = None if self._user_place is None else canonical_id(fields[self._user_place]) or None
        labels = tuple(label_of(fields[place]) for place in self._label_places)
        return self._numbers([fields[place] for place in self._places]), user, labels

    def _numbers(self, cells: list[str]) -> list[float] | str:
        """The numbers, or what is wrong with the first that is none."""
        try:
            numbers = list(map(float, cells))
        except ValueError:
            numbers = [math.nan]
        if all(map(math.isfinite, numbers)) and "_" not in "".join(cells):
            return numbers
        return numbers_of(list(map(_number, cells)), self.layout.columns)


@final
class JsonLinesReader(_TextReader):
    """JSON lines: arrays of numbers, or objects with numbers or one array of numbers, and the user.

    Args:
        lines: of the input.
        columns: names of the numbers, or of the array; None for all but the user's.
        user: name of the user's key.
        layout: of an earlier part of the same input, which the first row must be of; None takes it from the
            first row.
        first_row: number of the first row in this input.
        labels: names of the keys of labels.

    Raises:
        InputError: nothing to read, or the first row does not tell a layout.
    """

    def __init__(
        self,
        lines: Lines,
        columns: Sequence[str] | None,
        user: str | None,
        layout: Layout | None = None,
        first_row: int = 1,
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__(lines, first_row, 0)
        line = lines.peek()
        if line is None and layout is None:
            raise InputError("input must have rows; got an empty one.")
        self.layout = layout or _json_layout(_decoded(line or b""), columns, user, labels)
        if layout is not None and line is not None:
            _check_json(layout, line, columns)

    def _row_of(self, line: str) -> Parsed:
        row = _json(line)
        numbers = self._numbers_of(row)
        if not isinstance(row, dict):
            return numbers, None, self.layout.unlabelled
        user = None if self.layout.user is None else _user(row.get(self.layout.user))
        return numbers, user, tuple(label_of(row.get(name)) for name in self.layout.labels)

    def _numbers_of(self, row: object) -> list[float] | str:
        layout = self.layout
        if layout.vector:
            array = row.get(layout.columns[0]) if layout.columns and isinstance(row, dict) else row
            if not isinstance(array, list):
                return "must hold an array of numbers"
            if len(array) != layout.dimension:
                return f"must have {layout.dimension} numbers; got {len(array)}"
            return numbers_of(array, [str(i) for i in range(1, len(array) + 1)])
        if not isinstance(row, dict):
            return "must be a JSON object"
        missing = [name for name in layout.columns if name not in row]
        if missing:
            return f"column {missing[0]!r} is missing"
        return numbers_of([row[name] for name in layout.columns], layout.columns)


def _json_layout(line: str, columns: Sequence[str] | None, user: str | None, labels: Sequence[str]) -> Layout:
    row = _json(line)
    if isinstance(row, list):
        if columns is not None or user is not None or labels:
            raise InputError("input must be JSON objects where columns are named; row 1 is an array.")
        if not row:
            raise InputError("row 1 must hold numbers; got an empty array.")
        return Layout((), True, len(row), None)
    if not isinstance(row, dict):
        raise InputError("row 1 must be a JSON object or array.")
    wanted = wanted_columns(list(row), columns, user, labels)
    if len(wanted) == 1 and isinstance(row[wanted[0]], list):
        if not row[wanted[0]]:
            raise InputError("row 1 must hold numbers; got an empty array.")
        return Layout(tuple(wanted), True, len(row[wanted[0]]), user, tuple(labels))
    return Layout(tuple(wanted), False, len(wanted), user, tuple(labels))


def _check_json(layout: Layout, line: bytes, columns: Sequence[str] | None) -> None:
    """Whether the first row of a later part has the columns of the rows before.

    A row that lacks some of them has missing numbers and is read like any other.

    Raises:
        InputError: it has other ones, none of them, or another form.
    """
    try:
        row = None if isinstance(line, TooLong) else _json(line.decode())
    except UnicodeDecodeError:
        row = None
    arrays = layout.vector and not layout.columns
    if isinstance(row, list if not arrays else dict):
        form = "arrays" if arrays else "objects"
        raise InputError(f"input must be JSON {form}, like the rows before; its first row is not.")
    if not isinstance(row, dict):
        return
    known = (*layout.columns, *layout.labels, *([] if layout.user is None else [layout.user]))
    others = [name for name in row if name not in known] if columns is None else []
    numbers = layout.columns or layout.labels
    if others or not any(name in row for name in numbers):
        got = shown_names(others or list(row))
        raise InputError(f"columns must be {shown_names(numbers)}; got {got} in the first row.")


def _fields(line: str) -> list[str] | str:
    if '"' not in line and "\r" not in line and len(line) <= csv.field_size_limit():
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration):
        return "must be one line of CSV"


def _is_no_name(name: str) -> bool:
    """Whether a column's name may be a value that somebody owns, and would be published with the column."""
    return not name or isinstance(_number(name), float)


def _number(text: str) -> float | str:
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text


def _json(line: str) -> object:
    """What a line of JSON says; None for what is none or is nested too deep, which is seen before parsing."""
    if _too_deep(line):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _too_deep(line: str) -> bool:
    """Whether brackets are nested deeper than a row needs; those in text count too, closed ones do not."""
    if line.count("[") + line.count("{") <= _DEEPEST:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(line):
        depth += 1 if bracket in "[{" else -1
        if depth > _DEEPEST:
            return True
    return False


def _user(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        text = canonical_id(str(value))
    except ValueError:  # a whole number of thousands of digits
        return None
    lost = isinstance(value, float) and not math.isfinite(value)
    return text if text and not lost and not SURROGATE.search(text) else None


def _decoded(line: bytes) -> str:
    if isinstance(line, TooLong):
        raise InputError(f"input (first line) must take at most {LONGEST_LINE} bytes; got a longer one.")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InputError("input must be UTF-8 text; its first line is not.") from None
