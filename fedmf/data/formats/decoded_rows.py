"""Examples that are made from something smaller whenever a user who owns them is asked for."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import FederatedDataset, TestOwner
from fedmf.data.partitions import Partition


class RowSource(Protocol):
    """Where examples come from, row by row."""

    def examples(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Features and labels of these rows, shape (m, …); each row by itself, in any company the same.

        Features of floating type are all NaN where a row cannot be read.
        """
        ...


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images as bytes, a quarter of the memory of their features.

    Args:
        bytes: shape (rows, channels, height, width), uint8.
        labels: class of each.
        mean: of each channel, public.
        deviation: of each channel, public.
    """

    bytes: NDArray[np.uint8]
    labels: NDArray[np.int64]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def examples(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """(byte/255 − mean)/deviation; see `RowSource.examples`."""
        shape = (-1, 1, 1)
        mean, deviation = (torch.tensor(part).reshape(shape) for part in (self.mean, self.deviation))
        features = (torch.from_numpy(self.bytes[rows]).float() / 255 - mean) / deviation
        return features, torch.from_numpy(self.labels[rows])


class DecodedRows(FederatedDataset):
    """Examples of a source of rows.

    Args:
        source: of examples.
        owned: for each user the rows.
        user_ids: unique, stable names.
        test: the test part, as (features, labels).
        test_owner: whose the test part is.
        classes: number of classes; 0 where labels are anything else.
        vocabulary: how many token numbers there are where features are tokens, else 0.
    """

    counts_are_exact: ClassVar[bool] = True

    def __init__(
        self,
        source: RowSource,
        owned: Partition,
        user_ids: Sequence[str],
        test: tuple[Tensor, Tensor],
        test_owner: TestOwner,
        classes: int = 0,
        vocabulary: int = 0,
    ) -> None:
        self._source, self._owned, self.user_ids = source, owned, user_ids
        self.classes, self.vocabulary, self.test_owner = classes, vocabulary, test_owner
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
        features, labels = self._source.examples(self._owned.rows(users))
        return features.to(self.test_features.device), labels.to(self.test_features.device)

    def to(self, device: torch.device | str) -> Self:
        """See `FederatedDataset.to`; examples are still decoded on the CPU."""
        moved = copy.copy(self)
        moved.test_features, moved.test_labels = self.test_features.to(device), self.test_labels.to(device)
        return moved
