"""Cells as text, numbers or ids of users: what one becomes depends on it and its column's type.

Columns are Arrow arrays as `fedmf.data.table_reader` and `column_of` give them, whole or in chunks,
or lists of text. A cell that cannot be parsed is a null, or NaN, and raises nothing; a column whose
*type* holds nothing of the kind is rejected.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute
from numpy.typing import NDArray

from fedmf.data.table_reader import format_of, is_number, open_table

types = arrow.types
_TEXT: Final = (
    *(types.is_string, types.is_large_string, types.is_string_view),
    *(types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary),
)
#: Whole numbers that float64 tells apart lie below this; of smaller floating types below other
#: powers of 2.
_EXACT: Final = {16: 2**11, 32: 2**24, 64: 2**53}
_POINT_ZERO: Final = re.compile(r"([+-]?[0-9]{1,400})\.0*")
#: As Python, NumPy and Arrow write large floats; an id such as "12e5" is none.
_POWER: Final = re.compile(r"[+-]?[0-9](\.[0-9]+)?[eE]\+[0-9]{1,3}")
#: A byte order mark, at the front of a file or copied with a cell.
_MARK: Final = "\ufeff"


def column_of(values: Any) -> Any:
    """An array, a list or a column of a data frame as an Arrow array; of several types as text,
    cell by cell.

    Guarantees: what a cell is as a number or an id depends neither on other cells nor on how it is
    typed.

    >>> column_of([7, "ann", None, 7.5]).to_pylist()
    ['7', 'ann', None, '7.5']
    """
    if isinstance(values, arrow.Array | arrow.ChunkedArray):
        return values
    try:
        column = arrow.array(values, from_pandas=True)
        if not types.is_decimal(column.type):  # whose numbers would be rounded to one scale
            return column
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):
        pass
    return arrow.array([_as_text(value) for value in values], arrow.large_string())


def _as_text(value: Any) -> str | None:
    value = value.item() if isinstance(value, np.generic) else value
    if (
        isinstance(value, complex) and value.imag == 0
    ):  # one complex cell made all of its column complex
        value = value.real
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str):
        return value.encode(errors="surrogatepass").decode(errors="replace")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value != value:
        return None
    try:
        return str(value + 0 if isinstance(value, float) else value)  # no −0.0
    except ValueError:  # an integer of more digits than Python writes
        return None


def texts(column: Any, place: str = "column") -> Any:
    """Cells as large strings; null where one is missing or empty.

    Bytes that are no UTF-8 are U+FFFD, numbers are written the shortest way, times as ISO 8601.

    Raises:
        ValueError: lists, or another nested type.
    """
    column = _plain(column)
    if any(test(column.type) for test in _TEXT):
        encoded = column.cast(arrow.large_binary())
        try:
            column = encoded.cast(arrow.large_string())
        except arrow.ArrowInvalid:  # also columns of strings in Parquet may hold what is no UTF-8
            cells = [
                None if cell is None else cell.decode(errors="replace")
                for cell in encoded.to_pylist()
            ]
            column = arrow.array(cells, arrow.large_string())
    else:
        try:
            column = column.cast(arrow.large_string())
        except (arrow.ArrowNotImplementedError, arrow.ArrowInvalid):
            raise ValueError(
                f"{place} must hold text, numbers or times; got {column.type}."
            ) from None
    empty = compute.call_function("equal", [column, arrow.scalar("", arrow.large_string())])
    return compute.call_function(
        "if_else", [empty, arrow.scalar(None, arrow.large_string()), column]
    )


def cells_of(column: Any, place: str = "column") -> list[str]:
    """`texts` as a list, "" for missing ones."""
    return [cell or "" for cell in texts(column, place).to_pylist()]


def numbers(column: Any, place: str = "column") -> NDArray[np.float64]:
    """Cells as numbers, NaN for one that is none.

    Raises:
        ValueError: a column of times or of lists.
    """
    column = _plain(column)
    if types.is_temporal(column.type) or types.is_nested(column.type):
        raise ValueError(f"{place} must hold numbers; got {column.type}.")
    if any(test(column.type) for test in _TEXT):
        column = texts(column, place)
    try:  # together where all are numbers, else one by one, which reads them the same
        return column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    except arrow.ArrowException:
        return np.array([_number(cell) for cell in column.to_pylist()], dtype=np.float64)


def lists_of_numbers(column: Any, width: int, place: str = "column") -> NDArray[np.float64]:
    """Lists of so many numbers, shape (rows, width); NaN where one has another length, or an entry
    is none.

    Raises:
        ValueError: a column of something else.
    """
    column = _plain(column)
    if not is_list(column.type):
        raise ValueError(f"{place} must hold lists of numbers; got {column.type}.")
    right = list_lengths(column) == width
    rows = np.full((len(column), width), np.nan)
    rows[right] = numbers(column.filter(arrow.array(right)).flatten(), place).reshape(-1, width)
    return rows


def list_lengths(column: Any) -> NDArray[np.int64]:
    """How long each list is; −1 for a missing one."""
    lengths = compute.call_function("list_value_length", [column]).fill_null(-1)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def ids(column: Any, place: str = "column") -> Any:
    """Ids of users as large strings in canonical form (`canonical_id`).

    Returns:
        Null if a row names no user: a missing or empty cell, NaN, bytes that are not UTF-8, or a
            float too
        large to be told from its neighbours.

    Raises:
        ValueError: a column of Booleans, times or lists.
    """
    column = _plain(column)
    kind = column.type
    if types.is_boolean(kind) or types.is_temporal(kind) or types.is_nested(kind):
        raise ValueError(f"{place} must hold user ids, as strings or integers; got {kind}.")
    if types.is_floating(kind):
        exact = np.array(column.cast(arrow.float64()).to_numpy(zero_copy_only=False))
        exact[~(np.abs(exact) < _EXACT[kind.bit_width])] = np.nan
        column = arrow.array([_as_text(number) for number in exact], arrow.large_string())
    encoded = texts(column, place).dictionary_encode()
    known = [canonical_id(name or "") or None for name in encoded.dictionary.to_pylist()]
    return arrow.array(known, arrow.large_string()).take(encoded.indices)


def is_list(kind: Any) -> bool:
    """Whether cells of an Arrow type are lists."""
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _plain(column: Any) -> Any:
    """One array without a dictionary; of a list of text one of strings."""
    if isinstance(column, list):
        column = arrow.array(column, arrow.large_string())
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    return column.cast(column.type.value_type) if types.is_dictionary(column.type) else column


def _number(cell: str | None) -> float:
    return float(cell) if cell is not None and is_number(cell) else math.nan


def canonical_id(text: str) -> str:
    """The one text of an id; "" where none can be told.

    Two texts of one person must not become two users, who would take part twice as often. So blanks
    around an id and byte order marks are dropped, characters are composed (Unicode NFC), and an
    integer that passed through a floating type, as pandas makes of integers next to a missing one,
    is that integer again. Leading zeros and capitals stay: "007" and "7" are two people.

    Args:
        text: of the id.

    Returns:
        A fixed point of this function. An integer written as a float of 2⁵³ or more has lost
            digits: "". So
        has a text with U+FFFD, which stands for bytes that are not UTF-8; no record can hold one
        with NUL.

    >>> [canonical_id(text) for text in ("49176123450.0", "4.917612345e+10", " ann ", "007", "1e+300")]
    ['49176123450', '49176123450', 'ann', '007', '']
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.replace(_MARK, ""))
    text = "" if "\ufffd" in text or "\0" in text else text.strip()
    if "." in text or "+" in text:
        if found := _POINT_ZERO.fullmatch(text):
            return found[1] if abs(int(found[1])) < _EXACT[64] else ""
        if _POWER.fullmatch(text) and (number := Decimal(text)) == number.to_integral_value():
            return str(int(number)) if abs(number) < _EXACT[64] else ""
    return text


def require_canonical(user_ids: Iterable[str]) -> None:
    """Refuse ids that are not as `canonical_id` writes them.

    Raises:
        ValueError: one is not.
    """
    wrong = next((name for name in user_ids if canonical_id(name) != name), None)
    if wrong is not None:
        raise ValueError(
            f"user ids must be as fedmf.data.canonical_id writes them; got {wrong!r}, not "
            f"{canonical_id(wrong)!r}. Two spellings of one id would count as two users."
        )


def places(column: Any, known: Sequence[str], missing: str = "") -> NDArray[np.int64]:
    """Which of some names each cell is, blanks around it aside; −1 for none of them.

    A cell that is none as it is written is compared as `canonical_id` writes it, as pandas writes
    integers next to a missing cell as 1.0.

    Args:
        column: of text.
        known: the names, in order.
        missing: the name that stands for a missing cell; empty for none.

    >>> places(["b", " a ", "c", "", "1.0"], ["a", "b", "1"]).tolist()
    [1, 0, -1, -1, 2]
    """
    encoded = texts(column).dictionary_encode()
    place = {canonical_id(name) or name: i for i, name in enumerate(known)}
    place |= {name: i for i, name in enumerate(known)}
    words = [word.strip() or missing for word in [*encoded.dictionary.to_pylist(), ""]]
    found = [place.get(word, place.get(canonical_id(word) or word, -1)) for word in words]
    of_words = np.array(found, dtype=np.int64)
    return of_words[encoded.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)]


def require_once(names: Sequence[str | None], place: str = "") -> tuple[str, ...]:
    """The user list that some canonical ids are.

    Args:
        names: None where none can be told.
        place: where they stand, such as " (users.txt)", for messages.

    Raises:
        ValueError: there is none, one is missing, or is there twice.
    """
    if None in names:
        raise ValueError(
            "user_list must have a user id in each row; got none in row"
            f" {names.index(None) + 1}{place}. A float of 2⁵³ or more has lost its last digits:"
            " write the id in full."
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice or not names:
        wrong = f"{twice[0]!r} more than once" if twice else "nobody"
        raise ValueError(f"user_list must contain each user once; got {wrong}{place}.")
    return tuple(name for name in names if name)


def read_user_list(path: Path, column: str) -> tuple[str, ...]:
    """User ids in the order of a file, as `canonical_id` writes them.

    A user list is public, so errors name its contents.

    Args:
        path: a table with the column, or any other text file with one id a line.
        column: the user column.

    Raises:
        ValueError: unreadable, no users, or an id that is missing or occurs twice.
    """
    names: list[str | None] = []
    if format_of(path):
        with open_table(path) as table:
            table.select((column,))
            while (batch := table.read(65_536)) is not None:
                names += ids(batch.columns[column], f"column {column!r} of {path}").to_pylist()
    else:
        try:
            lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                "user_list (data.user-list) must be a readable file with one id per line; got"
                f" {path}: {error}. Write the ids of all users into it who may take part; they"
                " become public."
            ) from None
        names += [canonical_id(line) or None for line in lines if line]
    return require_once(names, f" ({path})")
