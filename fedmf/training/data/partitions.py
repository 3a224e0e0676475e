"""Partitions of examples over users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["Partition", "partition_by_label", "partition_evenly"]


@dataclass(frozen=True, eq=False)
class Partition(Sequence[NDArray[np.int64]]):
    """Which examples each user owns; a sequence of index arrays, stored as one.

    Args:
        order: indices of examples, all of user 0, then all of user 1, …, shape (examples,).
        edges: user u owns ``order[edges[u]:edges[u + 1]]``, shape (users + 1,).

    >>> parts = Partition.of([np.array([4, 0]), np.array([2]), np.array([1, 3])])
    >>> len(parts), parts[0].tolist(), parts.sizes.tolist(), parts.rows(np.array([2, 0])).tolist()
    (3, [4, 0], [2, 1, 2], [1, 3, 4, 0])
    """

    order: NDArray[np.int64]
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[NDArray[np.int64]]) -> Self:
        """From one array for each user."""
        order = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        return cls(order, np.cumsum([0, *(len(part) for part in parts)]))

    def __len__(self) -> int:
        return self.edges.size - 1

    @overload
    def __getitem__(self, index: int) -> NDArray[np.int64]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NDArray[np.int64]]: ...
    def __getitem__(self, index: int | slice) -> NDArray[np.int64] | Sequence[NDArray[np.int64]]:
        if isinstance(index, slice):
            return [self[u] for u in range(len(self))[index]]
        u = range(len(self))[index]
        return self.order[self.edges[u] : self.edges[u + 1]]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many examples each user owns, shape (users,)."""
        return np.diff(self.edges)

    def rows(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """The examples of these users, one user after the other."""
        sizes = self.sizes[users]
        first = np.repeat(self.edges[users] - (np.cumsum(sizes) - sizes), sizes)
        return self.order[first + np.arange(first.size)]


def partition_evenly(examples: int, users: int, rng: np.random.Generator) -> Partition:
    """A random split into parts whose sizes differ by at most one."""
    return Partition.of([np.sort(part) for part in np.array_split(rng.permutation(examples), users)])


def partition_by_label(
    labels: NDArray[np.int64], users: int, alpha: float, rng: np.random.Generator
) -> Partition:
    """A split with Dirichlet(α) label skew in which all users own about equally many examples.

    Each user draws label proportions from Dirichlet(α) and fills its quota from the labels' pools,
    passing to what is left when a pool runs dry.

    References:
        Hsu, Qi, Brown (2019), "Measuring the Effects of Non-Identical Data Distribution", section 3.
    """
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"α (dirichlet-alpha) must be positive and finite; got {alpha}.")
    classes = int(labels.max()) + 1
    pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in range(classes)]
    quotas = [part.size for part in np.array_split(np.arange(labels.size), users)]
    owned = []
    for quota in quotas:
        taste = rng.dirichlet(np.full(classes, alpha))
        mine = []
        for _ in range(quota):
            weights = np.array([t if pool else 0.0 for t, pool in zip(taste, pools, strict=True)])
            if weights.sum() <= 0.0:
                weights = np.array([float(len(pool)) for pool in pools])
            mine.append(pools[rng.choice(classes, p=weights / weights.sum())].pop())
        owned.append(np.sort(np.array(mine, dtype=np.int64)))
    return Partition.of(owned)
