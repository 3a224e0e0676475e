"""Features, labels and users from CSV or Parquet, checked row by row and read a part at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as arrow
import pyarrow.csv as csv
import pyarrow.parquet as parquet
from numpy.typing import NDArray

__all__ = ["TableRows", "read_table"]

_BATCH: Final = 65_536
_SUFFIXES: Final = (".csv", ".parquet")


@dataclass(frozen=True)
class TableRows:
    """The rows of one or several files.

    Args:
        features: shape (rows, d), float32, finite.
        labels: rank of each row's label, shape (rows,).
        classes: the labels, in order: as numbers if all of them are whole numbers, else as text.
        owner: rank of each row's user, shape (rows,); zeros if there is no user column.
        users: the users' names, sorted.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    owner: NDArray[np.int64]
    users: tuple[str, ...]


def read_table(path: Path, label: str, features: Sequence[str] = (), user: str = "") -> TableRows:
    """Read a CSV or Parquet file, or all such files of a folder in the order of their names.

    Args:
        path: of the file or folder.
        label: name of the label column; numbers or text.
        features: names of the feature columns, or of a single column of equally long lists of numbers
            (Parquet); none for all columns but label and user.
        user: name of the user column; "" for none.

    Raises:
        ValueError: nothing readable there, a missing column, or a value that is missing, not a number or
            not finite (in float32), naming file and row.
    """
    parts: list[NDArray[np.float32]] = []
    labels: list[Any] = []
    users: list[Any] = []
    for file in _files(path):
        first = 1
        for batch in _batches(file, label, tuple(features), user):
            parts.append(_numbers(file, first, batch, label, user))
            labels.append(_names(file, first, batch, label))
            if user:
                users.append(_names(file, first, batch, user))
            first += batch.num_rows
    if not parts or not sum(len(part) for part in parts):
        raise ValueError(f"path must hold at least one row; got none in {path}.")
    if len({part.shape[1] for part in parts}) > 1:
        raise ValueError(f"feature lists must be equally long in all files and rows of {path}; they are not.")
    classes, ranks = _ranked(labels)
    names, owner = _ranked(users, as_text=True) if users else (("",), np.zeros(len(ranks), dtype=np.int64))
    return TableRows(np.concatenate(parts), ranks, classes, owner, names)


def _files(path: Path) -> list[Path]:
    files = sorted(f for f in path.iterdir() if f.suffix in _SUFFIXES) if path.is_dir() else [path]
    if not files or files[0].suffix not in _SUFFIXES or not files[0].is_file():
        raise ValueError(
            f"path must name a {' or '.join(_SUFFIXES)} file that exists, or a folder with some; got {path}."
        )
    return files


def _batches(file: Path, label: str, features: tuple[str, ...], user: str) -> Iterator[Any]:
    """Record batches: feature columns in the order asked, then label and user."""
    try:
        if file.suffix == ".parquet":
            with parquet.ParquetFile(file) as reader:
                columns = _columns(file, reader.schema_arrow.names, label, features, user)
                yield from reader.iter_batches(_BATCH, columns=columns, use_threads=False)
        else:
            with csv.open_csv(file) as reader:
                columns = _columns(file, reader.schema.names, label, features, user)
            text = [name for name in (label, user) if name]
            types = {name: arrow.string() if name in text else arrow.float64() for name in columns}
            options = csv.ConvertOptions(column_types=types, include_columns=columns)
            with csv.open_csv(file, convert_options=options) as reader:
                yield from reader
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"path must be readable; got {file}: {' '.join(str(error).split())}") from None


def _columns(file: Path, present: list[str], label: str, features: tuple[str, ...], user: str) -> list[str]:
    named = [name for name in (label, user) if name]
    wanted = [*(features or (name for name in present if name not in named)), *named]
    keys = {label: "label_column", user: "user_column"}
    for name in wanted:
        if present.count(name) != 1:
            raise ValueError(
                f"{keys.get(name, 'feature_columns')} must name one column of {file}; got {name!r}, "
                f"which occurs {present.count(name)} times among {', '.join(present)}."
            )
    if len(set(wanted)) < len(wanted) or len(wanted) == len(named):
        raise ValueError(
            "features, label and user must be different columns, at least one of each; got "
            f"{', '.join(wanted)}."
        )
    return wanted


def _numbers(file: Path, first: int, batch: Any, label: str, user: str) -> NDArray[np.float32]:
    columns = [name for name in batch.schema.names if name not in (label, user)]
    parts = []
    for name in columns:
        column = batch.column(batch.schema.get_field_index(name))
        _refuse(file, first, name, column.is_null().to_numpy(zero_copy_only=False), "is missing")
        if _is_list(column.type):
            parts.append(_lists(file, first, name, column))
            continue
        _check_numeric(file, name, column.type)
        parts.append(column.cast(arrow.float64()).to_numpy(zero_copy_only=False)[:, None])
    values = np.concatenate(parts, axis=1)
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(narrow))
    if bad.size:
        row, place = bad[0]
        name = columns[place] if len(columns) == values.shape[1] else columns[0]
        raise ValueError(
            f"{file}, row {first + row}: column {name!r} must be finite; got {values[row, place]}."
        )
    return narrow


def _check_numeric(file: Path, name: str, kind: Any) -> None:
    tests = (arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean)
    if not any(test(kind) for test in tests):
        raise ValueError(f"feature_columns must hold numbers; got column {name!r} of type {kind} in {file}.")


def _is_list(kind: Any) -> bool:
    tests = (arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _lists(file: Path, first: int, name: str, column: Any) -> NDArray[np.float64]:
    values = column.flatten()
    _check_numeric(file, name, values.type)
    lengths = np.diff(column.offsets.to_numpy()) if hasattr(column, "offsets") else None
    if lengths is not None:
        _refuse(
            file, first, name, lengths != lengths[0], f"must have {lengths[0]} numbers like the first row"
        )
    return values.cast(arrow.float64()).to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _names(file: Path, first: int, batch: Any, name: str) -> Any:
    column = batch.column(batch.schema.get_field_index(name))
    kind = column.type
    if arrow.types.is_floating(kind) or arrow.types.is_nested(kind):
        raise ValueError(f"column {name!r} of {file} must hold text or whole numbers; got {kind}.")
    text = column.cast(arrow.string())
    missing = np.array([not value for value in text.to_pylist()], dtype=bool)
    _refuse(file, first, name, missing, "is missing")
    return text


def _refuse(file: Path, first: int, name: str, wrong: NDArray[np.bool_], what: str) -> None:
    if wrong.any():
        raise ValueError(f"{file}, row {first + int(wrong.argmax())}: column {name!r} {what}.")


def _ranked(chunks: list[Any], as_text: bool = False) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The different values in order, and the rank of each row's value."""
    encoded = arrow.chunked_array(chunks).combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    whole = not as_text and all(value.removeprefix("-").isdecimal() for value in values)
    order = sorted(range(len(values)), key=lambda i: (int(values[i]), values[i]) if whole else (0, values[i]))
    rank = np.empty(len(values), dtype=np.int64)
    rank[order] = np.arange(len(values))
    return tuple(values[i] for i in order), rank[encoded.indices.to_numpy()]
