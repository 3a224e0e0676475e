"""Partitions of examples over users, and the held-out part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


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
        """From one array for each user.

        Raises:
            ValueError: something else than indices.
        """
        for user, part in enumerate(parts):
            if len(part) and np.asarray(part).dtype.kind not in "iu":
                raise ValueError(
                    "owned (examples of a user) must be indices of rows; got "
                    f"{np.asarray(part).dtype} for user {user}. Convert a mask with np.flatnonzero."
                )
        order = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        return cls(order, np.cumsum([0, *(len(part) for part in parts)]))

    def __len__(self) -> int:
        return self.edges.size - 1

    def __getitem__(self, index: Any) -> Any:
        u = range(len(self))[index]
        return self.order[self.edges[u] : self.edges[u + 1]]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many examples each user owns, shape (users,)."""
        return np.diff(self.edges)

    def keeping(self, rows: NDArray[np.bool_]) -> Self:
        """Without the examples where ``rows``, shape (examples,), is false; users may be left with
        none.
        """
        kept = rows[self.order]
        return type(self)(self.order[kept], np.concatenate([[0], np.cumsum(kept)])[self.edges])

    def rows(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """The examples of these users, one user after the other."""
        sizes = self.sizes[users]
        first = np.repeat(self.edges[users] - (np.cumsum(sizes) - sizes), sizes)
        return self.order[first + np.arange(first.size)]


def partition_evenly(examples: int, users: int, rng: np.random.Generator) -> Partition:
    """A random split into parts of equal size, up to one."""
    check_users(users, examples)
    return Partition.of(
        [np.sort(part) for part in np.array_split(rng.permutation(examples), users)]
    )


def partition_each(examples: int, users: int) -> Partition:
    """Every example is a user of its own.

    Raises:
        ValueError: as many users were not declared.
    """
    if users != examples:
        raise ValueError(
            f"users must be {examples} (partition 'each-example': one each); got {users}."
        )
    return Partition(np.arange(examples), np.arange(examples + 1))


def partition_by_label(
    labels: NDArray[np.int64], users: int, alpha: float, rng: np.random.Generator
) -> Partition:
    """A split with Dirichlet(α) label skew in which all users own about equally many examples.

    Each user draws label proportions from Dirichlet(α) and fills its quota from the labels' pools,
    passing to the remaining labels when a pool runs dry.

    References:
        Hsu, Qi, Brown (2019), "Measuring the Effects of Non-Identical Data Distribution", section
        3.
    """
    check_users(users, labels.size)
    classes = int(labels.max()) + 1
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    left = np.array([pool.size for pool in pools])
    quotas = [part.size for part in np.array_split(np.arange(labels.size), users)]
    owned = []
    for quota in quotas:
        counts = _label_counts(quota, rng.dirichlet(np.full(classes, alpha)), left, rng)
        mine = [pools[c][left[c] - counts[c] : left[c]] for c in np.flatnonzero(counts)]
        left -= counts
        owned.append(np.sort(np.concatenate(mine)))
    return Partition.of(owned)


def _label_counts(
    quota: int, taste: NDArray[np.float64], left: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many examples of each label a user draws: from its preference, without pools that have
    run dry.
    """
    counts = np.zeros_like(left)
    while missing := quota - int(counts.sum()):
        weights = np.where(counts < left, taste, 0.0)
        if weights.sum() <= 0.0:
            weights = (left - counts).astype(np.float64)
        counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), left - counts)
    return counts


def check_users(users: int, examples: int) -> None:
    """Reject a split that leaves somebody without examples."""
    if not 1 <= users <= examples:
        raise ValueError(
            f"users must lie in 1..{examples}, the number of training examples; got {users}."
        )


def hold_out(
    count: int, fraction: float, rng: np.random.Generator, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A random share of 0, …, count − 1, examples or users, and the others, neither of them empty.

    Raises:
        ValueError: one would be.

    >>> [part.tolist() for part in hold_out(4, 0.5, np.random.default_rng(0), "users")]
    [[2, 0], [1, 3]]
    """
    wanted = round(fraction * count)
    if not 1 <= wanted < count:
        raise ValueError(
            f"test_fraction must hold out between 1 and {count - 1} of {count} {what}; got"
            f" {fraction}, which is {wanted}."
        )
    order = rng.permutation(count)
    return order[:wanted], order[wanted:]


def hold_out_of_each_user(
    owner: NDArray[np.int64], fraction: float, seed: int
) -> NDArray[np.bool_]:
    """Each example with probability ``fraction``, but never a user's first.

    Args:
        owner: who owns each example, shape (examples,); −1 for no user; these examples are not held
            out.
        fraction: in (0, 1).
        seed: public.

    Guarantees: which examples of a user are held out depends on the seed, the user's place and how
    many the user owns, not on anybody else.

    >>> hold_out_of_each_user(np.array([0, 7, 0, 0, -1, 0]), 0.999, 0).tolist()
    [False, False, True, True, False, True]
    """
    order = np.argsort(owner, kind="stable")
    held = np.zeros(owner.size, dtype=bool)
    for rows in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1):
        if rows.size and owner[rows[0]] >= 0:
            rng = np.random.default_rng([seed, 0x7E57, int(owner[rows[0]])])
            held[rows[1:]] = rng.random(rows.size - 1) < fraction
    return held


def partition_by_owner(owner: NDArray[np.int64], users: NDArray[np.int64]) -> Partition:
    """Each row belongs to its owner; rows of others belong to no user.

    Args:
        owner: shape (rows,).
        users: the owners that are users, in order.

    >>> partition_by_owner(np.array([3, 0, -1, 3]), np.array([0, 2, 3]))[2].tolist()
    [0, 3]
    """
    place = np.full(
        max(int(owner.max(initial=-1)), int(users.max(initial=-1))) + 2, -1, dtype=np.int64
    )
    place[users] = np.arange(users.size)
    user = place[owner]
    rows = np.flatnonzero(user >= 0)
    order = rows[np.argsort(user[rows], kind="stable")]
    return Partition(order, np.searchsorted(user[order], np.arange(users.size + 1)))
