"""Your own examples, one a row."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedmf.data.memory import InMemoryDataset
from fedmf.data.public_input import PublicInput
from fedmf.data.rows.contract_options import ContractOptions
from fedmf.data.rows.declared_table import DeclaredColumns, read_declared
from fedmf.data.rows.labelled_rows import LabelledRows
from fedmf.data.rows.table_file import TableColumns, TableRows, read_table

_log = logging.getLogger("fedmf")


@dataclass(frozen=True)
class Table(ContractOptions, LabelledRows):
    """Rows of a CSV or Parquet file, or of all such files of a folder (`read_table`), spread over users.

    Without feature columns all but label and user are features. A row of which a feature or the label is
    missing or cannot be read counts for nobody; its user's other rows are used.

    >>> Table(path="rows.csv", hold_out="users")
    Traceback (most recent call last):
    ValueError: user_column must be named with hold_out 'users'; got none.
    """

    kind: ClassVar[str] = "table"

    def declared(self) -> dict[str, bool]:
        """See `RowOptions.declared`."""
        return {} if self.contract else super().declared()

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        if not self.contract:
            return super().example_inputs()
        return self.contract_inputs("classes", f"words of column {self.label_column}")

    def first_lines(self) -> list[str]:
        """What is said before anything is read; the same whatever the rows hold."""
        lines = [f"{self.path}: a row with a cell that is missing or cannot be read is left out."]
        if not self.contract:
            lines.append(
                "Numbers are features as they are: columns of different size need a unit each, which a "
                "contract says (data.contract, fedmf contract)."
            )
        if self.user_column and self.partition not in ("natural", "each-example"):
            lines.append(
                f"Users are made up (partition {self.partition!r}): rows of one person in column "
                f"{self.user_column!r} are spread over several, and what is protected is no person. Persons "
                "are users with partition 'natural'."
            )
        return lines

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`."""
        _log.warning(" ".join(self.first_lines()))
        users = self.users_on_roster(self.holds_out_users)
        if self.contract:
            contract = self.data_contract()
            features = self.features_of(contract, (self.label_column,))
            declared = DeclaredColumns(contract, features, self.label_column, self.user_column, users)
            self.check_words(declared.classes)
            return self.dataset_of(read_declared(Path(self.path).expanduser(), declared))
        columns = TableColumns(
            label=self.label_column,
            features=self.feature_columns,
            user=self.user_column,
            classes=self.classes,
            users=users,
            width=math.prod(self.input_shape) if self.input_shape else 0,
        )
        return self.dataset_of(read_table(Path(self.path).expanduser(), columns))

    def dataset_of(self, rows: TableRows) -> InMemoryDataset:
        """Spread rows that were read over users and hold some out.

        Raises:
            ValueError: fewer than two labels, an input_shape that does not fit, the fraction holds out too
                little or too much, or no row held out can be read.
        """
        if len(rows.classes) < 2:
            raise ValueError(f"label_column must hold at least two labels; got {', '.join(rows.classes)}.")
        rng = np.random.default_rng([self.seed, 0x7AB1])
        dealt = self.dealt(rows.owner, rows.users, rows.labels, rng)
        valid = (rows.labels >= 0) & np.isfinite(rows.features).all(axis=1)
        tests = np.flatnonzero(dealt.tests & valid)
        if not tests.size:
            raise ValueError(
                "test part must hold a row whose user is on the roster, whose label is one of class_names "
                f"({', '.join(rows.classes[:20])}) and whose features can be read; got none of {self.path}. "
                "Are ids and labels written as they are declared, and numbers with a decimal point?"
            )
        dataset = InMemoryDataset(
            features=torch.from_numpy(rows.features),
            labels=torch.from_numpy(rows.labels),
            owned=dealt.owned.keeping(valid),
            user_ids=dealt.user_ids,
            test_features=torch.from_numpy(rows.features[tests]),
            test_labels=torch.from_numpy(rows.labels[tests]),
            classes=len(rows.classes),
            test_owner=self.test_owner,
        )
        return dataset.reshaped(self.input_shape) if self.input_shape else dataset
