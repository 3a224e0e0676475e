"""Conversion of table cells to text, numbers or user ids, each cell independently of the others.

Columns are Arrow arrays as `fedmf.data.table_reader` and `column_of` return them, whole or in
chunks, or lists of strings. A cell that cannot be parsed becomes null or NaN and raises nothing; a
column is rejected if its *type* cannot hold such cells.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

from fedmf.data.table_reader import format_of, is_number, open_table

types = arrow.types
_TEXT: Final = (
    types.is_string,
    types.is_large_string,
    types.is_string_view,
    types.is_binary,
    types.is_large_binary,
    types.is_binary_view,
    types.is_fixed_size_binary,
)
#: Types of columns that hold no ids.
_NO_IDS: Final = (
    types.is_boolean,
    types.is_temporal,
    types.is_nested,
    types.is_binary,
    types.is_large_binary,
    types.is_binary_view,
    types.is_fixed_size_binary,
)
#: By the bits of a floating type, the bound below which it represents every integer exactly.
_EXACT: Final = {16: 2**11, 32: 2**24, 64: 2**53}
_POINT_ZERO: Final = re.compile(r"([+-]?[0-9]{1,400})\.0*")
#: Large floats as Python, NumPy and Arrow write them; an id such as "12e5" does not match.
_POWER: Final = re.compile(r"[+-]?[0-9](\.[0-9]+)?[eE]\+[0-9]{1,3}")
#: Characters that are not shown and have a general category of characters that are: joiners,
#: fillers, vowels that are inherent, variation selectors.
_NOT_SHOWN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
#: A pattern without dots, which is as wide as a space.
_BRAILLE_BLANK: Final = "\u2800"


def column_of(values: Any) -> Any:
    """Return an array, a list or a column of a data frame as an Arrow array.

    Cells of several types become strings, cell by cell.

    Guarantees: the number or id that a cell stands for depends neither on other cells nor on the
    type in which it is stored.

    >>> column_of([7, "ann", None, 7.5]).to_pylist()
    ['7', 'ann', None, '7.5']
    """
    if isinstance(values, arrow.Array | arrow.ChunkedArray):
        return values
    try:
        column = arrow.array(values, from_pandas=True)
        if not types.is_decimal(column.type):  # which would round all numbers to one scale
            return column
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):
        pass
    return _text_array(values)


def _text_array(values: Iterable[Any]) -> Any:
    return arrow.array([_as_text(value) for value in values], arrow.large_string())


def _as_text(value: Any) -> str | None:
    """Return a value as text; None for one that is neither text nor a number."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, complex) and value.imag == 0:
        value = value.real  # one complex cell makes its whole column complex
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str):
        return value.encode(errors="surrogatepass").decode(errors="replace")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value != value:
        return None
    if isinstance(value, float):
        value = value + 0  # −0.0 becomes 0.0
    try:
        return str(value)
    except ValueError:  # an integer of more digits than Python writes
        return None


def texts(column: Any, place: str = "column") -> Any:
    """Return the cells as large strings; null where one is missing or empty.

    Bytes that are not UTF-8 become U+FFFD, numbers are written the shortest way, times as ISO 8601.

    Raises:
        ValueError: a column of lists, or of another nested type.
    """
    column = _plain(column)
    try:
        if _holds_text(column):
            column = _decoded(column.cast(arrow.large_binary()))
        else:
            column = column.cast(arrow.large_string())
    except (arrow.ArrowNotImplementedError, arrow.ArrowInvalid):
        raise ValueError(f"{place} must hold text, numbers or times; got {column.type}.") from None
    empty = _computed("equal", column, arrow.scalar("", arrow.large_string()))
    missing = arrow.scalar(None, arrow.large_string())
    return _computed("if_else", empty, missing, column)


def _computed(function: str, *columns: Any) -> Any:
    """Call a function of Arrow; the first call makes a wrapper for each of its functions."""
    from pyarrow import compute

    return compute.call_function(function, list(columns))


def _holds_text(column: Any) -> bool:
    return any(is_text(column.type) for is_text in _TEXT)


def _decoded(column: Any) -> Any:
    """Return bytes as strings; a column of strings in Parquet may hold bytes that are not UTF-8."""
    try:
        return column.cast(arrow.large_string())
    except arrow.ArrowInvalid:
        return _text_array(column.to_pylist())


def cells_of(column: Any, place: str = "column") -> list[str]:
    """Return `texts` as a list, with "" for missing cells."""
    return texts(column, place).fill_null("").to_pylist()


def numbers(column: Any, place: str = "column") -> NDArray[np.float64]:
    """Return the cells as numbers; NaN for one that is not a number.

    Raises:
        ValueError: a column of times or of lists.
    """
    column = _plain(column)
    if types.is_temporal(column.type) or types.is_nested(column.type):
        raise ValueError(f"{place} must hold numbers; got {column.type}.")
    if _holds_text(column):
        column = texts(column, place)
    try:
        return column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    except arrow.ArrowException:  # one by one, which reads every number alike
        return np.array([_number(cell) for cell in column.to_pylist()], dtype=np.float64)


def matrix_of(columns: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.float64]:
    """Return columns as numbers, shape (rows, columns); NaN for a cell that is not a number.

    Raises:
        ValueError: a column of times or of lists.
    """
    return np.stack([numbers(columns[name], f"column {name!r}") for name in names], axis=1)


def lists_of_numbers(column: Any, width: int, place: str = "column") -> NDArray[np.float64]:
    """Return lists of ``width`` numbers as rows, shape (rows, width).

    A row is NaN where the list has another length; an entry is NaN if it is not a number.

    Raises:
        ValueError: a column of another type.
    """
    column = _plain(column)
    if not is_list(column.type):
        raise ValueError(f"{place} must hold lists of numbers; got {column.type}.")
    right = list_lengths(column) == width
    rows = np.full((len(column), width), np.nan)
    rows[right] = numbers(column.filter(arrow.array(right)).flatten(), place).reshape(-1, width)
    return rows


def is_missing(column: Any) -> NDArray[np.bool_]:
    """Return which cells are missing: null or empty."""
    column = _plain(column)
    if not types.is_nested(column.type):
        column = texts(column)
    return column.is_null().to_numpy(zero_copy_only=False)


def list_lengths(column: Any) -> NDArray[np.int64]:
    """Return the length of each list; −1 for a missing one."""
    lengths = _computed("list_value_length", column).fill_null(-1)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def ids(column: Any, place: str = "column") -> Any:
    """Return user ids as large strings in canonical form (`canonical_id`).

    Returns:
        Null if a row names no user: its cell is missing or empty, NaN, not UTF-8, or a float too
        large to be told from its neighbors.

    Raises:
        ValueError: a column of Booleans, times, bytes or lists.
    """
    column = _plain(column)
    kind = column.type
    if any(cannot_be_ids(kind) for cannot_be_ids in _NO_IDS):
        raise ValueError(
            f"{place} must hold user ids, as strings or integers; got {kind}. Write each id as"
            " text, for example bytes as their hexadecimal digits."
        )
    if types.is_floating(kind):
        exact = np.array(column.cast(arrow.float64()).to_numpy(zero_copy_only=False))
        exact[~(np.abs(exact) < _EXACT[kind.bit_width])] = np.nan
        column = _text_array(exact)
    encoded = texts(column, place).dictionary_encode()
    canonical = [canonical_id(name or "") or None for name in encoded.dictionary.to_pylist()]
    return arrow.array(canonical, arrow.large_string()).take(encoded.indices)


def require_exact(column: Any, user_ids: Iterable[str], place: str) -> None:
    """Reject a column of floats that cannot hold an id of a public user list.

    Args:
        column: user ids of rows.
        user_ids: ids on the user list.
        place: name of the column in messages.

    Raises:
        ValueError: the type is floating, and an id is an integer that it does not hold exactly.
    """
    kind = _plain(column).type
    if not types.is_floating(kind):
        return
    for name in user_ids:
        if name.lstrip("-").isdecimal() and abs(int(name[:40])) >= _EXACT[kind.bit_width]:
            raise ValueError(
                f"{place} must hold user ids, as strings or integers; got {kind}, which does not"
                f" hold the id {name} of the user list exactly. Write ids as integers or as text."
            )


def require_wide(column: Any, place: str) -> None:
    """Reject a column of user ids in a floating type that holds no integers of eight digits.

    The type alone decides. An id that float64 does not hold exactly is a missing one (`ids`).

    Raises:
        ValueError: the type is float16 or float32.
    """
    kind = _plain(column).type
    if types.is_floating(kind) and kind.bit_width < 64:
        raise ValueError(
            f"{place} must hold user ids, as strings or integers; got {kind}, which loses their"
            " last digits. Write ids as integers or as text."
        )


def require_times(column: Any, place: str) -> None:
    """Reject a column of a type that holds no times.

    Raises:
        ValueError: a column of numbers, Booleans or lists.
    """
    kind = _plain(column).type
    is_number = types.is_primitive(kind) and not types.is_temporal(kind)
    if is_number or types.is_nested(kind):
        raise ValueError(f"{place} must hold times, as text or timestamps; got {kind}.")


def require_numbers(column: Any, place: str) -> None:
    """Reject a column of a type that holds no numbers.

    Raises:
        ValueError: a column of Booleans, times or lists.
    """
    kind = column.type
    if types.is_boolean(kind) or types.is_temporal(kind) or types.is_nested(kind):
        raise ValueError(f"{place} must hold numbers; got {kind}.")


def is_list(kind: Any) -> bool:
    """Return whether cells of an Arrow type are lists."""
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _plain(column: Any) -> Any:
    """Return one array without chunks or a dictionary; a list of strings becomes an array."""
    if isinstance(column, list):
        column = arrow.array(column, arrow.large_string())
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def _number(cell: str | None) -> float:
    if cell is None or not is_number(cell):
        return math.nan
    return float(cell)


def canonical_id(text: str) -> str:
    """Return the canonical text of an id; "" if it has none.

    Two texts of one person must not become two users, who would take part twice as often. Blanks
    around an id are therefore dropped and blanks of any kind inside it are spaces, characters that
    cannot be seen are dropped (format characters such as zero-width spaces, byte order marks, soft
    hyphens and marks of direction; controls; variation selectors), the others are composed (Unicode
    NFC), and an integer that passed through a floating type, as pandas makes of integers next to a
    missing one, becomes that integer again. Leading zeros and capitals stay: "007" and "7" are two
    people.

    Args:
        text: the id as it is written.

    Returns:
        A fixed point of this function. It is "" for an integer of 2⁵³ or more that is written as a
        float, which has lost digits, for a text with U+FFFD, which stands for bytes that are not
        UTF-8, and for one with NUL, which no ledger can hold.

    >>> written = ("49176123450.0", "4.917612345e+10", " ann ", "007", "1e+300")
    >>> [canonical_id(text) for text in written]
    ['49176123450', '49176123450', 'ann', '007', '']
    """
    if not (text.isascii() and text.isprintable()):
        text = _as_it_is_seen(text)
    if "\ufffd" in text or "\0" in text:
        return ""
    text = text.strip()
    if "." not in text and "+" not in text:
        return text
    point_zero = _POINT_ZERO.fullmatch(text)
    if point_zero is not None:
        return _exact_integer(int(point_zero[1]), point_zero[1])
    if _POWER.fullmatch(text):
        number = Decimal(text)
        if number == number.to_integral_value():
            return _exact_integer(int(number), str(int(number)))
    return text


def _as_it_is_seen(text: str) -> str:
    """Return a text with spaces for all blanks, and without characters that cannot be seen.

    NUL stays, because no ledger can hold it.
    """
    seen: list[str] = []
    for character in text:
        category = unicodedata.category(character)
        if character.isspace() or character == _BRAILLE_BLANK:
            seen.append(" ")
        elif category not in ("Cc", "Cf") or character == "\0":
            seen.append(character)
    return unicodedata.normalize("NFC", _NOT_SHOWN.sub("", "".join(seen)))


def _exact_integer(number: int, written: str) -> str:
    """Return the digits of an integer that a float held; "" if float64 may have changed them."""
    if abs(number) < _EXACT[64]:
        return written
    return ""


def require_canonical(user_ids: Iterable[str]) -> None:
    """Reject ids that differ from their canonical form (`canonical_id`).

    Raises:
        ValueError: an id differs.
    """
    for name in user_ids:
        canonical = canonical_id(name)
        if canonical != name:
            raise ValueError(
                f"user ids must be as fedmf.data.canonical_id writes them; got {name!r}, not "
                f"{canonical!r}. Two spellings of one id would count as two users."
            )


def places(column: Any, known: Sequence[str], missing: str = "") -> NDArray[np.int64]:
    """Return the place of each cell in a list of names, ignoring blanks around it; −1 if absent.

    A cell that is absent as it is written is compared in canonical form (`canonical_id`), because
    pandas writes integers next to a missing cell as 1.0.

    Args:
        column: cells of text.
        known: the names, in order.
        missing: the name that stands for a missing cell; empty for none.

    >>> places(["b", " a ", "c", "", "1.0"], ["a", "b", "1"]).tolist()
    [1, 0, -1, -1, 2]
    """
    encoded = texts(column).dictionary_encode()
    place = {canonical_id(name) or name: i for i, name in enumerate(known)}
    place.update(zip(known, range(len(known)), strict=True))  # names as written take precedence
    words = [*encoded.dictionary.to_pylist(), ""]  # the last one stands for missing cells
    of_words = np.empty(len(words), dtype=np.int64)
    for i, word in enumerate(words):
        name = word.strip() or missing
        of_words[i] = place.get(name, place.get(canonical_id(name) or name, -1))
    return of_words[encoded.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)]


def require_once(names: Sequence[str | None], place: str = "") -> tuple[str, ...]:
    """Return canonical ids as a user list, which contains each user once.

    Args:
        names: canonical ids; None for an entry without one.
        place: where they stand, such as " (users.txt)", for messages.

    Raises:
        ValueError: there are no ids, or one is missing or occurs twice.
    """
    users: dict[str, None] = {}  # an ordered set
    for row, name in enumerate(names, start=1):
        if not name:
            raise ValueError(
                f"user_list must have a user id in each row; got none in row {row}{place}. A float"
                " of 2⁵³ or more has lost its last digits: write the id in full."
            )
        if name in users:
            raise ValueError(
                f"user_list must contain each user once; got {name!r} more than once{place}."
            )
        users[name] = None
    if not users:
        raise ValueError(f"user_list must contain each user once; got no ids{place}.")
    return tuple(users)


def read_user_list(path: Path, column: str) -> tuple[str, ...]:
    """Read user ids in the order of a file, in canonical form (`canonical_id`).

    A user list is public, so errors name its contents.

    Args:
        path: a table with the column, or any other text file with one id a line.
        column: the user column.

    Raises:
        ValueError: the file is unreadable or empty, or an id is missing or occurs twice.
    """
    names: list[str | None] = []
    if format_of(path):
        with open_table(path) as table:
            table.select((column,))
            for batch in table.batches():
                for row, reason in batch.faults.items():
                    raise ValueError(
                        f"user_list must be a table in {path}; got a row {len(names) + row + 1}"
                        f" with {reason}."
                    )
                names += ids(batch.columns[column], f"column {column!r} of {path}").to_pylist()
        return require_once(names, f" ({path})")
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            "user_list (data.user-list) must be a readable file with one id per line; got"
            f" {path}: {error}. Write the ids of all users who may take part into it; they"
            " become public."
        ) from None
    names += [canonical_id(line) or None for line in lines if line.strip()]
    return require_once(names, f" ({path})")
