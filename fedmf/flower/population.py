"""Users, not nodes: the handshake that learns which node serves which user."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedmf.flower.messages import USERS, RejectedReply, hosted_users, question

__all__ = ["Assignment", "Population", "ask_nodes", "pull_until"]

_NOBODY, _DISPUTED = -1, -2


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

    A user claimed by two living nodes is disputed: neither claim is believed and the user is never
    asked again. A claim on a user whose node has left (node ids change on restart) is a move.

    Args:
        roster: the stable ids of all users of the run.
        report: called with one line for the operator about anything odd.
    """

    def __init__(self, roster: Sequence[str], report: Callable[[str], None] = lambda _: None) -> None:
        self._roster, self._users, self._report = roster, len(roster), report
        self._asked: set[int] = set()
        self._nodes: list[int] = []
        self._slot = np.full(len(roster), _NOBODY, dtype=np.int32)  # into _nodes

    def refresh(self, grid: Grid, timeout: float) -> None:
        """See Assignment.refresh."""
        alive = set(grid.get_node_ids())
        newcomers = sorted(alive - self._asked)
        if not newcomers:
            return
        self._asked |= alive
        place = {user: index for index, user in enumerate(self._roster)}
        for node, reply in ask_nodes(grid, newcomers, USERS, timeout):
            try:
                self._register(node, hosted_users(reply), alive, place)
            except RejectedReply as reason:
                self._report(f"node {node} failed the handshake: {reason}")

    @property
    def missing(self) -> int:
        """See Assignment.missing; disputed users are not missing."""
        return int(np.count_nonzero(self._slot == _NOBODY))

    def nodes_of(self, users: NDArray[np.int64]) -> list[int | None]:
        """See Assignment.nodes_of."""
        return [self._nodes[slot] if slot >= 0 else None for slot in self._slot[users].tolist()]

    def disputed(self) -> list[str]:
        """The users that several nodes claim."""
        return [self._roster[index] for index in np.flatnonzero(self._slot == _DISPUTED).tolist()]

    def _register(self, node: int, users: Sequence[str], alive: set[int], place: dict[str, int]) -> None:
        roster_places = np.fromiter((place.get(user, -1) for user in users), dtype=np.int64, count=len(users))
        if strangers := np.count_nonzero(roster_places < 0):
            self._report(f"node {node} claims {strangers} users that are not on the roster; ignored")
        claimed = np.unique(roster_places[roster_places >= 0])
        owners = self._slot[claimed]
        living = [slot for slot, other in enumerate(self._nodes) if other in alive]
        contested = np.isin(owners, living)
        self._slot[claimed[contested]] = _DISPUTED
        for index in claimed[contested].tolist():
            self._report(f"user {self._roster[index]!r} is claimed by several nodes and will not be asked")
        self._slot[claimed[~contested & (owners != _DISPUTED)]] = len(self._nodes)
        self._nodes.append(node)


def ask_nodes(grid: Grid, nodes: Sequence[int], about: str, timeout: float) -> Iterator[tuple[int, Message]]:
    """(node, reply) of the nodes that answer a handshake question in time."""
    content = question(about)
    messages = [Message(content, node, MessageType.QUERY, group_id="handshake") for node in nodes]
    for reply in pull_until(grid, list(grid.push_messages(messages)), timeout):
        yield reply.metadata.src_node_id, reply


def pull_until(
    grid: Grid, message_ids: Sequence[str], timeout: float, interval: float = 0.05
) -> Iterator[Message]:
    """Yield the first reply to each message as it arrives, until all are in or the time is up."""
    pending = set(message_ids)
    deadline = time.monotonic() + timeout
    pause = interval
    while pending:
        arrived = False
        for reply in grid.pull_messages([m for m in message_ids if m in pending]):
            if reply.metadata.reply_to_message_id in pending:
                pending.discard(reply.metadata.reply_to_message_id)
                arrived = True
                yield reply
        if not pending or time.monotonic() >= deadline:
            return
        pause = interval if arrived else min(pause * 1.5, 1.0)
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
