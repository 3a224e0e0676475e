"""Cells of a column as text, numbers or ids of users: what one becomes depends on it and its column's type.

Columns are Arrow arrays as `fedmf.data.table_reader` gives them, whole or in chunks. A cell that cannot be
parsed is a null, or NaN, and raises nothing; a column whose *type* holds nothing of the kind is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute
from numpy.typing import NDArray

from fedmf.data.user_ids import canonical_id, id_of_float

types = arrow.types


def texts(column: Any, place: str = "column") -> Any:
    """Cells as large strings; null where one is missing or empty.

    Bytes that are no UTF-8 are U+FFFD, numbers are written the shortest way, times as ISO 8601.

    Raises:
        ValueError: lists, or another nested type.
    """
    column = _plain(column)
    kind = column.type
    if _is_bytes(kind):
        cells = [None if cell is None else cell.decode(errors="replace") for cell in column.to_pylist()]
        column = arrow.array(cells, arrow.large_string())
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        column = _valid(column.cast(arrow.large_string()))
    else:
        try:
            column = column.cast(arrow.large_string())
        except (arrow.ArrowNotImplementedError, arrow.ArrowInvalid):
            raise ValueError(f"{place} must hold text, numbers or times; got {kind}.") from None
    empty = compute.call_function("equal", [column, arrow.scalar("", arrow.large_string())])
    return compute.call_function("if_else", [empty, arrow.scalar(None, arrow.large_string()), column])


def cells_of(column: Any, place: str = "column") -> list[str]:
    """`texts` as a list, "" for what is missing."""
    return [cell or "" for cell in texts(column, place).to_pylist()]


def numbers(column: Any, place: str = "column") -> NDArray[np.float64]:
    """Cells as numbers, NaN for one that is none.

    Raises:
        ValueError: a column of times or of lists.
    """
    column = _plain(column)
    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        column = column.cast(arrow.int8()) if types.is_boolean(kind) else column
        return column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_temporal(kind) or types.is_nested(kind):
        raise ValueError(f"{place} must hold numbers; got {kind}.")
    return numbers_of(texts(column, place))


def numbers_of(column: Any) -> NDArray[np.float64]:
    """Numbers that text says; together where all are numbers, else one by one, which reads them the same."""
    try:
        return column.cast(arrow.float64()).to_numpy(zero_copy_only=False)
    except arrow.ArrowException:
        return np.array([_number(cell) for cell in column.to_pylist()], dtype=np.float64)


def lists_of_numbers(column: Any, width: int, place: str = "column") -> NDArray[np.float64]:
    """Lists of so many numbers, shape (rows, width); NaN where one has another length, or an entry is none.

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
        Null where a row names nobody: a missing or empty cell, NaN, what is not UTF-8, or a float too large
        to be told from its neighbours.

    Raises:
        ValueError: a column of truth values, times or lists.
    """
    column = _plain(column)
    kind = column.type
    if types.is_floating(kind):
        cells = column.cast(arrow.float64()).to_pylist()
        return arrow.array([id_of_float(cell, kind.bit_width) for cell in cells], arrow.large_string())
    if types.is_boolean(kind) or types.is_temporal(kind) or types.is_nested(kind):
        raise ValueError(f"{place} must hold ids of users, as text or whole numbers; got {kind}.")
    encoded = texts(column, place).dictionary_encode()
    exact = types.is_integer(kind)
    known = [name if exact else _id(name, types.is_decimal(kind)) for name in encoded.dictionary.to_pylist()]
    return arrow.array(known, arrow.large_string()).take(encoded.indices)


def is_list(kind: Any) -> bool:
    """Whether cells of an Arrow type are lists."""
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _plain(column: Any) -> Any:
    """One array without a dictionary."""
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    return column.cast(column.type.value_type) if types.is_dictionary(column.type) else column


def _is_bytes(kind: Any) -> bool:
    tests = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _valid(column: Any) -> Any:
    """Text with U+FFFD for bytes that are no UTF-8, which Parquet files may hold in columns of strings."""
    try:
        column.validate(full=True)
    except arrow.ArrowInvalid:
        cells = column.cast(arrow.large_binary()).to_pylist()
        return arrow.array(
            [None if cell is None else cell.decode(errors="replace") for cell in cells], arrow.large_string()
        )
    return column


def _number(cell: str | None) -> float:
    try:
        return math.nan if cell is None or "_" in cell else float(cell)
    except ValueError:
        return math.nan


def _id(text: str | None, decimal: bool) -> str | None:
    if text is None or "\ufffd" in text:
        return None
    if decimal:  # exact, however large; zeros behind the point say nothing
        return text.rstrip("0").rstrip(".") if "." in text else text
    return canonical_id(text) or None
