"""Your own rows, one example each: classes, numbers or texts, in CSV, Parquet or .txt files."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import pyarrow as arrow
import torch
from numpy.typing import NDArray

from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import PublicInput, in_words
from fedmf.data.rows.cells import name_columns
from fedmf.data.rows.labelled_rows import SchemaRows, check_names
from fedmf.data.rows.table_rows import TableColumns, TableRows, read_table
from fedmf.data.rows.texts import TXT_FILES, TextRows
from fedmf.data.schema import Category, Encoded, Schema
from fedmf.data.user_ids import id_column
from fedmf.values import Field

_log = logging.getLogger("fedmf")
_BY_CLASS: Final = ("dirichlet", "shards")


@dataclass(frozen=True)
class Table(SchemaRows, TextRows):
    """Rows of a CSV or Parquet file, or of all such files of a folder, spread over users; also .txt files.

    Labels are classes (``label_column``), or numbers (``label_columns``), or what follows in a text
    (``text_column``). Without feature columns all but label and user are features. A row of which a feature
    or the label is missing or cannot be read counts for nobody; its user's other rows are used.
    By a schema numbers as labels are scaled like features; a category with two values is a label, 1 for
    the second.

    Args:
        user_column: name of the column that says whose row it is; empty for none. In a folder of .txt files
            each file, or each subfolder with all files in it, is a user by its name.
        label_column: name of the label column; empty for ``label``, or beside a column of texts or labels
            that are numbers for none.
        label_columns: names of columns of labels that are numbers: one for regression, several of 0 and 1
            for several labels an example; empty for classes.
        text_column: name of the column of texts, whose tokens are the features; ``*.txt`` for a folder of
            such files; empty for none. A line of CSV ends at a line feed, quoted or not: texts of several
            lines need Parquet.

    >>> Table(path="rows.csv", hold_out="users")
    Traceback (most recent call last):
    ValueError: user_column must be named with hold_out 'users'; got none.
    >>> Table(path="rows.csv").label_column, Table(path="rows.csv", text_column="body").label_column
    ('label', '')
    """

    kind: ClassVar[str] = "table"
    label_column: Annotated[
        str, Field("name of the label column; none beside texts or numbers as labels")
    ] = ""
    label_columns: Annotated[
        tuple[str, ...], Field("names of columns of numbers as labels: for regression, or several of 0 and 1")
    ] = ()

    def __post_init__(self) -> None:
        if self.text_column == TXT_FILES and not self.user_column:
            object.__setattr__(self, "user_column", "user")
        super().__post_init__()
        check_names("label_columns", self.label_columns)
        if self.label_columns and (self.text_column or self.label_column or self.class_names):
            raise ValueError(
                "label_columns must be left out with text_column, label_column or class_names: labels are "
                f"numbers, or classes; got {', '.join(self.label_columns)}."
            )
        if self.label_columns and not (self.feature_columns or self.schema):
            raise ValueError("feature_columns (of the data) must be named with label_columns; got none.")
        if self.label_columns and self.partition in _BY_CLASS:
            raise ValueError(
                "partition must not be one by classes with label_columns, which are none; got "
                f"{self.partition!r}."
            )
        unread = [name for name in ("feature_columns", "input_shape", "schema") if getattr(self, name)]
        if self.text_column and unread:
            raise ValueError(f"{unread[0]} must be left out with text_column, whose tokens are the features.")

    @property
    def unlabelled(self) -> bool:
        """See `LabelledRows.unlabelled`."""
        return super().unlabelled or bool(self.label_columns)

    def declared(self) -> dict[str, bool]:
        """See `RowOptions.declared`."""
        return {} if self.schema or self.label_columns else super().declared()

    def example_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.example_inputs`."""
        if not self.label_columns:
            return super().example_inputs()
        _, shape, normalisation = super().example_inputs()
        names = ", ".join(self.label_columns)
        if self.schema:
            return PublicInput("labels", names, shape.source), shape, normalisation
        shape = in_words(self.input_shape or (len(self.feature_columns),))
        return (
            PublicInput("labels", names, "declared: label_columns"),
            PublicInput("shape of an example", shape, "declared: columns and input_shape"),
            normalisation,
        )

    def first_lines(self) -> list[str]:
        """What is said before anything is read; the same whatever the rows hold."""
        lines = []
        if not self.text_column:
            lines.append(f"{self.path}: a row with a cell that is missing or cannot be read is left out.")
            if not self.schema:
                lines.append(
                    "Numbers are features as they are: columns of different size need a scale each, which a "
                    "schema says (data.schema, fedmf schema)."
                )
        if self.user_column and self.partition not in ("natural", "each-example"):
            lines.append(
                f"Users are made up (partition {self.partition!r}): rows of one person in column "
                f"{self.user_column!r} are spread over several, and what is protected is no person. Persons "
                "are users with partition 'natural'."
            )
        return lines

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`; of one column of numbers as labels these have shape (examples,).

        Raises:
            ValueError: the rows cannot be read, fewer than two classes, an input_shape that does not fit, the
                fraction holds out too little or too much, or no row held out can be read.
        """
        if lines := self.first_lines():
            _log.warning(" ".join(lines))
        path = Path(self.path).expanduser()
        if self.text_column:
            return self.dataset_of_texts(
                _text_files(path, dict(self.columns_of_texts))
                if self.text_column == TXT_FILES
                else name_columns(path, self.columns_of_texts)
            )
        users = self.users_on_roster(self.holds_out_users)
        schema = self.read_schema() if self.schema else None
        rows, labels = self._declared(path, schema, users) if schema else self._plain(path, users)
        return self.dataset_of(rows, labels)

    def dataset_of(self, rows: TableRows, labels: NDArray[Any]) -> InMemoryDataset:
        """Spread rows that were read over users and hold some out.

        Args:
            rows: with their users.
            labels: of each row.
        """
        if not self.label_columns and len(rows.classes) < 2:
            raise ValueError(f"label_column must hold at least two labels; got {', '.join(rows.classes)}.")
        rng = np.random.default_rng([self.seed, 0x7AB2 if self.label_columns else 0x7AB1])
        dealt = self.dealt(rows.owner, rows.users, rows.labels, rng)
        valid = rows.readable & np.isfinite(labels).reshape(len(labels), -1).all(axis=1)
        tests = np.flatnonzero(dealt.tests & valid)
        if not tests.size:
            among = f"one of class_names ({', '.join(rows.classes[:20])})"
            label = "a finite number" if self.label_columns else among
            raise ValueError(
                f"test part must hold a row whose user is on the roster, whose label is {label} and whose "
                f"features can be read; got none of {self.path}. Are ids and labels written as they are "
                "declared, and numbers with a decimal point?"
            )
        dataset = InMemoryDataset(
            features=torch.from_numpy(rows.features),
            labels=torch.from_numpy(labels),
            owned=dealt.owned.keeping(valid),
            user_ids=dealt.user_ids,
            test_features=torch.from_numpy(rows.features[tests]),
            test_labels=torch.from_numpy(labels[tests]),
            classes=0 if self.label_columns else len(rows.classes),
            test_owner=self.test_owner,
        )
        return dataset.reshaped(self.input_shape) if self.input_shape else dataset

    def _plain(self, path: Path, users: tuple[str, ...]) -> tuple[TableRows, NDArray[Any]]:
        """Rows and labels, numbers as they are."""
        columns = TableColumns(
            label=self.label_column,
            features=(*self.feature_columns, *self.label_columns),
            user=self.user_column,
            classes=self.classes,
            users=users,
            width=math.prod(self.input_shape) if self.input_shape else 0,
        )
        rows = read_table(path, columns)
        if not self.label_columns:
            return rows, rows.labels
        return self._split(rows, len(self.feature_columns), slice(len(self.feature_columns), None))

    def _declared(self, path: Path, schema: Schema, users: tuple[str, ...]) -> tuple[TableRows, NDArray[Any]]:
        """Rows and labels by the schema: of each column of labels the last coordinate."""
        declared = self.declared_labels(schema)
        names = self.features_of(schema, (self.label_column, *self.label_columns))
        if shared := [name for name in self.label_columns if name in names]:
            raise ValueError(f"label_columns must be none of the feature columns; got {shared[0]!r}.")
        columns = TableColumns(
            self.label_column, (*names, *self.label_columns), self.user_column, users=users, schema=schema
        )
        self.check_categories(columns.classes)
        rows = read_table(path, columns)
        if not self.label_columns:
            return rows, rows.labels
        width = schema.encoding(names).dimension
        return self._split(rows, width, width + np.cumsum([len(one.endings) for one in declared]) - 1)

    def _split(self, rows: TableRows, width: int, labels: Any) -> tuple[TableRows, NDArray[Any]]:
        """The first columns as features, others as labels."""
        chosen = rows.features[:, labels].copy()
        features = rows.features[:, :width].copy()
        return replace(rows, features=features), chosen[:, 0] if len(self.label_columns) == 1 else chosen

    def declared_labels(self, schema: Schema) -> list[Encoded]:
        """What is declared of columns of labels that are numbers.

        Raises:
            ValueError: one is neither a number nor a category with two values.
        """
        labels = [schema.column(name, Encoded, "label_columns") for name in self.label_columns]
        for name, column in zip(self.label_columns, labels, strict=True):
            if isinstance(column, Category) and len(column.categories) > 2:
                raise ValueError(
                    "label_columns must be numbers or categories with two values; got "
                    f"{name!r} of {len(column.categories)} values."
                )
        return labels

    def check_labels_of_0_or_1(self) -> None:
        """Whether the schema, if there is one, leaves no labels but 0 and 1, whatever the rows hold.

        Raises:
            ValueError: a label column is no category with two values.
        """
        labels = self.declared_labels(self.read_schema()) if self.schema else []
        for name, column in zip(self.label_columns, labels, strict=False):
            if not isinstance(column, Category):
                raise ValueError(
                    "label_columns must be categories with two values for labels of 0 or 1 by a schema; got "
                    f"{name!r}, a column of kind {column.kind!r}."
                )


def _text_files(path: Path, keys: dict[str, str]) -> dict[str, list[Any]]:
    """The ``.txt`` files of a folder as columns of users and texts, in the order of their paths.

    A file, or all files of a subfolder, are the texts of one user, by the name of the file without its ending
    or of the subfolder. A file that cannot be read is an empty text.

    Raises:
        ValueError: no such folder, or no such file in it.
    """
    owned: list[tuple[str, Path]] = []
    for entry in sorted(path.iterdir()) if path.is_dir() else ():
        if entry.is_dir():
            owned += ((entry.name, file) for file in sorted(entry.rglob("*.txt")))
        elif entry.suffix == ".txt":
            owned.append((entry.stem, entry))
    if not owned:
        raise ValueError(f"path must name a folder with .txt files, or folders of them; got {path}.")
    columns = {
        keys["text_column"]: [_content(file) for _, file in owned],
        keys.get("user_column", ""): [name.encode("utf-8", "surrogateescape") for name, _ in owned],
    }
    arrays = {name: arrow.array(cells, arrow.large_binary()) for name, cells in columns.items()}
    user = keys.get("user_column", "")
    return {name: [id_column(cells, name) if name == user else cells] for name, cells in arrays.items()}


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
