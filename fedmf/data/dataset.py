"""What every federated dataset answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, device

__all__ = ["FederatedDataset"]


class FederatedDataset(ABC):
    """Training examples owned by users, and a central held-out test part that no user owns.

    Users are called by their stable id (a string) in messages and in the ledger, and by their index,
    0..U − 1, in here.

    Attributes:
        user_ids: the unique, stable ids, by index. A sequence, not necessarily a list: it may format its
            ids on demand.
        test_features: shape (tests, …), float32, on the dataset's device.
        test_labels: shape (tests,).
        classes: number of classes.

    Guarantees: every user owns at least one example. What a user owns, and in which order, depends neither
    on the device nor on the users asked for together with it.
    """

    user_ids: Sequence[str]
    test_features: Tensor
    test_labels: Tensor
    classes: int

    @abstractmethod
    def index_of(self, user_id: str) -> int:
        """The index of a user; KeyError for an unknown id."""

    @abstractmethod
    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many examples each of these users owns, without loading them."""

    @abstractmethod
    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """All examples of these users, one user after the other in the order asked.

        Args:
            users: indices, shape (m,).

        Returns:
            Features, shape (Σ sizes, …), float32, and labels, shape (Σ sizes,), on the dataset's device.
        """

    @abstractmethod
    def to(self, device: device | str) -> Self:
        """The same examples on ``device``."""

    @property
    def users(self) -> int:
        """U, the number of users."""
        return len(self.user_ids)

    def indices(self, user_ids: Sequence[str]) -> NDArray[np.int64]:
        """The indices of several users; KeyError for an unknown id."""
        return np.fromiter(map(self.index_of, user_ids), dtype=np.int64, count=len(user_ids))
