"""Who took part when, and who may take part in the next round or step: the one rule for (k, b)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from fedmf.errors import ParticipationViolation
from fedmf.participation import Participation


@final
class Histories:
    """How often and when last each user took part, against (n, k, b).

    Times are rounds of a run or steps of a stream; they only grow. A user has a key, counted from 0
    in the order in which users first took part.

    Whether a user is admitted depends on ids and the order of earlier times alone, never on data:
    two streams that differ in the values of one user admit the same rows at the same steps.

    Args:
        participation: the contract; its k and b are enforced here.

    Attributes:
        names: the users who took part, in the order of their keys.
        max_participations: the largest number of participations of a user.
        min_separation: the smallest distance of two of one user; None if no user took part twice.

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
        self._most = participation.max_participations
        self._apart = participation.min_separation
        self.names = list[str]()
        self._key_of = dict[str, int]()
        self._counts = list[int]()
        self._lasts = list[int]()
        self.max_participations = 0
        self.min_separation: int | None = None

    def of(self, users: Iterable[str]) -> Histories:
        """The histories of these users alone, to try what they may do."""
        tried = Histories(self._contract)
        for user in dict.fromkeys(users):
            if user in self:
                _, count, last = self.row(user)
                tried._append(user, count, last)
        return tried

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, user: object) -> bool:
        return user in self._key_of

    @property
    def participations(self) -> int:
        """How often users took part, all of them together."""
        return sum(self._counts)

    def row(self, user: str) -> tuple[str, int, int]:
        """(user, participations, last time) of a user who took part."""
        key = self._key_of[user]
        return user, self._counts[key], self._lasts[key]

    def keys(self, users: Sequence[str]) -> tuple[list[int], list[str]]:
        """The keys of distinct users, and those among them who are new, with the keys they will
        have.
        """
        newcomers = [user for user in users if user not in self._key_of]
        coming = {user: key for key, user in enumerate(newcomers, len(self))}
        return [coming[user] if user in coming else self._key_of[user] for user in users], newcomers

    def admits(self, user: str, time: int) -> bool:
        """Whether a user may take part at a time, later than any before."""
        key = self._key_of.get(user)
        return key is None or not self._refuses(self._lasts[key], self._counts[key], time)

    def _refuses(self, last: int, count: int, time: int) -> bool:
        """The rule: less than b after the last participation, or one more than k."""
        return time - last < self._apart or count >= self._most

    def check(self, time: int, users: Iterable[str]) -> None:
        """See that users may take part together.

        Raises:
            ParticipationViolation: the first who may not.
        """
        for user in users:
            if not self.admits(user, time):
                _, count, last = self.row(user)
                if time - last < self._apart:
                    past = f"in round {last}"
                    rule = f"b (min_separation) is {self._apart}"
                else:
                    past = f"{count} times, last in round {last},"
                    rule = f"k (max_participations) is {self._most}"
                raise ParticipationViolation(
                    f"user {user!r} took part {past} and may not in round {time}: {rule}."
                )

    def record(self, user: str, time: int) -> None:
        """Note that a user takes part."""
        key = self._key_of.get(user)
        if key is None:
            key = self._append(user, 0, time)
        else:
            apart = time - self._lasts[key]
            self.min_separation = (
                apart if self.min_separation is None else min(apart, self.min_separation)
            )
        self._lasts[key] = time
        self._counts[key] += 1
        self.max_participations = max(self.max_participations, self._counts[key])

    def _append(self, user: str, count: int, last: int) -> int:
        key = self._key_of[user] = len(self.names)
        self.names.append(user)
        self._counts.append(count)
        self._lasts.append(last)
        return key
