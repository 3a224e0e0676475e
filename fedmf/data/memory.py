"""Datasets of rows with owners: all in memory, or made whenever a user who owns them is asked for."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import FederatedDataset, NumberedUsers, TestOwner
from fedmf.data.partitions import Partition
from fedmf.data.structure import ExampleStructure, Features, any_of, each, named
from fedmf.data.user_ids import require_canonical


@dataclass(frozen=True, eq=False)
class InMemoryDataset(FederatedDataset):
    """Examples in tensors, and for each user the rows it owns.

    Args:
        features: shape (examples, …), of any real type; or several such tensors by the names under which the
            model takes them.
        labels: shape (examples, …), of any real type.
        owned: for each user the indices of its examples; examples may belong to nobody.
        user_ids: unique, stable names; user u is called ``user_ids[u]``.
        test_features: shape (tests, …), likewise.
        test_labels: shape (tests, …).
        classes: number of classes where labels are class numbers; 0 where they are anything else.
        test_owner: whose the test part is.
        vocabulary: how many token numbers there are where features are tokens, else 0.

    Raises:
        ValueError: ids that are no text, not unique, or not as `canonical_id` writes them, rows that are no
            indices, or users' examples of another shape or type than those of the test part.
    """

    counts_are_exact: ClassVar[bool] = True

    features: Features
    labels: Tensor
    owned: Sequence[NDArray[np.int64]]
    user_ids: Sequence[str]
    test_features: Features
    test_labels: Tensor
    classes: int = 0
    test_owner: TestOwner = "nobody"
    vocabulary: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.owned, Mapping):
            raise ValueError(
                "owned (rows of users) must be a sequence in the order of user_ids; got a dict. Give "
                "[owned[name] for name in user_ids]."
            )
        if len(self.owned) != len(self.user_ids) or len(self._index) != len(self.user_ids):
            raise ValueError(
                f"user ids must be unique, one for each user; got {len(self.user_ids)} ids "
                f"({len(self._index)} different) for {len(self.owned)} users."
            )
        wrong = next((user for user in self.user_ids if not isinstance(user, str)), None)
        if wrong is not None:
            raise ValueError(f"user ids must be text; got {wrong!r}. Take str of each.")
        if not isinstance(self.user_ids, NumberedUsers):
            require_canonical(self.user_ids)
        assert len(self._partition) == len(self.owned)  # or what is no index of a row was refused
        for name, users, tests in (
            ("features", self.features, self.test_features),
            ("labels", self.labels, self.test_labels),
        ):
            for values in (*named(users).values(), *named(tests).values()):
                if not isinstance(values, Tensor):
                    raise ValueError(
                        f"{name} must be torch tensors; got {type(values).__name__}. Take torch.as_tensor."
                    )
            if _layout(users) != _layout(tests):
                raise ValueError(f"{name} must be like test_{name}, {_layout(tests)}; got {_layout(users)}.")
            for part in (users, tests):
                if len({len(values) for values in named(part).values()}) > 1:
                    raise ValueError(f"{name} must have as many rows under every name; they do not.")

    @cached_property
    def _partition(self) -> Partition:
        return self.owned if isinstance(self.owned, Partition) else Partition.of(self.owned)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: u for u, name in enumerate(self.user_ids)}

    def index_of(self, user_id: str) -> int:
        """See `FederatedDataset.index_of`."""
        return self._index[user_id]

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `FederatedDataset.sizes`."""
        return self._partition.sizes[users]

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """See `FederatedDataset.examples`."""
        rows = torch.from_numpy(self._partition.rows(users)).to(self.labels.device)
        return each(lambda values: values.index_select(0, rows), self.features), self.labels.index_select(
            0, rows
        )

    def held(self, users: NDArray[np.int64]) -> tuple[Features, Tensor, NDArray[np.int64]] | None:
        """See `FederatedDataset.held`."""
        if type(self).examples is not InMemoryDataset.examples or not self._rows_exist:
            return None
        return self.features, self.labels, self._partition.rows(users)

    def unfit_rows(self, structure: ExampleStructure) -> NDArray[np.bool_] | None:
        """See `FederatedDataset.unfit_rows`."""
        known = self.__dict__.get("_unfit")
        if known is None or known[0] != structure:
            masks = structure.features.unfit_rows(self.features), structure.labels.unfit_rows(self.labels)
            found = any_of(masks)
            known = structure, None if found is None else found.cpu().numpy()
            object.__setattr__(self, "_unfit", known)
        return known[1]

    @cached_property
    def _rows_exist(self) -> bool:
        order = self._partition.order
        return not order.size or (int(order.min()) >= 0 and int(order.max()) < len(self.labels))

    def to(self, device: torch.device | str) -> Self:
        """See `FederatedDataset.to`."""
        names = ("features", "labels", "test_features", "test_labels")
        return replace(self, **{name: each(lambda x: x.to(device), getattr(self, name)) for name in names})

    def reshaped(self, shape: Sequence[int]) -> Self:
        """The same examples in another shape, such as an image's.

        Raises:
            ValueError: an example has another number of entries.
        """
        entries = math.prod(self.test_features.shape[1:])
        if math.prod(shape) != entries or min(shape, default=0) < 1:
            raise ValueError(
                f"input-shape must multiply to the {entries} entries of an example; got {tuple(shape)}."
            )
        names = ("features", "test_features")
        return replace(
            self, **{name: getattr(self, name).reshape(len(getattr(self, name)), *shape) for name in names}
        )


def _layout(features: Features) -> str:
    """Names, shapes and types, as text."""
    parts = [f"{name} {tuple(x.shape[1:])} {x.dtype}".lstrip() for name, x in sorted(named(features).items())]
    return ", ".join(parts)


class RowSource(Protocol):
    """Where examples come from, row by row."""

    def examples(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Features and labels of these rows, shape (m, …); each row by itself, in any company the same.

        Features of floating type are all NaN where a row cannot be read.
        """
        ...


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
