"""Your own examples, one a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.hold_out import hold_out_examples, hold_out_users
from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import RowOptions
from fedmf.data.partitions import Partition
from fedmf.data.table_file import TableRows, read_table
from fedmf.data.user_ids import NumberedUsers
from fedmf.values import check_sizes

__all__ = ["Table"]

HoldOut = Callable[[NDArray[np.int64], float, np.random.Generator], NDArray[np.bool_]]

_HOLD_OUTS: Final[dict[str, HoldOut]] = {"examples": hold_out_examples, "users": hold_out_users}


@dataclass(frozen=True)
class Table(RowOptions):
    """Rows of a CSV or Parquet file, or of all such files of a folder (`read_table`), spread over users.

    Without feature columns all but label and user are features.

    Args:
        input_shape: of one example; empty for vectors.
        hold_out: "examples" holds out rows at random and leaves every user of the user column one;
            "users" holds out all rows of some users of the user column, a share test_fraction of them.

    >>> Table(path="rows.csv", hold_out="users")
    Traceback (most recent call last):
    ValueError: user_column must be named with hold_out 'users'; got none.
    """

    kind: ClassVar[str] = "table"
    input_shape: tuple[int, ...] = ()
    hold_out: Literal["examples", "users"] = "examples"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes("input_shape", self.input_shape)
        if self.hold_out == "users" and not self.user_column:
            raise ValueError("user_column must be named with hold_out 'users'; got none.")

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`."""
        path = Path(self.path).expanduser()
        return self.dataset_of(read_table(path, self.label_column, self.feature_columns, self.user_column))

    def dataset_of(self, rows: TableRows) -> InMemoryDataset:
        """Spread rows that were read over users and hold some out.

        Raises:
            ValueError: fewer than two labels, an input_shape that does not fit, or the fraction holds out
                too little or too much.
        """
        if len(rows.classes) < 2:
            raise ValueError(f"label_column must hold at least two labels; got {', '.join(rows.classes)}.")
        rng = np.random.default_rng([self.seed, 0x7AB1])
        test = _HOLD_OUTS[self.hold_out](rows.owner, self.test_fraction, rng)
        labels = rows.labels[~test]
        if self.partition == "natural":
            owned, user_ids = _natural(rows, ~test)
        else:
            owned, user_ids = self.split(labels, rng), NumberedUsers(self.users)
        dataset = InMemoryDataset(
            features=torch.from_numpy(rows.features[~test]),
            labels=torch.from_numpy(labels),
            owned=owned,
            user_ids=user_ids,
            test_features=torch.from_numpy(rows.features[test]),
            test_labels=torch.from_numpy(rows.labels[test]),
            classes=len(rows.classes),
        )
        return dataset.reshaped(self.input_shape) if self.input_shape else dataset


def _natural(rows: TableRows, trained: NDArray[np.bool_]) -> tuple[Partition, tuple[str, ...]]:
    owner = rows.owner[trained]
    present, counts = np.unique(owner, return_counts=True)
    parts = Partition(np.argsort(owner, kind="stable"), np.cumsum([0, *counts]))
    return parts, tuple(rows.users[u] for u in present)
