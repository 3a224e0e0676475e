"""Data sets in Hugging Face's format, spread by the partitioners of flwr-datasets, decoded on demand."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import FederatedDataset
from fedmf.data.hold_out import hold_out_examples
from fedmf.data.options import RowOptions
from fedmf.data.partitions import Partition, check_users
from fedmf.data.user_ids import NumberedUsers

__all__ = ["Hub", "HubDataset"]

_MOST_TESTS: Final = 10_000


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

    counts_are_exact: ClassVar[bool] = True

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


@dataclass(frozen=True)
class Hub(RowOptions):
    """A data set of the Hugging Face hub, or a folder in its format, spread over users.

    ``path`` is its name on the hub (which needs a network the first time) or that of a folder: Parquet files
    named after their split, or what ``save_to_disk`` wrote. The split "train" is spread. The test part is
    the split "test" or, without one, a random share of "train" that leaves every user of the user column an
    example; at most 10,000 examples of it are used. The partitions iid and dirichlet are those of
    flwr-datasets, with its random numbers.

    Args:
        feature_columns: the one column of images, or of lists of numbers.

    >>> Hub(path="ylecun/mnist", partition="shards").feature_columns
    ('image',)
    """

    kind: ClassVar[str] = "hub"
    feature_columns: tuple[str, ...] = ("image",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.feature_columns) != 1:
            raise ValueError(
                f"feature_columns must name one column with dataset 'hub'; got {self.feature_columns!r}."
            )

    def load(self) -> HubDataset:
        """See `DatasetOptions.load`."""
        splits = _loaded(self.path)
        train, features = splits["train"], self.feature_columns[0]
        for column in filter(None, (features, self.label_column, self.user_column)):
            if column not in train.column_names:
                present = ", ".join(train.column_names)
                raise ValueError(f"columns of {self.path} are {present}; got {column!r}.")
        rng = np.random.default_rng([self.seed, 0xF10E])
        source = splits.get("test", train)
        answers, known = _column(source, self.label_column), _column(train, self.label_column)
        classes, ranks = np.unique(np.concatenate([known, answers]), return_inverse=True)
        labels, test_labels = ranks[: known.size], ranks[known.size :]
        trained, tests = np.arange(len(train)), np.arange(len(source))
        if source is train:
            owner = _column(train, self.user_column).astype(str) if self.user_column else np.zeros(len(train))
            held = hold_out_examples(np.unique(owner, return_inverse=True)[1], self.test_fraction, rng)
            trained, tests = np.flatnonzero(~held), np.flatnonzero(held)
        tests = np.sort(rng.permutation(tests)[:_MOST_TESTS])
        owned, user_ids = self._spread(train, trained, labels)
        return HubDataset(
            examples=train,
            labels=labels,
            owned=owned,
            user_ids=user_ids,
            test=(_decoded(source, tests, features), torch.from_numpy(test_labels[tests])),
            column=features,
            classes=classes.size,
        )

    def _spread(
        self, train: Any, rows: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> tuple[Partition, Sequence[str]]:
        """Who owns which rows of ``train``, among these."""
        from flwr_datasets import partitioner as flower

        row, label = "row of fedmf", "label of fedmf"
        partitioners = {
            "natural": lambda: flower.NaturalIdPartitioner(self.user_column),
            "iid": lambda: flower.IidPartitioner(self.users),
            "dirichlet": lambda: flower.DirichletPartitioner(
                self.users,
                label,
                self.dirichlet_alpha,
                min_partition_size=1,
                self_balancing=False,
                seed=self.seed,
            ),
        }
        if self.partition not in partitioners:
            parts = self.split(labels[rows], np.random.default_rng([self.seed, 0xF10F]))
            return Partition(rows[parts.order], parts.edges), NumberedUsers(self.users)
        natural = self.partition == "natural"
        if not natural:
            check_users(self.users, rows.size)
        chosen = partitioners[self.partition]()
        light = train.select(rows).select_columns([self.user_column or self.label_column])
        chosen.dataset = light.add_column(row, rows).add_column(label, labels[rows])
        parts = [chosen.load_partition(u).select_columns([row])[:][row] for u in range(chosen.num_partitions)]
        owned = Partition.of([np.sort(np.asarray(part, dtype=np.int64)) for part in parts])
        if not natural:
            return owned, NumberedUsers(self.users)
        names = chosen.partition_id_to_natural_id
        return owned, tuple(str(names[u]) for u in range(len(owned)))


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
            f"path must name a data set on the hub or a folder in its format; got {name!r}: {reason}"
        ) from error
    if "train" not in splits:
        raise ValueError(f"path must have a split 'train'; got {', '.join(map(str, splits))} in {name}.")
    return splits


def _column(examples: Any, name: str) -> NDArray[Any]:
    values = examples.select_columns([name])[:][name]
    missing = next((i for i, value in enumerate(values) if value is None or value == ""), None)
    if missing is not None:
        raise ValueError(f"row {missing + 1}: column {name!r} is missing.")
    return np.asarray(values)


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
        raise ValueError(f"feature_columns must hold images or numbers; got {block.dtype} in {column!r}.")
    block = block.astype(np.float32)
    if not np.isfinite(block).all():
        bad = int(rows[np.flatnonzero(~np.isfinite(block.reshape(len(rows), -1)).all(axis=1))[0]])
        raise ValueError(f"row {bad + 1}: column {column!r} must be finite.")
    return torch.from_numpy(block)
