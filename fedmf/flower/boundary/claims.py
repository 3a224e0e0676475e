"""Which node serves which user, as nodes claim: first come, and nobody is thrown out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_NOBODY: Final = -1


class Claims:
    """Accepted claims of each user in their order: the first whose node lives serves the user.

    A claim is accepted if no node lives whose claim on that user was accepted, and no other living node
    claims the user too. Otherwise it waits, and is accepted once both hold. So who serves a user is neither
    replaced nor locked out by what others claim later, and gets the user back if it comes back under its
    own id; one that comes back under another id gets the user once the old id is gone. Users whom several
    living nodes claim, and none of them before the others, are disputed: nobody is asked for them until one
    claim is left.

    Args:
        users: N; users are 0..N−1.
    """

    def __init__(self, users: int) -> None:
        self._nodes: list[int] = []
        self._slots: dict[int, int] = {}
        self._first = np.full(users, _NOBODY, dtype=np.int32)  # into _nodes
        self._later: dict[int, list[int]] = {}
        self._waiting: dict[int, list[int]] = {}
        self._alive: Collection[int] = ()

    def update(self, alive: Collection[int], claims: Sequence[tuple[int, NDArray[np.int64]]]) -> list[int]:
        """Take in new claims of one handshake, which none of them came first in, and who lives.

        Args:
            alive: all nodes that live.
            claims: nodes and the indices of users whom each claims.

        Returns:
            The users of these claims that wait.
        """
        self._alive = alive
        users = np.concatenate([np.unique(claimed) for _, claimed in claims] or [np.empty(0, np.int64)])
        slots = np.repeat(
            np.array([self._slot(node) for node, _ in claims], dtype=np.int32),
            [np.unique(claimed).size for _, claimed in claims],
        )
        _, places, counts = np.unique(users, return_inverse=True, return_counts=True)
        waiting = np.fromiter(self._waiting, dtype=np.int64, count=len(self._waiting))
        alone = (counts[places] == 1) & (self._first[users] == _NOBODY) & ~np.isin(users, waiting)
        self._first[users[alone]] = slots[alone]
        for user, slot in zip(users[~alone].tolist(), slots[~alone].tolist(), strict=True):
            queue = self._waiting.setdefault(user, [])
            if slot not in (*self._accepted(user), *queue):
                queue.append(slot)
        self._settle()
        return sorted({user for user in users[~alone].tolist() if user in self._waiting})

    def node_of(self, user: int) -> int | None:
        """The living node that serves a user."""
        if self._first[user] == _NOBODY:
            return None
        accepted = (self._nodes[slot] for slot in self._accepted(user))
        return next((node for node in accepted if node in self._alive), None)

    @property
    def disputed(self) -> list[int]:
        """Users whom several living nodes claim and none of them serves."""
        return sorted(user for user in self._waiting if self.node_of(user) is None)

    @property
    def unclaimed(self) -> int:
        """How many users have no claim that was accepted or waits; those that wait leave with their node."""
        contested = sum(self._first[user] == _NOBODY for user in self._waiting)
        return int(np.count_nonzero(self._first == _NOBODY)) - int(contested)

    def _slot(self, node: int) -> int:
        if node not in self._slots:
            self._slots[node] = len(self._nodes)
            self._nodes.append(node)
        return self._slots[node]

    def _accepted(self, user: int) -> list[int]:
        return [int(self._first[user]), *self._later.get(user, ())]

    def _settle(self) -> None:
        """Accept claims that wait for nobody any more; forget those of nodes that left: they claim again."""
        for user in list(self._waiting):
            living = [slot for slot in self._waiting[user] if self._nodes[slot] in self._alive]
            if len(living) == 1 and self.node_of(user) is None:
                if self._first[user] == _NOBODY:
                    self._first[user] = living[0]
                else:
                    self._later.setdefault(user, []).append(living[0])
                living = []
            self._waiting[user] = living
            if not living:
                del self._waiting[user]
