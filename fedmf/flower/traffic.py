"""What a server sends: seen by whoever watches, whichever grid carries it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedmf.flower.arrays import tensor_of
from fedmf.rounds import WATCHERS, SentMessage, Watcher


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


def sent_message(message: Message) -> SentMessage:
    """Read a message of the server."""
    content = message.content
    arrays = [array for record in content.array_records.values() for array in record.values()]
    config = {name: dict(record) for name, record in content.config_records.items()}
    named = [users for record in config.values() if isinstance(users := record.get("users"), list)]
    return SentMessage(
        message.metadata.message_type,
        message.metadata.group_id,
        tuple(str(user) for users in named for user in users),
        (sum(len(array.data) for array in arrays), len(repr(config))),
        tensor_of(arrays[0]).clone() if len(arrays) == 1 else None,
    )


def watch(grid: Grid) -> Grid:
    """The grid itself, or one that shows what it sends, if anybody watches."""
    return WatchedGrid(grid, tuple(WATCHERS)) if WATCHERS else grid


class WatchedGrid(ForwardedGrid):
    """A grid that shows every message before it sends it.

    Args:
        grid: what carries the messages.
        watchers: who sees them.
    """

    def __init__(self, grid: Grid, watchers: tuple[Watcher, ...]) -> None:
        super().__init__(grid)
        self._watchers = watchers
        #: Replies may be pulled past this grid, which shows only what is sent.
        self.carrier = grid

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See Grid.push_messages."""
        return super().push_messages(self._shown(messages))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """See Grid.send_and_receive."""
        return super().send_and_receive(self._shown(messages), timeout=timeout)

    def _shown(self, messages: Iterable[Message]) -> list[Message]:
        sent = list(messages)
        for message in sent:
            for note in self._watchers:
                note(sent_message(message))
        return sent
