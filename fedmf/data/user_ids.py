"""One text for each user's id, however the same id was written or stored."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as arrow

#: Whole numbers that float64 tells apart lie below this; of smaller floating types below other powers of 2.
_EXACT: Final = {16: 2**11, 32: 2**24, 64: 2**53}
_POINT_ZERO: Final = re.compile(r"([+-]?[0-9]{1,400})\.0*")
#: As Python, NumPy and Arrow write large floats; an id such as "12e5" is none.
_POWER: Final = re.compile(r"[+-]?[0-9](\.[0-9]+)?[eE]\+[0-9]{1,3}")
#: A byte order mark, at the front of a file or copied with a cell.
_MARK: Final = "\ufeff"


def canonical_id(text: str) -> str:
    """The one text of an id; "" where none can be told.

    Two texts of one person must not become two users, who would take part twice as often. So blanks around
    an id and byte order marks are dropped, characters are composed (Unicode NFC), and a whole number that
    passed through a floating type, as pandas makes of integers beside a missing one, is that integer again.
    Leading zeros and capitals stay: "007" and "7" are two people.

    Args:
        text: of the id.

    Returns:
        A fixed point of this function. A whole number written as a float of 2⁵³ or more has lost digits: "".

    >>> [canonical_id(text) for text in ("49176123450.0", "4.917612345e+10", " ann ", "007", "1e+300")]
    ['49176123450', '49176123450', 'ann', '007', '']
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.replace(_MARK, ""))
    text = text.strip()
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
            f"{canonical_id(wrong)!r}. Two texts of one person would be two users."
        )


def id_of_float(number: float | None, bits: int) -> str | None:
    """The id that a floating number stands for; None for a missing, infinite or too large one.

    Args:
        number: of a column.
        bits: of the column's type: 16, 32 or 64.

    >>> id_of_float(7.0, 64), id_of_float(0.5, 64), id_of_float(2.0**53, 64)
    ('7', '0.5', None)
    """
    if number is None or not abs(number) < _EXACT[bits]:
        return None
    if number.is_integer():
        return str(int(number))
    return str(np.float32(number)) if bits == 32 else repr(number)


def id_column(column: Any, place: str) -> Any:
    """A column of ids as bytes in canonical form.

    Args:
        column: of Arrow, whole or in chunks: text, bytes, whole numbers, floats or decimals, also as a
            dictionary.
        place: names the column in a refusal.

    Returns:
        Large binary values; null where a row names nobody: a missing or empty cell, NaN, what is not UTF-8,
        or a float too large to be told from its neighbours.

    Raises:
        ValueError: a column of another type.

    Guarantees: what a cell becomes depends on that cell and the column's type alone.
    """
    types, kind = arrow.types, column.type
    if types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if types.is_null(kind):
        return arrow.nulls(len(column), arrow.large_binary())
    if types.is_integer(kind):
        return column.cast(arrow.large_string()).cast(arrow.large_binary())
    if types.is_floating(kind):
        return arrow.array(_of_floats(column), arrow.large_binary())
    decimal = types.is_decimal(kind)
    if not (decimal or holds_text(kind)):
        raise ValueError(f"{place} must hold ids of users, as text or whole numbers; got {kind}.")
    if decimal:
        column = column.cast(arrow.large_string())
    encoded = column.cast(arrow.large_binary()).dictionary_encode()
    chunks = encoded.chunks if isinstance(encoded, arrow.ChunkedArray) else [encoded]
    parts = []
    for chunk in chunks:
        words = [_of_decimal(word) if decimal else _of_bytes(word) for word in chunk.dictionary.to_pylist()]
        parts.append(arrow.array(words, arrow.large_binary()).take(chunk.indices))
    return arrow.chunked_array(parts, arrow.large_binary()).combine_chunks()


def holds_text(kind: Any) -> bool:
    """Whether cells of a type are text or bytes."""
    types = arrow.types
    tests = (
        *(types.is_string, types.is_large_string, types.is_string_view),
        *(types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary),
    )
    return any(test(kind) for test in tests)


def texts_of_ids(column: Any, place: str) -> list[str | None]:
    """`id_column` as text."""
    return [None if cell is None else cell.decode() for cell in id_column(column, place).to_pylist()]


def _of_bytes(cell: bytes) -> bytes | None:
    try:
        return canonical_id(cell.decode()).encode() or None
    except UnicodeDecodeError:
        return None


def _of_decimal(cell: bytes) -> bytes:
    """Exact, however large; zeros behind the point say nothing."""
    found = _POINT_ZERO.fullmatch(text := cell.decode())
    return (found[1] if found else text).encode()


def _of_floats(column: Any) -> list[bytes | None]:
    """Whole numbers as integers, others as they are written the shortest way."""
    exact, narrow = _EXACT[column.type.bit_width], arrow.types.is_float32(column.type)
    numbers = column.cast(arrow.float64()).to_pylist()
    return [
        None
        if number is None or not abs(number) < exact
        else b"%d" % int(number)
        if number.is_integer()
        else (str(np.float32(number)) if narrow else repr(number)).encode()
        for number in numbers
    ]
