"""What a record of participation holds, as far as a privacy statement needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedmf.participation import Participation


@dataclass(frozen=True)
class ParticipationSummary:
    """What a record holds after every row was checked.

    Attributes:
        rounds: committed rounds, "empty" ones included; the rows of noise that are used up.
        empty_rounds: those that released nothing of any user.
        users: users that took part at least once.
        participations: rows of participation.
        max_participations: the largest number of rounds any user joined; 0 if none did.
        min_separation: the smallest distance between two rounds of one user; None if nobody joined twice.
        largest_cohort: the largest number of users in one round.
    """

    rounds: int
    empty_rounds: int
    users: int
    participations: int
    max_participations: int
    min_separation: int | None
    largest_cohort: int


class ParticipationRecord(Protocol):
    """Who took part in which round, durably and verified; a ledger is one."""

    participation: Participation
    released: int

    @property
    def histories(self) -> Any:
        """Who took part how often; ``names`` has the users by key."""
        ...

    def summary(self) -> ParticipationSummary:
        """Rounds, users, and the (k, b) that occurred."""
        ...

    def metrics(self) -> Mapping[int, Mapping[str, Any]]:
        """What was noted of released models, by rounds released."""
        ...

    def by_user(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(rounds, user keys): every participation, sorted by key, then by round."""
        ...


def distinct_patterns(table: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The different rows of a table of patterns, and which of them each row is.

    >>> distinct_patterns(np.array([[3, 5], [0, 4], [3, 5]], dtype=np.int32))
    (array([[0, 4],
           [3, 5]], dtype=int32), array([1, 0, 1]))
    """
    # Rows as strings of big-endian bytes: they sort as the tuples do, much faster than column by column.
    row = np.dtype((np.void, 4 * table.shape[1]))
    opaque = np.ascontiguousarray(table.astype(">i4")).view(row).reshape(-1)
    distinct, which = np.unique(opaque, return_inverse=True)
    return distinct.view(">i4").reshape(-1, table.shape[1]).astype(np.int32), which
