"""Users whose examples are somewhere else: what a server knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import FederatedDataset, TestOwner
from fedmf.data.structure import ExampleStructure, Features, each


class RosterDataset(FederatedDataset):
    """The users of a run by name alone; their examples are on nodes, and no number of them is known here.

    Args:
        user_ids: unique, stable names, in the order of the roster.
        structure: what one example looks like, declared.
        test: features and labels of the central test part; None for none.
        test_owner: whose the test part is.

    Raises:
        ValueError: ids that are not unique.

    >>> from fedmf.data import TensorStructure
    >>> structure = ExampleStructure(TensorStructure((8,)), TensorStructure(dtype=torch.int64, bound=10))
    >>> len(RosterDataset(("ann", "bob"), structure).test_features)
    0
    """

    has_examples: ClassVar[bool] = False

    def __init__(
        self,
        user_ids: Sequence[str],
        structure: ExampleStructure,
        test: tuple[Features, Tensor] | None = None,
        test_owner: TestOwner = "nobody",
    ) -> None:
        self.user_ids, self._structure, self.test_owner = tuple(user_ids), structure, test_owner
        self._index = {name: u for u, name in enumerate(self.user_ids)}
        if len(self._index) < len(self.user_ids):
            raise ValueError(
                f"user ids must be unique; got {len(self._index)} different of {len(self.user_ids)}."
            )
        self.test_features, self.test_labels = test or (
            structure.features.zeros(0),
            structure.labels.zeros(0),
        )
        self.classes = structure.labels.bound or 0

    @property
    def structure(self) -> ExampleStructure:
        """As declared."""
        return self._structure

    def index_of(self, user_id: str) -> int:
        """See `FederatedDataset.index_of`."""
        return self._index[user_id]

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Not known here."""
        raise ValueError("users' examples are on their nodes; how many there are is not known here.")

    def examples(self, users: NDArray[np.int64]) -> tuple[Features, Tensor]:
        """Not here."""
        raise ValueError("users' examples are on their nodes, not here.")

    def to(self, device: torch.device | str) -> Self:
        """See `FederatedDataset.to`."""
        test = each(lambda x: x.to(device), self.test_features), self.test_labels.to(device)
        return type(self)(self.user_ids, self._structure, test, self.test_owner)
