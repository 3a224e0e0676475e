"""The one reader of tables: files as batches of columns, and cells as names, texts or numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from fedmf.data.rows.csv_lines import csv_batches
from fedmf.data.schema import Schema, numbers_of_cells
from fedmf.data.user_ids import id_column

_BATCH: Final = 65_536
SUFFIXES: Final = (".csv", ".parquet")


@dataclass(frozen=True)
class TextColumn:
    """The values of a column of names, each different one kept once.

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

    @classmethod
    def without_names(cls, rows: int) -> Self:
        """Rows that all have one name, the empty one."""
        return cls(("",), np.zeros(rows, dtype=np.int64))

    def ordered(self, as_numbers: bool) -> tuple[str, ...]:
        """The different values as text or, where asked and all of them are whole numbers, as numbers."""
        whole = as_numbers and all(value.removeprefix("-").isdecimal() for value in self.values)
        return tuple(sorted(self.values, key=lambda value: (int(value), value) if whole else (0, value)))

    def among(self, known: Sequence[str]) -> NDArray[np.int64]:
        """Where each row's value stands in a list; −1 for what is not in it. A row decides only its own."""
        place = {value: i for i, value in enumerate(known)}
        return np.array([*(place.get(value, -1) for value in self.values), -1], dtype=np.int64)[self.codes]


def row_batches(
    path: Path,
    wanted: Callable[[Path, list[str]], list[str]],
    text: Sequence[str] = (),
    what: str = "path",
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The rows of a file, or of all such files of a folder in the order of their names, some at a time.

    Args:
        path: of the file or folder.
        wanted: the columns to read of a file, in order, from all that it has; may refuse.
        text: names of those that are read even from a broken line of CSV.
        what: which key names the path, for messages.

    Returns:
        The file, and arrow arrays by column; those of CSV hold bytes.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    files = sorted(f for f in path.iterdir() if f.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files or files[0].suffix not in SUFFIXES or not files[0].is_file():
        raise ValueError(
            f"{what} must name a {' or '.join(SUFFIXES)} file that exists, or a folder with some; got {path}."
        )
    for file in files:
        try:
            for batch in _batches(file, partial(wanted, file), text):
                yield file, {name: _whole(batch.column(name)) for name in batch.schema.names}
        except (arrow.ArrowException, OSError) as error:
            raise ValueError(f"{what} must be readable; got {file}: {' '.join(str(error).split())}") from None


def _batches(
    file: Path, wanted: Callable[[list[str]], list[str]], text: Sequence[str]
) -> Iterator[arrow.Table | arrow.RecordBatch]:
    if file.suffix == ".csv":
        yield from csv_batches(file, wanted, text)
        return
    with parquet.ParquetFile(file) as reader:
        names = wanted(reader.schema_arrow.names)
        yield from reader.iter_batches(_BATCH, columns=names, use_threads=False)


def name_columns(path: Path, keys: Sequence[tuple[str, str]], what: str = "path") -> dict[str, list[Any]]:
    """Whole columns of names or texts of a file, or of all files of a folder, as arrays of bytes.

    That of users is as `id_column` gives it.

    Args:
        path: of the file or folder.
        keys: (key of a configuration, name of the column) of each.
        what: which key names the path, for messages.

    Raises:
        ValueError: nothing readable there, or columns that are missing or hold no names.
    """
    parts: dict[str, list[Any]] = {name: [] for _, name in keys}
    users = [name for key, name in keys if key == "user_column"]
    for file, batch in row_batches(path, partial(columns_once, keys), list(parts), what):
        for name, chunks in parts.items():
            place = f"column {name!r} of {file}"
            chunks.append(id_column(batch[name], place) if name in users else bytes_of(batch[name], place))
    return parts


def columns_once(keys: Sequence[tuple[str, str]], place: object, present: Sequence[str]) -> list[str]:
    """Names of columns, each of which is there once and asked for once.

    Args:
        keys: (key of a configuration, name of the column) of each.
        place: where they should be, for messages.
        present: the columns that there are.

    Raises:
        ValueError: one is not.
    """
    wanted = [name for _, name in keys]
    for key, name in keys:
        if present.count(name) != 1:
            raise ValueError(
                f"{key} must name one column of {place}; got {name!r}, which occurs {present.count(name)} "
                f"times among {_shown(present)}."
            )
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"{', '.join(dict(keys))} must be different columns; got {_shown(wanted)}.")
    return wanted


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


def cells_of(column: Any) -> list[str]:
    """Cells as text; "" for a missing one. What is not UTF-8 has signs that stand for that."""
    return [(cell or b"").decode(errors="replace") for cell in written(column).to_pylist()]


def cell_blocks(path: Path, schema: Schema) -> Iterator[dict[str, list[str]]]:
    """All cells of tables as text by column, some rows at a time.

    Raises:
        ValueError: nothing readable there, or columns that are not those of the schema.
    """

    def declared(file: Path, present: list[str]) -> list[str]:
        schema.check_header(present, str(file))
        return list(schema.columns)

    for _, batch in row_batches(path, declared):
        yield {name: cells_of(column) for name, column in batch.items()}


def numbers_of(column: Any) -> NDArray[np.float64]:
    """Numbers from a column of bytes; NaN for what is none. Both ways read the same, the first one fast."""
    try:
        return column.cast(arrow.string()).cast(arrow.float64()).to_numpy(zero_copy_only=False)
    except arrow.ArrowException:
        return numbers_of_cells(cells_of(column))


def is_list(kind: Any) -> bool:
    """Whether cells of an arrow type are lists."""
    tests = (arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _whole(column: Any) -> Any:
    """One array, of chunks or of one."""
    return column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column


def _shown(names: Sequence[str]) -> str:
    """The first few names, for a message of one line."""
    few = ", ".join(" ".join(name.split())[:100] for name in names[:20])
    return f"{few}, … ({len(names)} in all)" if len(names) > 20 else few


def _decoded(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return ""
