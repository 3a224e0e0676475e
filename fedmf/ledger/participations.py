"""The participations of users, and the only rule by which (k, b) admits them to a round or step.

The ledger records and checks them; `StreamServer` asks them for each row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import ParticipationViolation
from fedmf.participation import Participation


@final
class Histories:
    """The number of participations of each user and the time of the last, checked against (k, b).

    Times are rounds of a run or steps of a stream; they only grow. A user has a key, counted from 0
    in the order in which users first took part.

    Admission depends on ids and the order of earlier times alone, never on data: two streams that
    differ in the values of one user admit the same rows at the same steps.

    Args:
        participation: the contract; its k and b are enforced here.

    Attributes:
        names: the users who took part, in the order of their keys.
        max_participations: the largest number of participations of a user.
        min_separation: the smallest distance of two participations of a user; None if no user took
            part twice.

    >>> seen = Histories(Participation(10, 2, 3))
    >>> seen.record("ann", 1), seen.admits("ann", 3), seen.admits("ann", 4)
    (None, False, True)
    >>> seen.check(3, ["eve", "ann"])
    Traceback (most recent call last):
        ...
    fedmf.errors.ParticipationViolation: user 'ann' took part in round 1 and may not in round 3: b
    ...
    """

    def __init__(self, participation: Participation) -> None:
        self._contract = participation
        self.names = list[str]()
        self._key_of = dict[str, int]()
        self._counts = array("q")
        self._lasts = array("q")
        self.max_participations = 0
        self.min_separation: int | None = None

    def of(self, users: Iterable[str]) -> Histories:
        """Return a copy for these users alone, in which participations can be tried."""
        copy = Histories(self._contract)
        for user in dict.fromkeys(users):
            if user in self:
                _, count, last = self.row(user)
                copy._append(user, count, last)
        return copy

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, user: object) -> bool:
        return user in self._key_of

    @property
    def participations(self) -> int:
        """Number of participations of all users together."""
        return sum(self._counts)

    def row(self, user: str) -> tuple[str, int, int]:
        """Return (user, participations, last time) of a user who took part."""
        key = self._key_of[user]
        return user, self._counts[key], self._lasts[key]

    def keys(self, users: Sequence[str]) -> tuple[list[int], list[str]]:
        """Return the keys of distinct users, and those of the users who are new.

        New users have the keys that they will get if they are recorded in this order.
        """
        keys = list[int]()
        newcomers = list[str]()
        for user in users:
            key = self._key_of.get(user)
            if key is None:
                key = len(self) + len(newcomers)
                newcomers.append(user)
            keys.append(key)
        return keys, newcomers

    def admits(self, user: str, time: int) -> bool:
        """Return True if a user may take part at a time, which is later than all before."""
        key = self._key_of.get(user)
        return key is None or not self._refuses(self._lasts[key], self._counts[key], time)

    def _refuses(self, last: Any, count: Any, time: int) -> Any:
        """Return True within b after the last participation, or after k participations.

        Args:
            last: an integer, or those of several users in an array.
            count: likewise.
            time: of the next participation.
        """
        is_too_early = time - last < self._contract.min_separation
        return is_too_early | (count >= self._contract.max_participations)

    def check(self, time: int, users: Iterable[str]) -> None:
        """Require that all these users may take part at a time.

        Raises:
            ParticipationViolation: one may not; the message names the first.
        """
        for user in users:
            if self.admits(user, time):
                continue
            _, count, last = self.row(user)
            if time - last < self._contract.min_separation:
                past = f"in round {last}"
                rule = f"b (min_separation) is {self._contract.min_separation}"
            else:
                past = f"{count} times, last in round {last},"
                rule = f"k (max_participations) is {self._contract.max_participations}"
            raise ParticipationViolation(
                f"user {user!r} took part {past} and may not in round {time}: {rule}."
            )

    def record(self, user: str, time: int) -> None:
        """Record that a user takes part."""
        key = self._key_of.get(user)
        if key is None:
            key = self._append(user, 0, time)
        else:
            separation = time - self._lasts[key]
            if self.min_separation is None or separation < self.min_separation:
                self.min_separation = separation
        self._lasts[key] = time
        self._counts[key] += 1
        self.max_participations = max(self.max_participations, self._counts[key])

    def record_round(self, keys: NDArray[np.uint32], newcomers: Sequence[str], time: int) -> None:
        """Check and record the users of a round by their keys, much faster than one by one.

        Args:
            keys: distinct keys of all of them.
            newcomers: the users among them who are new, in the order of their keys, which are the
                next ones.
            time: the round.

        Raises:
            ParticipationViolation: one may not; the message names the first. None is recorded.
        """
        returning = keys[keys < len(self)]
        lasts = np.asarray(self._lasts)[returning]
        counts = np.asarray(self._counts)[returning]
        refused = returning[self._refuses(lasts, counts, time)]
        self.check(time, [self.names[key] for key in refused[:1].tolist()])
        if returning.size:
            separation = time - int(lasts.max())
            if self.min_separation is None or separation < self.min_separation:
                self.min_separation = separation
            self.max_participations = max(self.max_participations, int(counts.max()) + 1)
            np.asarray(self._lasts)[returning] = time
            np.asarray(self._counts)[returning] = counts + 1
        for user in newcomers:
            self.record(user, time)

    def _append(self, user: str, count: int, last: int) -> int:
        """Give a new user the next key."""
        key = len(self.names)
        self._key_of[user] = key
        self.names.append(user)
        self._counts.append(count)
        self._lasts.append(last)
        return key
