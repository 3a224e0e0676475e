"""A data set around another one, for tests that change what it does."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import Dataset


class WrappedData(Dataset):
    """The data set ``inner`` unchanged; a derived class overrides what shall differ."""

    def __init__(self, inner: Dataset) -> None:
        self.inner = inner
        self.user_ids = inner.user_ids
        self.classes = inner.classes
        self.test_features = inner.test_features
        self.test_labels = inner.test_labels

    def index_of(self, user_id: str) -> int:
        return self.inner.index_of(user_id)

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.inner.sizes(users)

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return self.inner.examples(users)  # type: ignore[return-value]

    def to(self, device: torch.device | str) -> Self:
        return self
