"""Columns of labels and of users: text or whole numbers, any of which may be missing or not text at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray


@dataclass(frozen=True)
class TextColumn:
    """The values of a column, each different one kept once.

    Args:
        values: the different values, in the order of their first rows.
        codes: which of them each row has, shape (rows,); −1 where it is missing, empty or not UTF-8.
    """

    values: tuple[str, ...]
    codes: NDArray[np.int64]

    @classmethod
    def of(cls, chunks: Sequence[Any]) -> Self:
        """From arrays of bytes (`bytes_of`), one after the other."""
        encoded = arrow.chunked_array(chunks, type=arrow.large_binary()).combine_chunks().dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        texts = [_decoded(value) for value in encoded.dictionary.to_pylist()]
        readable = [i for i, text in enumerate(texts) if text]
        place = np.full(len(texts) + 1, -1, dtype=np.int64)  # the last place is that of −1
        place[readable] = np.arange(len(readable))
        return cls(tuple(texts[i] for i in readable), place[codes])

    def ordered(self, as_numbers: bool) -> tuple[str, ...]:
        """The different values as text or, where asked and all of them are whole numbers, as numbers."""
        whole = as_numbers and all(value.removeprefix("-").isdecimal() for value in self.values)
        return tuple(sorted(self.values, key=lambda value: (int(value), value) if whole else (0, value)))

    def among(self, known: Sequence[str]) -> NDArray[np.int64]:
        """Where each row's value stands in a list; −1 for what is not in it. A row decides only its own."""
        place = {value: i for i, value in enumerate(known)}
        return np.array([*(place.get(value, -1) for value in self.values), -1], dtype=np.int64)[self.codes]


def bytes_of(column: Any, place: str) -> Any:
    """An arrow array of text or whole numbers as bytes; nulls stay.

    Args:
        column: the array.
        place: names column and file in a refusal.

    Raises:
        ValueError: a column of another type.
    """
    kind = column.type
    if arrow.types.is_floating(kind) or arrow.types.is_nested(kind):
        raise ValueError(f"{place} must hold text or whole numbers; got {kind}.")
    return written(column)


def written(column: Any) -> Any:
    """The cells of a column as bytes: text as it is, UTF-8 or not, other types as Arrow writes them.

    Args:
        column: an array, whole or in chunks, of any type that is not nested.

    Guarantees: no cell raises, and none decides how another is written.
    """
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    as_it_is = binary or types.is_fixed_size_binary(kind)
    return (column if as_it_is else column.cast(arrow.large_string())).cast(arrow.large_binary())


def _decoded(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return ""
