"""Data sets in Hugging Face's format, spread by the partitioners of flwr-datasets, decoded on demand."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import FederatedDataset
from fedmf.data.hold_out import hold_out_examples
from fedmf.data.partition_plan import PartitionPlan
from fedmf.data.partitions import Partition, check_users
from fedmf.data.user_ids import NumberedUsers

__all__ = ["HubColumns", "HubDataset", "load_hub"]

_MOST_TESTS: Final = 10_000


@dataclass(frozen=True)
class HubColumns:
    """Which columns hold what.

    Args:
        features: images, or lists of numbers.
        label: whole numbers, text or class labels.
        user: whose example it is; "" for none.
    """

    features: str = "image"
    label: str = "label"
    user: str = ""


class HubDataset(FederatedDataset):
    """Examples that stay on disk until a user who owns them is asked for.

    Images become (channels, height, width) in [0, 1].

    Args:
        examples: a `datasets.Dataset` with the feature column, not decoded yet.
        labels: class of each example.
        owned: for each user the rows of ``examples``.
        user_ids: unique, stable names.
        test: rows of the test part with their labels, as (features, labels).
        column: name of the feature column.
        classes: number of classes.
    """

    def __init__(
        self,
        examples: Any,
        labels: NDArray[np.int64],
        owned: Partition,
        user_ids: Sequence[str],
        test: tuple[Tensor, Tensor],
        column: str,
        classes: int,
    ) -> None:
        self._examples, self._labels, self._owned, self._column = examples, labels, owned, column
        self.user_ids, self.classes = user_ids, classes
        self._index = {name: u for u, name in enumerate(user_ids)}
        self.test_features, self.test_labels = test

    def index_of(self, user_id: str) -> int:
        """See `FederatedDataset.index_of`."""
        return self._index[user_id]

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `FederatedDataset.sizes`."""
        return self._owned.sizes[users]

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """See `FederatedDataset.examples`."""
        rows = self._owned.rows(users)
        device = self.test_features.device
        labels = torch.from_numpy(self._labels[rows])
        return _decoded(self._examples, rows, self._column).to(device), labels.to(device)

    def to(self, device: torch.device | str) -> Self:
        """See `FederatedDataset.to`; examples are still read and decoded on the CPU."""
        moved = copy.copy(self)
        moved.test_features, moved.test_labels = self.test_features.to(device), self.test_labels.to(device)
        return moved


def load_hub(
    name: str,
    plan: PartitionPlan | None,
    columns: HubColumns,
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> HubDataset:
    """A data set of the Hugging Face hub, or a folder in its format, spread over users.

    The split "train" is spread. The test part is the split "test" or, without one, a random share of
    "train" that leaves every user of the user column an example; at most 10,000 examples of it are used.

    Args:
        name: on the hub (needs a network the first time), or of a folder: Parquet files named after their
            split, or what ``save_to_disk`` wrote.
        plan: iid and dirichlet are those of flwr-datasets, with its random numbers; other kinds are those
            of `PartitionPlan`. None keeps each example with the user its column names.
        columns: which columns hold what.
        test_fraction: share of "train" held out if there is no split "test".
        seed: public seed of partition and test part.

    Raises:
        ValueError: the extra ``data`` is missing, the data set or a column is, or the partition is
            impossible.
    """
    splits = _loaded(name)
    train = splits["train"]
    for column in filter(None, (columns.features, columns.label, columns.user)):
        if column not in train.column_names:
            present = ", ".join(train.column_names)
            raise ValueError(f"columns of {name} are {present}; got {column!r}.")
    if plan is None and not columns.user:
        raise ValueError("user-column must be named for partition natural; got none.")
    rng = np.random.default_rng([seed, 0xF10E])
    source = splits.get("test", train)
    answers, known = _column(source, columns.label), _column(train, columns.label)
    classes, ranks = np.unique(np.concatenate([known, answers]), return_inverse=True)
    labels, test_labels = ranks[: known.size], ranks[known.size :]
    kept, tests = np.arange(len(train)), np.arange(len(source))
    if source is train:
        owner = _column(train, columns.user).astype(str) if columns.user else np.zeros(len(train))
        held = hold_out_examples(np.unique(owner, return_inverse=True)[1], test_fraction, rng)
        kept, tests = np.flatnonzero(~held), np.flatnonzero(held)
    tests = np.sort(rng.permutation(tests)[:_MOST_TESTS])
    owned, user_ids = _spread(train, kept, labels, plan, columns, seed)
    return HubDataset(
        examples=train,
        labels=labels,
        owned=owned,
        user_ids=user_ids,
        test=(_decoded(source, tests, columns.features), torch.from_numpy(test_labels[tests])),
        column=columns.features,
        classes=classes.size,
    )


def _loaded(name: str) -> Any:
    if find_spec("flwr_datasets") is None:
        raise ValueError("dataset 'hub' needs the extra: pip install 'fedmf[data]'.")
    import datasets

    try:
        saved = (Path(name) / "dataset_dict.json").is_file()
        splits = datasets.load_from_disk(name) if saved else datasets.load_dataset(name)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"data-path must name a data set on the hub or a folder in its format; got {name!r}: {reason}"
        ) from error
    if "train" not in splits:
        raise ValueError(f"data-path must have a split 'train'; got {', '.join(map(str, splits))} in {name}.")
    return splits


def _column(examples: Any, name: str) -> NDArray[Any]:
    values = examples.select_columns([name])[:][name]
    missing = next((i for i, value in enumerate(values) if value is None or value == ""), None)
    if missing is not None:
        raise ValueError(f"row {missing + 1}: column {name!r} is missing.")
    return np.asarray(values)


def _spread(
    train: Any,
    kept: NDArray[np.int64],
    labels: NDArray[np.int64],
    plan: PartitionPlan | None,
    columns: HubColumns,
    seed: int,
) -> tuple[Partition, Sequence[str]]:
    """Who owns which rows of ``train``, among those ``kept``."""
    from flwr_datasets import partitioner as flower

    rows, label = "row of fedmf", "label of fedmf"
    partitioners = {
        "iid": lambda p: flower.IidPartitioner(p.users),
        "dirichlet": lambda p: flower.DirichletPartitioner(
            p.users, label, p.dirichlet_alpha, min_partition_size=1, self_balancing=False, seed=seed
        ),
    }
    if plan is None:
        chosen = flower.NaturalIdPartitioner(columns.user)
    elif plan.kind in partitioners:
        check_users(plan.users, kept.size)
        chosen = partitioners[plan.kind](plan)
    else:
        parts = plan.split(labels[kept], np.random.default_rng([seed, 0xF10F]))
        return Partition(kept[parts.order], parts.edges), NumberedUsers(plan.users)
    light = train.select(kept).select_columns([columns.user] if columns.user else [columns.label])
    chosen.dataset = light.add_column(rows, kept).add_column(label, labels[kept])
    parts = [chosen.load_partition(u).select_columns([rows])[:][rows] for u in range(chosen.num_partitions)]
    owned = Partition.of([np.sort(np.asarray(part, dtype=np.int64)) for part in parts])
    if plan is None:
        names = chosen.partition_id_to_natural_id
        return owned, tuple(str(names[u]) for u in range(len(owned)))
    return owned, NumberedUsers(plan.users)


def _decoded(examples: Any, rows: NDArray[np.int64], column: str) -> Tensor:
    """Features of these rows, float32: pixels in [0, 1] with channels first, or numbers as they are."""
    values = [np.asarray(value) for value in examples.select_columns([column])[rows][column]]
    if len({value.shape for value in values}) > 1:
        raise ValueError(f"examples in column {column!r} must have one shape; they have several.")
    block = np.stack(values)
    if block.dtype == np.uint8:
        block = block[:, None] if block.ndim == 3 else np.moveaxis(block, -1, 1)
        return torch.from_numpy(np.ascontiguousarray(block, dtype=np.float32) / np.float32(255))
    if block.dtype.kind not in "iuf":
        raise ValueError(f"feature-columns must hold images or numbers; got {block.dtype} in {column!r}.")
    block = block.astype(np.float32)
    if not np.isfinite(block).all():
        bad = int(rows[np.flatnonzero(~np.isfinite(block.reshape(len(rows), -1)).all(axis=1))[0]])
        raise ValueError(f"row {bad + 1}: column {column!r} must be finite.")
    return torch.from_numpy(block)
