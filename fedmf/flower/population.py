"""Users, not nodes: the handshake that learns which node serves which user."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedmf.flower.messages import RejectedReply, hosted_users

__all__ = ["Population", "pull_until"]


class Population:
    """Which node serves which user, kept up to date as nodes come and go.

    A user claimed by two living nodes is disputed: neither claim is believed and the user is never
    asked again. A claim on a user whose node has left (node ids change on restart) is a move.

    Args:
        roster: the stable ids of all users of the run.
        report: called with one line for the operator about anything odd.
    """

    def __init__(self, roster: Sequence[str], report: Callable[[str], None] = lambda _: None) -> None:
        self.node_of: dict[str, int] = {}
        self.disputed: set[str] = set()
        self._roster = frozenset(roster)
        self._asked: set[int] = set()
        self._report = report

    def gather(self, grid: Grid, timeout: float) -> None:
        """Ask nodes which users they serve until the whole roster is found or the time is up.

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
            self._report(
                f"{self.missing} of {len(self._roster)} users are served by no node that answered in time"
            )
        if not self.node_of:
            raise RuntimeError(f"no node that serves a known user answered within {timeout:g} s.")

    def refresh(self, grid: Grid, timeout: float) -> None:
        """Shake hands with nodes not seen before; costs nothing while there are none."""
        alive = set(grid.get_node_ids())
        newcomers = sorted(alive - self._asked)
        self._asked |= alive
        messages = [
            Message(RecordDict(), node, MessageType.QUERY, group_id="handshake") for node in newcomers
        ]
        for reply in pull_until(grid, list(grid.push_messages(messages)), timeout):
            node = reply.metadata.src_node_id
            try:
                self._register(node, hosted_users(reply), alive)
            except RejectedReply as reason:
                self._report(f"node {node} failed the handshake: {reason}")

    @property
    def missing(self) -> int:
        """Number of users on the roster that no node has claimed."""
        return len(self._roster) - len(self.node_of) - len(self.disputed)

    def _register(self, node: int, users: Sequence[str], alive: set[int]) -> None:
        strangers = 0
        for user in users:
            owner = self.node_of.get(user)
            if user not in self._roster:
                strangers += 1
            elif user in self.disputed or owner == node:
                continue
            elif owner is not None and owner in alive:
                del self.node_of[user]
                self.disputed.add(user)
                self._report(f"user {user!r} is claimed by several nodes and will not be asked")
            else:
                self.node_of[user] = node
        if strangers:
            self._report(f"node {node} claims {strangers} users that are not on the roster; ignored")


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
