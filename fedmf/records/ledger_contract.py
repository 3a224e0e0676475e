"""The participation contract as it is enforced while a round is being committed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import LedgerError, ParticipationViolation
from fedmf.participation import Participation


class Histories:
    """The last round and the number of participations of every user, by ledger key.

    Sixteen bytes a user, so that a round is checked without reading the history of its users.
    """

    def __init__(self, users: int) -> None:
        self._last = np.full(max(users, 1024), -1, dtype=np.int64)
        self._count = np.zeros(self._last.size, dtype=np.int64)

    def of(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(last round or −1, number of participations) of each key."""
        self._reserve(keys)
        return self._last[keys], self._count[keys]

    def record(self, round_index: int, keys: NDArray[np.integer]) -> None:
        """Add the participants of a round, which are distinct."""
        self._reserve(keys)
        self._last[keys] = round_index
        self._count[keys] += 1

    def _reserve(self, keys: NDArray[np.integer]) -> None:
        needed = int(keys.max()) + 1 if keys.size else 0
        if needed > self._last.size:
            missing = max(needed, 2 * self._last.size) - self._last.size
            self._last = np.concatenate([self._last, np.full(missing, -1, dtype=np.int64)])
            self._count = np.concatenate([self._count, np.zeros(missing, dtype=np.int64)])


def check_history(
    participation: Participation,
    round_index: int,
    users: Sequence[str],
    keys: NDArray[np.int64],
    histories: Histories,
) -> None:
    """Refuse the first user for whom this round would come too early or be one too many."""
    k, b = participation.max_participations, participation.min_separation
    last, count = histories.of(keys)
    for position in np.flatnonzero((last >= 0) & (round_index - last < b))[:1]:
        raise ParticipationViolation(
            f"user {users[position]!r} took part in round {last[position]} and may not in round "
            f"{round_index}: b (min_separation) is {b}."
        )
    for position in np.flatnonzero(count >= k)[:1]:
        raise ParticipationViolation(
            f"user {users[position]!r} took part {count[position]} times, last in round "
            f"{last[position]}, and may not in round {round_index}: k (max_participations) is {k}."
        )


def check_turn(participation: Participation, round_index: int, last: int | None) -> None:
    """Refuse a round that is not the next one, or is past the horizon."""
    turn = 0 if last is None else last + 1
    if not is_index(round_index) or round_index != turn:
        raise ParticipationViolation(f"round must be {turn}, the next to commit; got {round_index!r}.")
    if round_index >= participation.rounds:
        raise ParticipationViolation(
            f"round {round_index} is past the horizon: all n={participation.rounds} rounds are committed. "
            "A longer run needs a new factorization and a new budget."
        )


def check_ids(users: Sequence[str], round_index: int) -> None:
    """Refuse ids that cannot be stored and compared exactly, and a user named twice."""
    if isinstance(users, str):
        raise LedgerError(f"users must be a sequence of ids; got the single string {users!r}.")
    for user in users:
        if not isinstance(user, str) or not user or "\x00" in user or not _encodable(user):
            raise LedgerError(
                f"user (id) must be a non-empty string of valid Unicode without NUL; got {user!r} in round "
                f"{round_index}."
            )
    if len(set(users)) != len(users):
        seen: set[str] = set()
        twice = next(user for user in users if user in seen or seen.add(user))
        raise ParticipationViolation(f"user {twice!r} appears twice in round {round_index}.")


def is_index(value: object) -> bool:
    """Whether a value is an integer and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _encodable(user: str) -> bool:
    try:
        user.encode()
    except UnicodeEncodeError:
        return False
    return True
