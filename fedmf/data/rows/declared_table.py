"""Rows of tables by a data contract: cells as text, encoded row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow

from fedmf.data.contract import Category, DataContract, Encoding, User
from fedmf.data.rows.table_file import TableRows, row_batches, row_files
from fedmf.data.rows.text_column import TextColumn, bytes_of, written


@dataclass(frozen=True)
class DeclaredColumns:
    """What is read from a table by its contract.

    Args:
        contract: of the table.
        features: names of columns of numbers and categories.
        label: name of the label column, a category; "" for none.
        user: name of the column of users; "" for none.
        users: the users that there are, in order; empty to take them from the rows.
        optional: names of columns that need not be there.

    Raises:
        ValueError: a column that is not declared, or of another kind.
    """

    contract: DataContract
    features: tuple[str, ...]
    label: str = ""
    user: str = ""
    users: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.label:
            self.contract.column(self.label, Category, "label_column")
        if self.user:
            self.contract.column(self.user, User, "user_column")
        if self.label in self.features:
            raise ValueError(f"label_column must be none of the feature columns; got {self.label!r}.")

    @cached_property
    def encoding(self) -> Encoding:
        """How features become coordinates."""
        return self.contract.encoding(self.features)

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels that there are; without a label column one without a name."""
        return self.contract.column(self.label, Category, "label_column").words if self.label else ("",)


def read_declared(path: Path, columns: DeclaredColumns) -> TableRows:
    """Read a CSV or Parquet file, or all such files of a folder, by a contract.

    Args:
        path: of the file or folder.
        columns: what to read.

    Raises:
        ValueError: nothing readable there, or columns that are not those of the contract. No value of a row
            raises.

    Guarantees: a row's features, label and owner depend on that row alone, but for the users' order where
    they are not declared.
    """
    encoding = columns.encoding
    text = [name for name in (columns.label, columns.user) if name]
    features, labels, owners = [], [], []
    for batch in _batches(path, columns.contract, [*encoding.names, *text], text, columns.optional):
        z, valid = encoding.encode([cells_of(batch.column(name)) for name in encoding.names])
        with np.errstate(over="ignore"):  # units so small that float32 holds infinity: no finite number
            features.append(np.where(valid[:, None], z, np.nan).astype(np.float32))
        if columns.label:
            label = columns.contract.column(columns.label, Category, "label_column")
            labels.append(label.places(cells_of(batch.column(columns.label))))
        else:
            labels.append(np.zeros(len(z), dtype=np.int64))
        if columns.user:
            owners.append(bytes_of(_whole(batch.column(columns.user)), f"column {columns.user!r} of {path}"))
    if not sum(map(len, features)):
        raise ValueError(f"path must hold at least one row; got none in {path}.")
    users, owner = ("",), np.zeros(sum(map(len, features)), dtype=np.int64)
    if columns.user:
        user = TextColumn.of(owners)
        users = columns.users or user.ordered(as_numbers=False)
        owner = user.among(users)
    return TableRows(np.concatenate(features), np.concatenate(labels), columns.classes, owner, users)


def cell_blocks(path: Path, contract: DataContract) -> Iterator[dict[str, list[str]]]:
    """All cells of tables as text by column, some rows at a time.

    Raises:
        ValueError: as `read_declared`.
    """
    names = list(contract.columns)
    for batch in _batches(path, contract, names, ()):
        yield {name: cells_of(batch.column(name)) for name in names}


def cells_of(column: Any) -> list[str]:
    """Cells as text; "" for a missing one. What is not UTF-8 has signs that stand for that."""
    return [(cell or b"").decode(errors="replace") for cell in written(column).to_pylist()]


def _batches(
    path: Path,
    contract: DataContract,
    names: Sequence[str],
    text: Sequence[str],
    optional: Sequence[str] = (),
) -> Iterator[Any]:
    for file in row_files(path):
        yield from row_batches(file, partial(_checked, contract, file, names, optional), text)


def _checked(
    contract: DataContract, file: Path, names: Sequence[str], optional: Sequence[str], present: list[str]
) -> list[str]:
    contract.check_header(present, str(file), optional)
    return list(names)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
