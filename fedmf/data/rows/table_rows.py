"""Features, labels and users from tables; what stands in a row decides only that row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute
from numpy.typing import NDArray

from fedmf.data.rows.cells import (
    TextColumn,
    bytes_of,
    cells_of,
    columns_once,
    is_list,
    numbers_of,
    row_batches,
)
from fedmf.data.schema import Category, Encoding, Schema, User
from fedmf.data.user_ids import id_column


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
        schema: by which features are scaled and coded, and which says what labels there are.
        optional: names of columns that need not be there, though the schema declares them.

    Raises:
        ValueError: a column that a schema does not declare, or of another kind.
    """

    label: str
    features: tuple[str, ...] = ()
    user: str = ""
    classes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    width: int = 0
    schema: Schema | None = None
    optional: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.schema is None:
            return
        if self.label:
            categories = self.schema.column(self.label, Category, "label_column").categories
            object.__setattr__(self, "classes", categories)
        if self.user:
            self.schema.column(self.user, User, "user_column")
        if self.label in self.features:
            raise ValueError(f"label_column must be none of the feature columns; got {self.label!r}.")

    @property
    def text(self) -> list[str]:
        """Columns of names: label and, if there is one, user."""
        return [name for name in (self.label, self.user) if name]

    @cached_property
    def encoding(self) -> Encoding | None:
        """How features become coordinates by the schema."""
        return self.schema and self.schema.encoding(self.features)

    def among(self, file: Path, present: list[str]) -> list[str]:
        """Feature columns in the order asked, then label and user.

        Raises:
            ValueError: a column that is not there, or is there twice.
        """
        if self.schema:
            self.schema.check_header(present, str(file), self.optional)
            return [*self.features, *self.text]
        features = self.features or tuple(name for name in present if name not in self.text)
        keys = [("feature_columns", name) for name in features]
        keys += [(key, name) for key, name in self._named if name]
        wanted = columns_once(keys, file, present)
        if not features:
            raise ValueError(f"feature_columns must be others than label and user; got none in {file}.")
        return wanted

    @property
    def _named(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return ("label_column", self.label), ("user_column", self.user)


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

    @property
    def readable(self) -> NDArray[np.bool_]:
        """Which rows have a label and features, shape (rows,)."""
        return (self.labels >= 0) & np.isfinite(self.features).all(axis=1)


def read_table(path: Path, columns: TableColumns) -> TableRows:
    """Read a CSV or Parquet file, or all such files of a folder in the order of their names.

    Args:
        path: of the file or folder.
        columns: what to read.

    Raises:
        ValueError: nothing readable there, columns that are missing, not those of the schema, or of a type
            that holds no numbers or no names. No value of a row raises.

    Guarantees: with classes, users and width declared, a row's features, label and owner depend on that row
    alone, but for files that cannot be read at all.
    """
    reader = _Reader(columns, columns.width)
    for file, batch in row_batches(path, reader.among, columns.text):
        reader.add(file, batch)
    return reader.rows(path)


@dataclass
class _Reader:
    """Parts of rows as they come."""

    columns: TableColumns
    width: int
    #: Names of the feature columns of the first file, where none are declared.
    names: list[str] = field(default_factory=list)
    features: list[NDArray[np.float32]] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    users: list[Any] = field(default_factory=list)

    def among(self, file: Path, present: list[str]) -> list[str]:
        """`TableColumns.among`, in the order of the first file."""
        wanted, declared = self.columns.among(file, present), self.columns
        if declared.features or declared.schema:
            return wanted
        names = wanted[: len(wanted) - len(declared.text)]
        self.names = self.names or names
        if sorted(names) != sorted(self.names):
            raise ValueError(
                f"feature_columns must be the same in all files, {', '.join(self.names)[:200]}; got "
                f"{', '.join(names)[:200]} in {file}."
            )
        return [*self.names, *declared.text]

    def add(self, file: Path, batch: dict[str, Any]) -> None:
        wanted, encoding = self.columns, self.columns.encoding
        if encoding:
            z, valid = encoding.encode([cells_of(batch[name]) for name in encoding.names])
            parts = [np.where(valid[:, None], z, np.nan)]
        else:
            names = [name for name in batch if name not in wanted.text]
            parts = [self._numbers(file, name, batch[name], len(names)) for name in names]
        with np.errstate(over="ignore", invalid="ignore"):  # beyond float32: no finite number
            narrow = np.concatenate(parts, axis=1).astype(np.float32)
        narrow[~np.isfinite(narrow).all(axis=1)] = np.nan
        self.features.append(narrow)
        if wanted.label and wanted.schema:
            declared = wanted.schema.column(wanted.label, Category, "label_column")
            self.labels.append(declared.places(cells_of(batch[wanted.label])))
        elif wanted.label:
            self.labels.append(bytes_of(batch[wanted.label], f"column {wanted.label!r} of {file}"))
        if wanted.user:
            self.users.append(id_column(batch[wanted.user], f"column {wanted.user!r} of {file}"))

    def _numbers(self, file: Path, name: str, column: Any, columns: int) -> NDArray[np.float64]:
        """One column, shape (rows, 1), or (rows, width) for lists; NaN where there is no number."""
        kind = column.type
        if arrow.types.is_binary(kind) and file.suffix == ".csv":
            return numbers_of(column)[:, None]
        if not is_list(kind):
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
        count = sum(map(len, self.features))
        if not count:
            raise ValueError(f"path must hold at least one row; got none in {path}.")
        if len({part.shape[1] for part in self.features}) > 1:
            raise ValueError(f"files of {path} must have equally many features; they do not.")
        if wanted.label and wanted.schema:
            classes, labels = wanted.classes, np.concatenate(self.labels)
        else:
            classes, labels = _places(self.labels, wanted.classes, count, as_numbers=True)
        users, owner = _places(self.users, wanted.users, count, as_numbers=False)
        return TableRows(np.concatenate(self.features), labels, classes, owner, users)


def _places(
    chunks: Sequence[Any], known: tuple[str, ...], rows: int, as_numbers: bool
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names that there are, and which of them each row has; one without a name if there is no column."""
    column = TextColumn.of(chunks) if chunks else TextColumn.without_names(rows)
    names = (known if chunks else ()) or column.ordered(as_numbers)
    return names, column.among(names)


def _check_numeric(file: Path, name: str, kind: Any) -> None:
    tests = (arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean)
    if not any(test(kind) for test in tests):
        raise ValueError(f"feature_columns must hold numbers; got column {name!r} of type {kind} in {file}.")
