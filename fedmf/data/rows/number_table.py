"""Your own examples, one a row, with numbers as labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.memory import InMemoryDataset
from fedmf.data.public_input import PublicInput, in_words
from fedmf.data.rows.labelled_rows import check_names
from fedmf.data.rows.row_options import RowOptions
from fedmf.data.rows.table_file import TableColumns, read_table
from fedmf.values import check_sizes

_BY_CLASS = ("dirichlet", "shards")


@dataclass(frozen=True)
class NumberTable(RowOptions):
    """Rows of CSV or Parquet whose labels are numbers: for regression, or several labels of 0 or 1.

    A row in which a feature or a label is no finite number counts for nobody; its user's other rows are used.

    Args:
        feature_columns: names of the feature columns, one number each.
        label_columns: names of the label columns, one number each.
        input_shape: of one example, channels first; empty: a vector of the feature columns.

    >>> NumberTable(path="rows.csv", feature_columns=("a", "b"), label_columns=("y",)).label_columns
    ('y',)
    """

    kind: ClassVar[str] = "number-table"
    feature_columns: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()
    input_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes("input_shape", self.input_shape)
        for name in ("feature_columns", "label_columns"):
            check_names(name, getattr(self, name))
            if not getattr(self, name):
                raise ValueError(f"{name} (of the data) must be named with dataset {self.kind!r}; got none.")
        if self.partition in _BY_CLASS:
            raise ValueError(
                f"partition must not be one by classes with dataset {self.kind!r}, which has none; got "
                f"{self.partition!r}."
            )

    def declared(self) -> dict[str, bool]:
        """See `RowOptions.declared`: the columns always are."""
        return {}

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        shape = self.input_shape or (len(self.feature_columns),)
        return (
            PublicInput("labels", ", ".join(self.label_columns), "declared: label_columns"),
            PublicInput("shape of an example", in_words(shape), "declared: columns and input_shape"),
            PublicInput(
                "normalisation",
                "numbers as they are, in float32",
                "fixed by the reader; no statistic of the rows",
            ),
        )

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`; of one label column the labels have shape (examples,)."""
        users = self.users_on_roster(self.holds_out_users)
        columns = TableColumns(
            "", (*self.feature_columns, *self.label_columns), self.user_column, users=users
        )
        rows = read_table(Path(self.path).expanduser(), columns)
        dealt = self.dealt(rows.owner, rows.users, rows.labels, np.random.default_rng([self.seed, 0x7AB2]))
        valid: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(rows.features), axis=1)
        tests = np.flatnonzero(dealt.tests & valid)
        if not tests.size:
            raise ValueError(
                "test part must hold a row in which all features and labels are finite numbers; got none of "
                f"{self.path}. Are they written with a decimal point?"
            )
        features, labels = np.split(rows.features, [len(self.feature_columns)], axis=1)
        if len(self.label_columns) == 1:
            labels = labels[:, 0]
        dataset = InMemoryDataset(
            features=torch.from_numpy(features.copy()),
            labels=torch.from_numpy(labels.copy()),
            owned=dealt.owned.keeping(valid),
            user_ids=dealt.user_ids,
            test_features=torch.from_numpy(features[tests]),
            test_labels=torch.from_numpy(labels[tests]),
            test_owner=self.test_owner,
        )
        return dataset.reshaped(self.input_shape) if self.input_shape else dataset
