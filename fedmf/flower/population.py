"""Users, not nodes: the handshake that learns which node serves which user."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedmf.flower.boundary import Claims, Handshakes
from fedmf.flower.messages import USERS, RejectedReply, hosted_users, question

__all__ = ["Assignment", "Population", "handshakes"]

#: How many users that are not on the roster one node may claim before all its claims are refused.
_MOST_STRANGERS: Final = 1000
#: How many lines one handshake may make.
_MOST_LINES: Final = 20


class Assignment(ABC):
    """Which node is asked for which user."""

    def gather(self, grid: Grid, timeout: float) -> None:
        """Shake hands until every user can be asked or the time is up.

        Flower may name only part of the nodes at first, so nodes that appear later are asked later.

        Raises:
            RuntimeError: no user of the roster was found in time.
        """
        deadline = time.monotonic() + timeout
        self.refresh(grid, timeout)
        while self.missing and time.monotonic() < deadline:
            time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
            self.refresh(grid, max(0.0, deadline - time.monotonic()))
        if self.missing:
            self._report(f"{self.missing} of {self._users} users are served by no node that answered in time")
        if self.missing == self._users:
            raise RuntimeError(f"no node that serves a known user answered within {timeout:g} s.")

    _users: int
    _report: Callable[[str], None]

    @abstractmethod
    def refresh(self, grid: Grid, timeout: float) -> None:
        """Shake hands with nodes not seen before; costs nothing while there are none."""

    @property
    @abstractmethod
    def missing(self) -> int:
        """Number of users on the roster that no node has claimed."""

    @abstractmethod
    def nodes_of(self, users: NDArray[np.int64]) -> list[int | None]:
        """The id of the node to ask for each user, by index; None where there is none.

        Node ids take all of 64 bits, so they are no int64.
        """


class Population(Assignment):
    """Which node serves which user, kept up to date as nodes come and go.

    Whom nodes claim is believed as `Claims` says: a user is served by the first node that claimed it, for as
    long as that node lives, and nothing that others claim changes it.

    Args:
        roster: the stable ids of all users of the run.
        report: called with one line for the operator about anything odd.
    """

    def __init__(self, roster: Sequence[str], report: Callable[[str], None] = lambda _: None) -> None:
        self._roster, self._users, self._report = roster, len(roster), report
        self._claims, self._handshakes = Claims(len(roster)), handshakes(USERS)
        self._alive: set[int] = set()

    def refresh(self, grid: Grid, timeout: float) -> None:
        """See Assignment.refresh."""
        alive = set(grid.get_node_ids())
        claims: list[tuple[int, NDArray[np.int64]]] = []
        place: dict[str, int] = {}
        for node, reply in self._handshakes.answers(grid, alive, timeout):
            place = place or {user: index for index, user in enumerate(self._roster)}
            try:
                claims.append((node, self._claimed(node, hosted_users(reply), place)))
            except Exception as reason:  # whatever a stranger's bytes may cause
                what = str(reason) if isinstance(reason, RejectedReply) else type(reason).__name__
                self._report(f"node {node} failed the handshake: {what}")
                continue
            self._handshakes.known(node)
        if claims or alive != self._alive:
            self._alive = alive
            for user in self._claims.update(alive, claims)[:_MOST_LINES]:
                self._report(f"user {self._roster[user]!r} is claimed by several nodes; {self._who(user)}")

    @property
    def missing(self) -> int:
        """See Assignment.missing; disputed users are not missing."""
        return self._claims.unclaimed

    def nodes_of(self, users: NDArray[np.int64]) -> list[int | None]:
        """See Assignment.nodes_of."""
        return [self._claims.node_of(user) for user in users.tolist()]

    def disputed(self) -> list[str]:
        """The users whom several nodes claim, and none of them before the others."""
        return [self._roster[user] for user in self._claims.disputed]

    def _who(self, user: int) -> str:
        node = self._claims.node_of(user)
        return "none is asked" if node is None else f"node {node} goes on serving it"

    def _claimed(self, node: int, users: Sequence[str], place: dict[str, int]) -> NDArray[np.int64]:
        if len(users) > 2 * self._users + _MOST_STRANGERS:
            raise RejectedReply(f"reply must claim users of the roster; it claims {len(users)}")
        places = np.fromiter((place.get(user, -1) for user in users), dtype=np.int64, count=len(users))
        if strangers := np.count_nonzero(places < 0):
            self._report(f"node {node} claims {strangers} users that are not on the roster; ignored")
        return np.unique(places[places >= 0])


def handshakes(about: str) -> Handshakes:
    """Questions to nodes: `USERS` or `ROSTER`."""
    content = question(about)
    return Handshakes(lambda node: Message(content, node, MessageType.QUERY, group_id="handshake"))
