"""Participation patterns of many users, equal ones counted together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Pattern = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PatternTable:
    """Which patterns of rounds occur and how many users share each, by length of the pattern.

    A pattern of 20 rounds takes 88 bytes here and some 800 as a tuple in a dict.

    Attributes:
        groups: length L ↦ (patterns, shape (count, L), 0-based rounds in ascending order; numbers of users,
            shape (count,)).

    >>> table = PatternTable.of_counts({(0, 3): 2, (1,): 1, (0, 5): 4})
    >>> table.participants, table.patterns, table.to_counts()
    (7, 3, {(0, 3): 2, (0, 5): 4, (1,): 1})
    """

    groups: Mapping[int, tuple[NDArray[np.int32], NDArray[np.int64]]]

    @classmethod
    def of_counts(cls, counts: Mapping[Pattern, int]) -> Self:
        """From a mapping of patterns to numbers of users; the empty pattern and patterns of nobody are
        dropped.

        Raises:
            ValueError: a negative number of users.
        """
        by_length: dict[int, list[Pattern]] = {}
        for pattern, users in counts.items():
            if users < 0:
                raise ValueError(f"pattern {pattern!r} must be shared by at least 0 users; got {users!r}.")
            if pattern and users:
                by_length.setdefault(len(pattern), []).append(pattern)
        return cls(
            {
                length: (
                    np.array(patterns),
                    np.array([counts[pattern] for pattern in patterns], dtype=np.int64),
                )
                for length, patterns in sorted(by_length.items())
            }
        )

    @classmethod
    def of_histories(cls, rounds: NDArray[np.int32], keys: NDArray[np.int32]) -> Self:
        """From all participations sorted by user key, then by round; both of shape (participations,)."""
        if keys.size == 0:
            return cls({})
        starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
        lengths = np.diff(starts, append=keys.size)
        groups = {}
        for length in np.unique(lengths).tolist():
            table = rounds[starts[lengths == length][:, None] + np.arange(length)]
            distinct, users = np.unique(_opaque(table), return_counts=True)
            groups[length] = _rounds(distinct, length), users
        return cls(groups)

    @property
    def participants(self) -> int:
        """How many users joined at least one round."""
        return sum(int(users.sum()) for _, users in self.groups.values())

    @property
    def patterns(self) -> int:
        """How many different patterns there are."""
        return sum(users.size for _, users in self.groups.values())

    def to_counts(self) -> dict[Pattern, int]:
        """A dict from patterns to numbers of users, sorted by pattern."""
        return dict(sorted(self._items()))

    def _items(self) -> Iterator[tuple[Pattern, int]]:
        for patterns, users in self.groups.values():
            yield from zip(map(tuple, patterns.tolist()), users.tolist(), strict=True)


def distinct_patterns(table: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The different rows of a table of patterns, and which of them each row is.

    >>> distinct_patterns(np.array([[3, 5], [0, 4], [3, 5]], dtype=np.int32))
    (array([[0, 4],
           [3, 5]], dtype=int32), array([1, 0, 1]))
    """
    distinct, which = np.unique(_opaque(table), return_inverse=True)
    return _rounds(distinct, table.shape[1]), which


def _opaque(table: NDArray[np.integer]) -> NDArray[np.void]:
    """Rows as strings of big-endian bytes: they sort as the tuples do, much faster than column by column."""
    return np.ascontiguousarray(table.astype(">i4")).view(np.dtype((np.void, 4 * table.shape[1]))).reshape(-1)


def _rounds(rows: NDArray[np.void], length: int) -> NDArray[np.int32]:
    return rows.view(">i4").reshape(-1, length).astype(np.int32)
