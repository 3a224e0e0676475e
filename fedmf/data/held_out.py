"""The examples of each user in two parts: those that it trains on, and those that it holds out."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import Dataset
from fedmf.data.structure import ExampleStructure, Features, device_of, each


class ExamplesPart(Dataset):
    """A data set with one of the two parts of each user's examples.

    Of n ≥ 2 examples max(1, ⌊n·share⌋) are held out, at equal distances in the user's order; a
    single example is trained on. Which they are depends on n and the share alone.

    Args:
        whole: the data set with all examples.
        share: of each user's examples that are held out, in (0, 1).
        held_out: whether it has those that are held out, or else the others.

    >>> data = Dataset.from_arrays([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0],
    ...                            ["a", "a", "a", "b"], user_list=["a", "b"])
    >>> for held_out in (False, True):
    ...     part = ExamplesPart(data, 0.4, held_out)
    ...     part.sizes(np.arange(2)).tolist(), part.examples(np.arange(2))[1].tolist()
    ([2, 1], [0.0, 2.0, 3.0])
    ([1, 0], [1.0])
    """

    def __init__(self, whole: Dataset, share: float, held_out: bool) -> None:
        self._whole = whole
        self._share = share
        self._held_out = held_out
        self.user_ids = whole.user_ids
        self.test_features = whole.test_features
        self.test_labels = whole.test_labels
        self.classes = whole.classes
        self.vocabulary = whole.vocabulary
        self.test_owner = whole.test_owner
        self.row_counts = whole.row_counts
        self.has_examples = whole.has_examples
        self.counts_are_exact: Any = whole.counts_are_exact

    @property
    def structure(self) -> ExampleStructure:
        return self._whole.structure

    def index_of(self, user_id: str) -> int:
        return self._whole.index_of(user_id)

    def _held_out_sizes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of so many examples are held out."""
        most = np.maximum(1, np.floor(sizes * self._share).astype(np.int64))
        return np.where(sizes >= 2, most, 0)

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes = np.asarray(self._whole.sizes(users))
        held_out = self._held_out_sizes(sizes)
        if self._held_out:
            return held_out
        return sizes - held_out

    def examples(self, users: NDArray[np.int64]) -> tuple[Features, Tensor]:
        features, labels = self._whole.examples(users)
        sizes = np.asarray(self._whole.sizes(users))
        masks = list[NDArray[np.bool_]]()
        for size, held_out in zip(sizes, self._held_out_sizes(sizes), strict=True):
            masks.append(self._mask(int(size), int(held_out)))
        rows = torch.from_numpy(np.flatnonzero(np.concatenate(masks)))
        rows = rows.to(device_of(features))
        return each(lambda values: values.index_select(0, rows), features), labels[rows]

    def _mask(self, size: int, held_out: int) -> NDArray[np.bool_]:
        """Which of a user's examples are in this part."""
        mask = np.zeros(size, dtype=bool)
        mask[(2 * np.arange(held_out) + 1) * size // max(1, 2 * held_out)] = True
        return mask == self._held_out

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self._whole.to(device), self._share, self._held_out)
