"""Your own examples, one a row, with numbers as labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.contract import Category, DataContract, Encoded
from fedmf.data.memory import InMemoryDataset
from fedmf.data.public_input import PublicInput, in_words
from fedmf.data.rows.contract_options import ContractOptions
from fedmf.data.rows.declared_table import DeclaredColumns, read_declared
from fedmf.data.rows.labelled_rows import check_names
from fedmf.data.rows.table_file import TableColumns, TableRows, read_table
from fedmf.values import check_sizes

_BY_CLASS = ("dirichlet", "shards")


@dataclass(frozen=True)
class NumberTable(ContractOptions):
    """Rows of CSV or Parquet whose labels are numbers: for regression, or several labels of 0 or 1.

    A row in which a feature or a label is no finite number counts for nobody; its user's other rows are used.
    By a data contract labels are scaled like features; a category of two words is a label, 1 for the second.

    Args:
        feature_columns: names of the feature columns, one number each; with a data contract also categories,
            empty for all but labels.
        label_columns: names of the label columns, one number each.
        input_shape: of one example, channels first; empty: a vector of the feature columns.

    >>> NumberTable(path="rows.csv", feature_columns=("a", "b"), label_columns=("y",)).label_columns
    ('y',)
    """

    kind: ClassVar[str] = "number-table"
    label_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes("input_shape", self.input_shape)
        for name in ("feature_columns", "label_columns"):
            check_names(name, getattr(self, name))
            if not getattr(self, name) and not (self.contract and name == "feature_columns"):
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
        if self.contract:
            return self.contract_inputs("labels", ", ".join(self.label_columns))
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
        rows, labels = self._declared_rows(users) if self.contract else self._plain_rows(users)
        dealt = self.dealt(rows.owner, rows.users, rows.labels, np.random.default_rng([self.seed, 0x7AB2]))
        both = np.column_stack([rows.features, labels])
        valid: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(both), axis=1)
        tests = np.flatnonzero(dealt.tests & valid)
        if not tests.size:
            raise ValueError(
                "test part must hold a row in which all features and labels are finite numbers; got none of "
                f"{self.path}. Are they written with a decimal point?"
            )
        features = rows.features
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

    def _plain_rows(self, users: tuple[str, ...]) -> tuple[TableRows, NDArray[np.float32]]:
        """Rows and labels, numbers as they are."""
        names = (*self.feature_columns, *self.label_columns)
        columns = TableColumns("", names, self.user_column, users=users)
        rows = read_table(Path(self.path).expanduser(), columns)
        features, labels = np.split(rows.features, [len(self.feature_columns)], axis=1)
        return replace(rows, features=features), labels

    def _declared_rows(self, users: tuple[str, ...]) -> tuple[TableRows, NDArray[np.float32]]:
        """Rows and labels by the contract: of each label column the last coordinate."""
        contract = self.data_contract()
        declared = self._declared_labels(contract)
        names = self.features_of(contract, self.label_columns)
        if shared := [name for name in self.label_columns if name in names]:
            raise ValueError(f"label_columns must be none of the feature columns; got {shared[0]!r}.")
        columns = DeclaredColumns(contract, (*names, *self.label_columns), user=self.user_column, users=users)
        rows = read_declared(Path(self.path).expanduser(), columns)
        width = contract.encoding(names).dimension
        last = width + np.cumsum([len(column.endings) for column in declared]) - 1
        return replace(rows, features=rows.features[:, :width]), rows.features[:, last]

    def _declared_labels(self, contract: DataContract) -> list[Encoded]:
        """What is declared of the label columns.

        Raises:
            ValueError: one is neither a number nor a category of two words.
        """
        labels = [contract.column(name, Encoded, "label_columns") for name in self.label_columns]
        for name, column in zip(self.label_columns, labels, strict=True):
            if isinstance(column, Category) and len(column.words) > 2:
                raise ValueError(
                    "label_columns must be numbers or categories of two words; got "
                    f"{name!r} of {len(column.words)} words."
                )
        return labels

    def check_labels_of_0_or_1(self) -> None:
        """Whether the contract, if there is one, leaves no labels but 0 and 1, whatever the rows hold.

        Raises:
            ValueError: a label column is no category of two words.
        """
        if not self.contract:
            return
        labels = self._declared_labels(self.data_contract())
        for name, column in zip(self.label_columns, labels, strict=True):
            if not isinstance(column, Category):
                raise ValueError(
                    "label_columns must be categories of two words for labels of 0 or 1 by a contract; got "
                    f"{name!r}, a column of kind {column.kind!r}."
                )
