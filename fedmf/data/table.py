"""Your own examples, one a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.hold_out import hold_out_examples, hold_out_users
from fedmf.data.memory import InMemoryDataset
from fedmf.data.partition_plan import PartitionPlan
from fedmf.data.partitions import Partition
from fedmf.data.table_file import Table
from fedmf.data.user_ids import NumberedUsers

__all__ = ["HOLD_OUTS", "table_dataset"]

HoldOut = Callable[[NDArray[np.int64], float, np.random.Generator], NDArray[np.bool_]]

#: By name, as in configurations.
HOLD_OUTS: Final[dict[str, HoldOut]] = {"examples": hold_out_examples, "users": hold_out_users}


def table_dataset(
    table: Table,
    partition: PartitionPlan | None = None,
    *,
    hold_out: str = "examples",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> InMemoryDataset:
    """Spread the rows of a table over users and hold some out.

    Args:
        table: see `read_table`.
        partition: how rows are spread; None keeps each row with the user that its user column names.
        hold_out: "examples" holds out rows at random and leaves every user of the user column one;
            "users" holds out all rows of some users of the user column.
        test_fraction: share of rows, or of users, that are held out, in (0, 1).
        seed: public seed of the split.

    Raises:
        ValueError: the user column is needed and was not read, or the fraction holds out too little or
            too much.
    """
    if len(table.classes) < 2:
        raise ValueError(f"label-column must hold at least two labels; got {', '.join(table.classes)}.")
    if table.users == ("",) and (partition is None or hold_out == "users"):
        raise ValueError("user-column must be named for partition natural and for hold-out users; got none.")
    if hold_out not in HOLD_OUTS:
        raise ValueError(f"hold-out must be one of {', '.join(HOLD_OUTS)}; got {hold_out!r}.")
    rng = np.random.default_rng([seed, 0x7AB1])
    test = HOLD_OUTS[hold_out](table.owner, test_fraction, rng)
    labels = table.labels[~test]
    if partition is None:
        owned, user_ids = _natural(table, ~test)
    else:
        owned, user_ids = partition.split(labels, rng), NumberedUsers(partition.users)
    return InMemoryDataset(
        features=torch.from_numpy(table.features[~test]),
        labels=torch.from_numpy(labels),
        owned=owned,
        user_ids=user_ids,
        test_features=torch.from_numpy(table.features[test]),
        test_labels=torch.from_numpy(table.labels[test]),
        classes=len(table.classes),
    )


def _natural(table: Table, kept: NDArray[np.bool_]) -> tuple[Partition, tuple[str, ...]]:
    owner = table.owner[kept]
    present, counts = np.unique(owner, return_counts=True)
    parts = Partition(np.argsort(owner, kind="stable"), np.cumsum([0, *counts]))
    return parts, tuple(table.users[u] for u in present)
