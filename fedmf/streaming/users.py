"""Who took part in which step, and who may take part in the next one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fedmf.participation import Participation

__all__ = ["UserHistories", "UserRow"]

#: (user, participations, last step)
UserRow = tuple[str, int, int]

_UNSEEN: Final = -(1 << 62)


class UserHistories:
    """How often and when last each user took part, against (n, k, b).

    Whether a row is let in depends on the ids and the order of earlier rows alone, never on what rows hold:
    two streams that differ in the values of one user let in the same rows at the same steps.

    >>> seen = UserHistories(Participation(10, 2, 3))
    >>> seen.record("ann", 1), seen.admits("ann", 3), seen.admits("ann", 4)
    (None, False, True)
    """

    def __init__(
        self, participation: Participation, known: Iterable[UserRow] = (), separation: int | None = None
    ) -> None:
        self._most, self._apart = participation.max_participations, participation.min_separation
        self._last: dict[str, int] = {}
        self._repeats: dict[str, int] = {}
        self._changed: set[str] = set()
        self.max_participations, self.min_separation = 0, separation
        for user, count, last in known:
            self._last[user] = last
            if count > 1:
                self._repeats[user] = count
            self.max_participations = max(self.max_participations, count)

    def __len__(self) -> int:
        return len(self._last)

    def admits(self, user: str, step: int) -> bool:
        """Whether this user may take part in a step, later than any before."""
        last = self._last.get(user)
        if last is None:
            return True
        return step - last >= self._apart and self._repeats.get(user, 1) < self._most

    def record(self, user: str, step: int) -> None:
        """Note that a user took part in a step."""
        last = self._last.get(user, _UNSEEN)
        count = 1
        if last != _UNSEEN:
            count = self._repeats[user] = self._repeats.get(user, 1) + 1
            gap = step - last
            self.min_separation = gap if self.min_separation is None else min(gap, self.min_separation)
        self.max_participations = max(self.max_participations, count)
        self._last[user] = step
        self._changed.add(user)

    def changes(self) -> list[UserRow]:
        """The users whose history changed since the last call."""
        changed = [(user, self._repeats.get(user, 1), self._last[user]) for user in sorted(self._changed)]
        self._changed.clear()
        return changed
