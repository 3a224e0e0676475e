"""A grid as an inner strategy sees it: the nodes of one cohort."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.run import Run

from fedmf.flower.boundary import ServedUsers, shown
from fedmf.flower.screen import hushed
from fedmf.flower.strategy import GridClients, Part
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.runs import Reply, Session


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


class CohortGrid(ForwardedGrid):
    """Another grid, of whose nodes only some are there.

    Args:
        grid: the other one.
        nodes: ids of those.
    """

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        super().__init__(grid)
        self._nodes = list(nodes)

    def get_node_ids(self) -> list[int]:
        """The nodes of the cohort."""
        return list(self._nodes)

    def get_nodes(self) -> list[Any]:
        """What is known of them."""
        return [node for node in super().get_nodes() if node.node_id in set(self._nodes)]


@contextmanager
def _everybody(inner: FedAvg, nodes: int) -> Iterator[None]:
    """A strategy that asks every node it sees: the cohort decides whom to ask, not its fractions."""
    chosen = {
        "fraction_train": 1.0,
        "min_train_nodes": nodes,
        "min_available_nodes": nodes,
    }
    before = {name: getattr(inner, name) for name in chosen}
    vars(inner).update(chosen)
    try:
        yield
    finally:
        vars(inner).update(before)


def messages_of(
    inner: FedAvg,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    cohort: CohortGrid,
) -> list[Message]:
    """What a strategy sends for a round to every node that it sees.

    Raises:
        RuntimeError: the strategy asks other nodes, or one twice.
    """
    nodes = cohort.get_node_ids()
    if not nodes:
        return []
    with _everybody(inner, len(nodes)), hushed():
        messages = list(inner.configure_train(server_round, arrays, config, cohort))
    asked = [message.metadata.dst_node_id for message in messages]
    if sorted(asked) != sorted(nodes):
        raise RuntimeError(
            f"strategy {type(inner).__name__} must ask each of the {len(nodes)} nodes of the cohort once to "
            f"train; it asks {len(asked)}."
        )
    return messages


class AppClients(GridClients):
    """The clients of an app, asked by the messages of an inner strategy: one a user, a row of each.

    Args:
        session: of the run.
        layout: of its model.
        inner: makes the messages.
        nodes: which node serves whom.
    """

    def __init__(self, session: Session, layout: ArrayLayout, inner: FedAvg, nodes: ServedUsers) -> None:
        super().__init__(session, nodes, layout.most_bytes)
        self._layout, self._inner, self._origin = layout, inner, torch.empty(0)

    @property
    def arrays(self) -> ArrayRecord:
        """See `GridClients.arrays`: all arrays, those that stay too."""
        return self._layout.record(self.server.parameters)

    def messages(self, number: int, by_node: Mapping[int, list[str]]) -> list[tuple[Message, Part]]:
        """See `GridClients.messages`.

        Raises:
            RuntimeError: the inner strategy asks other nodes, or one twice.
        """
        arrays = self.arrays
        self._origin = self._layout.flat(arrays, self._layout.number)
        cohort = CohortGrid(self.grid, list(by_node))
        messages = messages_of(self._inner, number, arrays, self.train_config, cohort)
        asked = (message.metadata.dst_node_id for message in messages)
        return [
            (message, (node, tuple(by_node[node]))) for message, node in zip(messages, asked, strict=True)
        ]

    def read(self, message: Message, part: Part) -> Reply:
        """See `GridClients.read`: what counts is what was received minus what was sent."""
        node, users = part
        row = self._layout.read(_arrays_of(message))[None]
        return Reply(users, row, node=node, origin=self._origin)


def _arrays_of(reply: Message) -> ArrayRecord:
    if reply.has_error():
        raise ValueError(f"client error {reply.error.code}: {shown(reply.error.reason)}")
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise ValueError(
            f"reply must hold one array record; got {len(records)}. Clients must return the model in one "
            "ArrayRecord"
        )
    return records[0]
