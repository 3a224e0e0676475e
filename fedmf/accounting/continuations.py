"""Several continuations of one run: who took part in what all of them released together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.patterns import PatternTable
from fedmf.accounting.recorded import ParticipationRecord
from fedmf.errors import LedgerError
from fedmf.factorization import Branches

#: The entry of an opening's note that says what was released after the backup from which a run goes on.
RESTORED = "restored"


@dataclass(frozen=True)
class LostRounds:
    """Rounds that were released and are not in the ledger, since it was restored from a backup.

    Attributes:
        first: the first of them, 0-based: the ledger holds those before.
        released: the first round after them.
        head: what identifies them, hexadecimal.
        planned: the users that were planned for each; who of them took part is not known.
    """

    first: int
    released: int
    head: str
    planned: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.released or len(self.planned) != self.released - self.first:
            raise LedgerError(
                f"rounds (lost with a backup) must name the users planned for each of rounds {self.first}.."
                f"{self.released - 1}; got {len(self.planned)} lists."
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        planned = [list(users) for users in self.planned]
        return {"first": self.first, "released": self.released, "head": self.head, "planned": planned}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        planned = tuple(tuple(users) for users in values["planned"])
        return cls(int(values["first"]), int(values["released"]), str(values["head"]), planned)


def lost_rounds(record: ParticipationRecord) -> list[LostRounds]:
    """All that the openings of a record say was lost, each once.

    Raises:
        LedgerError: such a note cannot be read.
    """
    found: dict[str, LostRounds] = {}
    for opening in record.openings():
        for entry in opening.note.get(RESTORED, ()):
            try:
                lost = LostRounds.from_dict(entry)
            except (KeyError, TypeError, ValueError):
                raise LedgerError(
                    f"the note of opening {opening.number} must say which rounds were lost; it cannot be "
                    "read."
                ) from None
            found[lost.head] = lost
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Continuation:
    """The rounds of one continuation from the beginning of the run, and who took part.

    Attributes:
        identities: of rounds 0, 1, …: equal in two continuations where they are the same release.
        users: names by key.
        rounds: of each participation, shape (participations,).
        keys: of the user of each, likewise.
    """

    identities: Sequence[Hashable]
    users: Sequence[str]
    rounds: NDArray[np.integer]
    keys: NDArray[np.integer]

    @classmethod
    def of_lost(cls, lost: LostRounds, shared: Sequence[Hashable]) -> Self:
        """Rounds that a ledger does not hold, after its rounds ``shared``."""
        if len(shared) < lost.first:
            raise LedgerError(f"rounds 0..{lost.first - 1} must be in the ledger; it holds {len(shared)}.")
        own = [(lost.head, t) for t in range(lost.first, lost.released)]
        users = sorted({user for planned in lost.planned for user in planned})
        key_of = {user: key for key, user in enumerate(users)}
        keys = [key_of[user] for planned in lost.planned for user in planned]
        rounds = [t for t, planned in enumerate(lost.planned, lost.first) for _ in planned]
        taken = np.array(rounds, dtype=np.int64), np.array(keys, dtype=np.int64)
        return cls([*shared[: lost.first], *own], users, *taken)


def continuations_of(record: ParticipationRecord) -> list[Continuation]:
    """What one record holds, and what was lost with a backup from which it goes on."""
    with record.snapshot():
        identities = [chain for _, chain in record.chains()]
        own = Continuation(identities, *record.by_user())
        return [own, *(Continuation.of_lost(lost, identities) for lost in lost_rounds(record))]


@dataclass(frozen=True, eq=False)
class JointRecord:
    """What several continuations released together and who took part, each shared round once.

    Attributes:
        branches: the tree of rounds; its places are the rounds of this record.
        users: names by key.
        places: of all participations, sorted by user and place, shape (participations,).
        keys: their users, likewise.
    """

    branches: Branches
    users: list[str]
    places: NDArray[np.int32]
    keys: NDArray[np.int32]

    @classmethod
    def of(cls, continuations: Sequence[Continuation]) -> Self:
        """Put continuations together: they share the rounds in which they agree from the beginning."""
        branches, ways = Branches.of_paths([entry.identities for entry in continuations])
        taken = np.zeros(branches.rounds, dtype=bool)
        key_of: dict[str, int] = {}
        size, joined = max(1, branches.rounds), [np.empty(0, dtype=np.int64)]
        for entry, way in zip(continuations, ways, strict=True):
            fresh = ~taken[way]
            taken[way] = True
            names = np.array([key_of.setdefault(user, len(key_of)) for user in entry.users], dtype=np.int64)
            kept = fresh[entry.rounds]
            joined.append(names[entry.keys[kept]] * size + way[entry.rounds[kept]])
        every = np.sort(np.concatenate(joined))
        places, keys = (every % size).astype(np.int32), (every // size).astype(np.int32)
        return cls(branches, list(key_of), places, keys)

    @property
    def patterns(self) -> PatternTable:
        """Which patterns of places occur, and how many users share each."""
        return PatternTable.of_histories(self.places, self.keys)
