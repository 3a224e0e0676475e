"""Who took part when, and who may take part in the next round or step: the one rule for (k, b)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, final, overload

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import ParticipationViolation
from fedmf.participation import Participation

#: (user, participations, last time)
UserRow = tuple[str, int, int]

_NEVER: Final = -(1 << 62)


@final
class Histories:
    """How often and when last each user took part, against (n, k, b).

    Times are rounds of a run or steps of a stream; they only grow. A user has a key, counted from 0 in the
    order in which users were first met. Rounds are dealt with by arrays of keys and streams user by user;
    both meet the same rule. Twenty-four bytes a user and its name.

    Whether a user is admitted depends on ids and the order of earlier times alone, never on data: two
    streams that differ in the values of one user admit the same rows at the same steps.

    Args:
        participation: the contract; its k and b are enforced here.
        names: the users met before, in the order of their keys, without participations yet.

    >>> seen = Histories(Participation(10, 2, 3))
    >>> seen.record("ann", 1), seen.admits("ann", 3), seen.admits("ann", 4)
    (None, False, True)
    >>> seen.check(3, seen.keys(["eve", "ann"])[0])
    Traceback (most recent call last):
        ...
    fedmf.errors.ParticipationViolation: user 'ann' took part in round 1 and may not in round 3: b ...
    """

    def __init__(self, participation: Participation, names: Sequence[str] = ()) -> None:
        self._contract = participation
        self._most, self._apart = participation.max_participations, participation.min_separation
        self.names: list[str] = []
        self._key_of: dict[str, int] = {}
        #: The largest number of participations of a user so far, and the least distance of two; None if
        #: nobody took part twice.
        self.max_participations = 0
        self.min_separation: int | None = None
        self._hold(array("q"), array("q"), 1024)
        self.meet(names)

    @classmethod
    def from_rows(
        cls, participation: Participation, rows: Iterable[UserRow], min_separation: int | None
    ) -> Histories:
        """Histories as `row` gave them, with the least distance of two participations."""
        histories = cls(participation)
        names, counts, lasts = [], array("q"), array("q")
        for user, count, last in rows:
            names.append(user)
            counts.append(count)
            lasts.append(last)
        histories._hold(lasts, counts, len(names))
        histories.meet(names)
        histories.max_participations, histories.min_separation = max(counts, default=0), min_separation
        return histories

    def of(self, users: Iterable[str]) -> Histories:
        """The histories of these users alone, to try what they may do."""
        known = [self.row(user) for user in dict.fromkeys(users) if user in self._key_of]
        return Histories.from_rows(self._contract, known, None)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each user took part, by key."""
        return self._counts[: len(self)].copy()

    def __contains__(self, user: object) -> bool:
        return user in self._key_of

    def key_of(self, user: str) -> int:
        """The key of a user who was met."""
        return self._key_of[user]

    def row(self, user: str) -> UserRow:
        """The history of a user who took part."""
        key = self._key_of[user]
        return user, self._count[key], self._last[key]

    def admits(self, user: str, time: int) -> bool:
        """Whether this user may take part at a time, later than any before."""
        key = self._key_of.get(user)
        return key is None or not self._refuses(self._last[key], self._count[key], time)

    def record(self, user: str, time: int) -> None:
        """Note that a user takes part."""
        key = self._key_of.get(user)
        if key is None:  # as `meet`, which is made for many
            key = self._key_of[user] = len(self.names)
            self.names.append(user)
            if key == len(self._last):
                self._hold(self._last, self._count, 2 * key + 1)
        elif self._last[key] != _NEVER:
            apart = time - self._last[key]
            self.min_separation = apart if self.min_separation is None else min(apart, self.min_separation)
        self._last[key] = time
        count = self._count[key] = self._count[key] + 1
        if count > self.max_participations:
            self.max_participations = count

    def keys(self, users: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
        """The keys of distinct users, and those among them that are new: `meet` will give them these keys.

        >>> Histories(Participation(10, 2, 3), ["ann", "bob"]).keys(["eve", "bob"])
        (array([2, 1]), ['eve'])
        """
        keys = np.array([self._key_of.get(user, -1) for user in users], dtype=np.int64)
        unknown = np.flatnonzero(keys < 0)
        keys[unknown] = np.arange(len(self), len(self) + unknown.size)
        return keys, [users[position] for position in unknown.tolist()]

    def meet(self, newcomers: Sequence[str]) -> None:
        """Give newcomers the next keys."""
        start, needed = len(self), len(self) + len(newcomers)
        if needed > len(self._last):
            self._hold(self._last, self._count, max(needed, 2 * len(self._last)))
        self._key_of.update(zip(newcomers, range(start, needed), strict=True))
        self.names.extend(newcomers)

    def check(self, time: int, keys: NDArray[np.integer]) -> None:
        """See that the users with these keys may take part together; newcomers always may.

        Raises:
            ParticipationViolation: the first who may not.
        """
        known = keys[keys < len(self)]
        refused = self._refuses(self._lasts[known], self._counts[known], time)
        if refused.any():
            raise self._violation(self.row(self.names[known[refused.argmax()]]), time)

    def record_all(self, time: int, keys: NDArray[np.integer]) -> None:
        """Note that the users with these keys, distinct and all met, take part together."""
        latest = int(self._lasts[keys].max(initial=_NEVER))
        if latest != _NEVER and (self.min_separation is None or time - latest < self.min_separation):
            self.min_separation = time - latest
        counts = self._counts[keys] + 1
        self._lasts[keys], self._counts[keys] = time, counts
        self.max_participations = max(self.max_participations, int(counts.max(initial=0)))

    @overload
    def _refuses(self, last: int, count: int, time: int) -> bool: ...
    @overload
    def _refuses(self, last: NDArray[np.int64], count: NDArray[np.int64], time: int) -> NDArray[np.bool_]: ...
    def _refuses(
        self, last: int | NDArray[np.int64], count: int | NDArray[np.int64], time: int
    ) -> bool | NDArray[np.bool_]:
        """The rule: less than b after the last participation, or one more than k."""
        return (time - last < self._apart) | (count >= self._most)

    def _violation(self, row: UserRow, time: int) -> ParticipationViolation:
        user, count, last = row
        if time - last < self._apart:
            past, rule = f"in round {last}", f"b (min_separation) is {self._apart}"
        else:
            past, rule = f"{count} times, last in round {last},", f"k (max_participations) is {self._most}"
        return ParticipationViolation(f"user {user!r} took part {past} and may not in round {time}: {rule}.")

    def _hold(self, last: array[int], count: array[int], size: int) -> None:
        """Keep these columns with room for so many users, as arrays that Python and NumPy both read fast."""
        self._last = last + array("q", [_NEVER]) * (size - len(last))
        self._count = count + array("q", [0]) * (size - len(count))
        self._lasts = np.frombuffer(self._last, np.int64) if size else np.empty(0, np.int64)
        self._counts = np.frombuffer(self._count, np.int64) if size else np.empty(0, np.int64)
