"""A grid that passes everything on to another one; what differs is said by subclasses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class ForwardedGrid(Grid):
    """Another grid under another class.

    Args:
        grid: what carries the messages.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """See Grid.set_run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """See Grid.run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """See Grid.create_message."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """See Grid.get_node_ids."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """See Grid.get_nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See Grid.push_messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See Grid.pull_messages."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """See Grid.send_and_receive."""
        return self._grid.send_and_receive(messages, timeout=timeout)
