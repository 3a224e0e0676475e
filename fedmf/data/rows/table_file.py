"""Features, labels and users from CSV or Parquet; what stands in a row decides only that row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from fedmf.data.rows.csv_lines import csv_batches
from fedmf.data.rows.text_column import TextColumn, bytes_of

_BATCH: Final = 65_536
_SUFFIXES: Final = (".csv", ".parquet")


@dataclass(frozen=True)
class TableColumns:
    """What is read from a table, and what is declared about it.

    Args:
        label: name of the label column; numbers or text; "" for none.
        features: names of the feature columns, or of a single column of equally long lists of numbers
            (Parquet); none for all columns but label and user.
        user: name of the user column; "" for none.
        classes: the labels that there are, in order; empty to take them from the rows.
        users: the users that there are, in order; empty to take them from the rows.
        width: how many numbers a list must have; 0 for as many as the first.
    """

    label: str
    features: tuple[str, ...] = ()
    user: str = ""
    classes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    width: int = 0

    @property
    def text(self) -> list[str]:
        """Columns of names: label and, if there is one, user."""
        return [name for name in (self.label, self.user) if name]

    def among(self, file: Path, present: list[str]) -> list[str]:
        """Feature columns in the order asked, then label and user.

        Raises:
            ValueError: a column that is not there, or is there twice.
        """
        wanted = [*(self.features or (name for name in present if name not in self.text)), *self.text]
        keys = {self.label: "label_column", self.user: "user_column"}
        times = Counter(present)
        for name in wanted:
            if times[name] != 1:
                raise ValueError(
                    f"{keys.get(name, 'feature_columns')} must name one column of {file}; got {name!r}, "
                    f"which occurs {times[name]} times among {_shown(present)}."
                )
        if len(set(wanted)) < len(wanted) or len(wanted) == len(self.text):
            raise ValueError(
                "features, label and user must be different columns, at least one of each; got "
                f"{_shown(wanted)}."
            )
        return wanted


@dataclass(frozen=True)
class TableRows:
    """The rows of one or several files.

    Args:
        features: shape (rows, d), float32; all NaN in a row in which any was missing, not a number, not
            finite or one of another number of them.
        labels: place of each row's label among the classes, shape (rows,); −1 for one that is missing or
            none of them; zeros if there is no label column.
        classes: the labels, in order: as declared or else sorted, as numbers if all are whole numbers.
        owner: place of each row's user among the users, shape (rows,); −1 for one that is missing or none of
            them; zeros if there is no user column.
        users: the users' names: as declared or else sorted.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    owner: NDArray[np.int64]
    users: tuple[str, ...]


@dataclass
class _Reader:
    """Parts of rows as they come."""

    columns: TableColumns
    width: int
    features: list[NDArray[np.float32]] = field(default_factory=list)
    text: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, file: Path, batch: Any) -> None:
        names = [name for name in batch.schema.names if name not in self.columns.text]
        parts = [self._numbers(file, name, _whole(batch.column(name)), len(names)) for name in names]
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = np.concatenate(parts, axis=1).astype(np.float32)
        narrow[~np.isfinite(narrow).all(axis=1)] = np.nan
        self.features.append(narrow)
        for name in self.columns.text:
            column = bytes_of(_whole(batch.column(name)), f"column {name!r} of {file}")
            self.text.setdefault(name, []).append(column)

    def _numbers(self, file: Path, name: str, column: Any, columns: int) -> NDArray[np.float64]:
        """One column, shape (rows, 1), or (rows, width) for lists; NaN where there is no number."""
        kind = column.type
        if arrow.types.is_binary(kind) and file.suffix == ".csv":
            return _parsed(column)[:, None]
        if not _is_list(kind):
            _check_numeric(file, name, kind)
            return column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)[:, None]
        _check_numeric(file, name, kind.value_type)
        if columns > 1:
            raise ValueError(
                f"feature_columns must be columns of numbers or one column of lists; got lists in {name!r}, "
                f"one of {columns} columns of {file}."
            )
        lengths = (
            compute.call_function("list_value_length", [column]).fill_null(-1).to_numpy(zero_copy_only=False)
        )
        self.width = self.width or max(1, int(next((length for length in lengths if length > 0), 1)))
        rows = np.full((len(column), self.width), np.nan)
        right = lengths == self.width
        values = column.filter(arrow.array(right)).flatten().cast(arrow.float64(), safe=False)
        rows[right] = values.to_numpy(zero_copy_only=False).reshape(-1, self.width)
        return rows

    def rows(self, path: Path) -> TableRows:
        wanted = self.columns
        if not sum(map(len, self.features)):
            raise ValueError(f"path must hold at least one row; got none in {path}.")
        if len({part.shape[1] for part in self.features}) > 1:
            raise ValueError(f"files of {path} must have equally many features; they do not.")
        features = np.concatenate(self.features)
        classes, labels = ("",), np.zeros(len(features), dtype=np.int64)
        users, owner = ("",), np.zeros(len(features), dtype=np.int64)
        if wanted.label:
            label = TextColumn.of(self.text[wanted.label])
            classes = wanted.classes or label.ordered(as_numbers=True)
            labels = label.among(classes)
        if wanted.user:
            user = TextColumn.of(self.text[wanted.user])
            users = wanted.users or user.ordered(as_numbers=False)
            owner = user.among(users)
        return TableRows(features, labels, classes, owner, users)


def read_table(path: Path, columns: TableColumns) -> TableRows:
    """Read a CSV or Parquet file, or all such files of a folder in the order of their names.

    Args:
        path: of the file or folder.
        columns: what to read.

    Raises:
        ValueError: nothing readable there, a missing column, or one of a type that holds no numbers or no
            names. No value of a row raises.

    Guarantees: with classes, users and width declared, a row's features, label and owner depend on that row
    alone, but for files that cannot be read at all.
    """
    reader = _Reader(columns, columns.width)
    for file in row_files(path):
        for batch in row_batches(file, partial(columns.among, file), columns.text):
            reader.add(file, batch)
    return reader.rows(path)


def row_files(path: Path) -> Sequence[Path]:
    """The CSV or Parquet file, or all such files of a folder in the order of their names.

    Raises:
        ValueError: there is none.
    """
    files = sorted(f for f in path.iterdir() if f.suffix in _SUFFIXES) if path.is_dir() else [path]
    if not files or files[0].suffix not in _SUFFIXES or not files[0].is_file():
        raise ValueError(
            f"path must name a {' or '.join(_SUFFIXES)} file that exists, or a folder with some; got {path}."
        )
    return files


def row_batches(file: Path, wanted: Callable[[list[str]], list[str]], text: Sequence[str]) -> Iterator[Any]:
    """The rows of a file, some at a time, as arrow tables or batches; columns of CSV hold bytes.

    Args:
        file: CSV or Parquet.
        wanted: the columns to read, in order, from all that there are; may refuse.
        text: names of those that are read even from a broken line of CSV.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        if file.suffix == ".csv":
            yield from csv_batches(file, wanted, text)
        else:
            with parquet.ParquetFile(file) as reader:
                names = wanted(reader.schema_arrow.names)
                yield from reader.iter_batches(_BATCH, columns=names, use_threads=False)
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"path must be readable; got {file}: {' '.join(str(error).split())}") from None


def _shown(names: Sequence[str]) -> str:
    """The first few names, for a message of one line."""
    few = ", ".join(" ".join(name.split())[:100] for name in names[:20])
    more = f", … ({len(names)} in all)"
    return few + more if len(names) > 20 else few


def _whole(column: Any) -> Any:
    """One array, of chunks or of one."""
    return column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column


def _parsed(column: Any) -> NDArray[np.float64]:
    """Numbers from text; NaN for what is none. Both ways read the same numbers, the first one fast."""
    try:
        return column.cast(arrow.string()).cast(arrow.float64()).to_numpy(zero_copy_only=False)
    except arrow.ArrowException:
        return np.array([_number(value) for value in column.to_pylist()], dtype=np.float64)


def _number(text: bytes | None) -> float:
    try:
        return float("nan") if text is None or b"_" in text else float(text)
    except ValueError:
        return float("nan")


def _check_numeric(file: Path, name: str, kind: Any) -> None:
    tests = (arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean)
    if not any(test(kind) for test in tests):
        raise ValueError(f"feature_columns must hold numbers; got column {name!r} of type {kind} in {file}.")


def _is_list(kind: Any) -> bool:
    tests = (arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list)
    return any(test(kind) for test in tests)
