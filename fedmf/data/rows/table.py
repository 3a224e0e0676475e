"""Your own examples, one a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedmf.data.memory import InMemoryDataset
from fedmf.data.rows.labelled_rows import LabelledRows
from fedmf.data.rows.table_file import TableColumns, TableRows, read_table


@dataclass(frozen=True)
class Table(LabelledRows):
    """Rows of a CSV or Parquet file, or of all such files of a folder (`read_table`), spread over users.

    Without feature columns all but label and user are features.

    >>> Table(path="rows.csv", hold_out="users")
    Traceback (most recent call last):
    ValueError: user_column must be named with hold_out 'users'; got none.
    """

    kind: ClassVar[str] = "table"

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`."""
        users = self.users_on_roster(self.holds_out_users)
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
        valid = rows.labels >= 0
        tests = np.flatnonzero(dealt.tests & valid & np.isfinite(rows.features).all(axis=1))
        if not tests.size:
            raise ValueError(
                f"test_fraction must hold out at least one row that can be read; got none of {self.path}."
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
