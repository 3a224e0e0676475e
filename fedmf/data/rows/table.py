"""Your own examples, one a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedmf.data.memory import InMemoryDataset
from fedmf.data.partitions import Partition
from fedmf.data.rows.ownership import partition_by_owner
from fedmf.data.rows.row_options import RowOptions
from fedmf.data.rows.table_file import TableColumns, TableRows, read_table
from fedmf.data.user_ids import NumberedUsers

__all__ = ["Table"]


@dataclass(frozen=True)
class Table(RowOptions):
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
        held = self.held_out(rows.owner, len(rows.users), rng)
        trained = np.flatnonzero(~held.rows)
        if self.partition == "natural":
            owned = partition_by_owner(np.where(held.rows, -1, rows.owner), held.users)
            user_ids = tuple(rows.users[u] for u in held.users)
        else:
            parts = self.split(np.maximum(rows.labels[trained], 0), rng)
            owned, user_ids = Partition(trained[parts.order], parts.edges), NumberedUsers(self.users)
        valid = rows.labels >= 0
        tests = np.flatnonzero(held.rows & valid & np.isfinite(rows.features).all(axis=1))
        if not tests.size:
            raise ValueError(
                f"test_fraction must hold out at least one row that can be read; got none of {self.path}."
            )
        dataset = InMemoryDataset(
            features=torch.from_numpy(rows.features),
            labels=torch.from_numpy(rows.labels),
            owned=owned.keeping(valid),
            user_ids=user_ids,
            test_features=torch.from_numpy(rows.features[tests]),
            test_labels=torch.from_numpy(rows.labels[tests]),
            classes=len(rows.classes),
            test_owner=self.test_owner,
        )
        return dataset.reshaped(self.input_shape) if self.input_shape else dataset
