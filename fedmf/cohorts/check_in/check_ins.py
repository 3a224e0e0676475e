"""Who checks in when, as a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIXERS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def uniform(
    seed: int, purpose: int, time: int | NDArray[np.int64], users: NDArray[np.integer]
) -> NDArray[np.float64]:
    """A number in [0, 1) for each user: a hash of seed, purpose, time and the user's own index.

    Two rounds of SplitMix64's finaliser, the second with time and seed. The seed is public: the coins protect
    nothing.

    Args:
        seed: 0 ≤ seed < 2⁶³.
        purpose: what the coin is for; other purposes have other coins.
        time: a round or day, one for all or one each; may be negative.
        users: indices.

    >>> both, alone = uniform(1, 0, 5, np.array([3, 8])), uniform(1, 0, 5, np.array([8]))
    >>> bool(both[1] == alone[0])
    True
    """
    at = np.asarray(time, dtype=np.int64).astype(np.uint64)
    with np.errstate(over="ignore"):
        word = _mixed(np.asarray(users).astype(np.uint64) + np.uint64(purpose * _GOLDEN % 2**64))
        word = _mixed(word ^ _mixed(at + np.uint64((seed + 1) * _GOLDEN % 2**64)))
    return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(word: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    mixed = np.asarray(word, dtype=np.uint64) + np.uint64(_GOLDEN)
    for shift, factor in _MIXERS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class CheckIns:
    """The users that check in, round by round; after the last recorded round it begins again.

    Args:
        users: U; indices are below it.
        starts: where each round begins in ``members``, and the end: shape (recorded rounds + 1,).
        members: user indices, sorted and distinct within a round.

    >>> seen = CheckIns.of_rounds(3, [[0, 2], [1]])
    >>> [seen.at(t).tolist() for t in range(4)]
    [[0, 2], [1], [0, 2], [1]]
    """

    users: int
    starts: NDArray[np.int64]
    members: NDArray[np.int32]

    def __post_init__(self) -> None:
        if self.starts.size < 2:
            raise ValueError("check-ins must cover at least one round; got none.")
        if self.members.size and not 0 <= self.members.min() <= self.members.max() < self.users:
            raise ValueError(f"user (of a check-in) must lie in 0..{self.users - 1}; got another index.")

    @classmethod
    def of_rounds(cls, users: int, rounds: Iterable[Iterable[int] | NDArray[np.integer]]) -> Self:
        """From the users of each round, in any order."""
        present = [np.unique(np.asarray(here, dtype=np.int32)) for here in rounds]
        starts = np.cumsum([0, *(here.size for here in present)])
        return cls(users, starts, np.concatenate([np.empty(0, np.int32), *present]))

    @property
    def recorded_rounds(self) -> int:
        """How many rounds there are before it begins again."""
        return self.starts.size - 1

    def at(self, t: int) -> NDArray[np.int32]:
        """The users that check in during round t ≥ 0, sorted."""
        place = t % self.recorded_rounds
        return self.members[self.starts[place] : self.starts[place + 1]]

    def lent_to(self, users: int) -> CheckIns:
        """The same for another number of users: user i has the check-ins of device i mod U."""
        copies = [self.members[self.members < users]]
        if users == self.users:
            return self
        if users < self.users:
            kept = np.concatenate([[0], np.cumsum(self.members < users)])
            return CheckIns(users, kept[self.starts], copies[0])
        shifts = np.arange(0, users, self.users)
        return CheckIns.of_rounds(
            users,
            (
                (everyone := (self.at(t)[None, :] + shifts[:, None]).ravel())[everyone < users]
                for t in range(self.recorded_rounds)
            ),
        )
