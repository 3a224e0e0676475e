"""Partitions of examples over users, and the held-out part.

Data sets decide here which rows a user owns and which are held out, from public values and a
public seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Partition(Sequence[NDArray[np.int64]]):
    """The examples that each user owns: a sequence of index arrays, stored as one array.

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
        """Create a partition from one array for each user.

        Raises:
            ValueError: an array that does not hold indices.
        """
        if isinstance(parts, cls):
            return parts
        arrays: list[NDArray[np.int64]] = []
        edges = [0]
        for user, part in enumerate(parts):
            rows = np.asarray(part)
            if len(rows) and rows.dtype.kind not in "iu":
                raise ValueError(
                    f"owned (examples of a user) must be indices of rows; got {rows.dtype} for user"
                    f" {user}. Convert a mask with np.flatnonzero."
                )
            arrays.append(rows.astype(np.int64, copy=False))
            edges.append(edges[-1] + len(rows))
        return cls(np.concatenate(arrays), np.array(edges))

    def __len__(self) -> int:
        return self.edges.size - 1

    def __getitem__(self, index: Any) -> Any:
        u = range(len(self))[index]
        return self.order[self.edges[u] : self.edges[u + 1]]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of examples that each user owns, shape (users,)."""
        return np.diff(self.edges)

    def keeping(self, rows: NDArray[np.bool_]) -> Self:
        """Return this partition with the examples where ``rows``, shape (examples,), is true.

        Users may be left without examples.
        """
        stays = rows[self.order]
        before = np.concatenate([[0], np.cumsum(stays)])  # how many stay before each place
        return type(self)(self.order[stays], before[self.edges])

    def rows(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the examples of these users, one user after the other."""
        sizes = self.sizes[users]
        first = np.repeat(self.edges[users] - (np.cumsum(sizes) - sizes), sizes)
        return self.order[first + np.arange(first.size)]


def partition_evenly(examples: int, users: int, rng: np.random.Generator) -> Partition:
    """Return a random split into parts whose sizes differ by at most one."""
    check_users(users, examples)
    parts = np.array_split(rng.permutation(examples), users)
    return Partition.of([np.sort(part) for part in parts])


def partition_each(examples: int, users: int) -> Partition:
    """Return a partition in which every example is a user of its own.

    Raises:
        ValueError: the numbers of users and examples differ.
    """
    if users != examples:
        raise ValueError(
            f"users must be {examples} (partition 'each-example': one each); got {users}."
        )
    return Partition(np.arange(examples), np.arange(examples + 1))


def partition_by_label(
    labels: NDArray[np.int64], users: int, alpha: float, rng: np.random.Generator
) -> Partition:
    """Return a split with Dirichlet(α) label skew and about equally many examples for each user.

    Each user draws label proportions from Dirichlet(α) and fills its quota from the labels' pools,
    passing to the remaining labels when a pool runs dry.

    References:
        Hsu, Qi, Brown (2019), "Measuring the Effects of Non-Identical Data Distribution", section
        3.
    """
    check_users(users, labels.size)
    classes = int(labels.max()) + 1
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    left = np.bincount(labels, minlength=classes)
    owned = []
    for part in np.array_split(np.arange(labels.size), users):
        proportions = rng.dirichlet(np.full(classes, alpha))
        counts = _label_counts(part.size, proportions, left, rng)
        of_user = [pools[c][left[c] - counts[c] : left[c]] for c in np.flatnonzero(counts)]
        left -= counts
        owned.append(np.sort(np.concatenate(of_user)))
    return Partition.of(owned)


def _label_counts(
    quota: int,
    proportions: NDArray[np.float64],
    left: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return how many examples of each label a user draws.

    Labels are drawn by the user's proportions, without those whose pools have run dry.
    """
    counts = np.zeros_like(left)
    missing = quota
    while missing:
        weights = np.where(counts < left, proportions, 0.0)
        if weights.sum() <= 0.0:
            weights = (left - counts).astype(np.float64)
        counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), left - counts)
        missing = quota - int(counts.sum())
    return counts


def check_users(users: int, examples: int) -> None:
    """Reject a split that leaves a user without examples."""
    if not 1 <= users <= examples:
        raise ValueError(
            f"users must lie in 1..{examples}, the number of training examples; got {users}."
        )


def hold_out(
    count: int, fraction: float, rng: np.random.Generator, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a random share of 0, …, count − 1, which are examples or users, and the others.

    Raises:
        ValueError: one of the two parts would be empty.

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
    """Hold out each example with probability ``fraction``, but never a user's first.

    Args:
        owner: the user who owns each example, shape (examples,); −1 for no user. Examples of no
            user are not held out.
        fraction: in (0, 1).
        seed: public seed.

    Returns:
        The mask of the examples that are held out, shape (examples,).

    Guarantees: which examples of a user are held out depends on the seed, the user's place and the
    number of examples that the user owns, not on other users.

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
    """Return the partition in which each row belongs to its owner.

    Args:
        owner: shape (rows,).
        users: the owners that are users, in order; rows of others belong to no user.

    >>> partition_by_owner(np.array([3, 0, -1, 3]), np.array([0, 2, 3]))[2].tolist()
    [0, 3]
    """
    largest = max(int(owner.max(initial=-1)), int(users.max(initial=-1)))
    place = np.full(largest + 2, -1, dtype=np.int64)  # the last entry is that of owner −1
    place[users] = np.arange(users.size)
    user = place[owner]
    rows = np.flatnonzero(user >= 0)
    order = rows[np.argsort(user[rows], kind="stable")]
    return Partition(order, np.searchsorted(user[order], np.arange(users.size + 1)))
