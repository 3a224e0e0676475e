"""What a request to commit a round must look like before histories are asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmf.errors import LedgerError, ParticipationViolation
from fedmf.participation import Participation


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
