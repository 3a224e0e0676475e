"""A grid as an inner strategy sees it: the nodes of one cohort."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.run import Run

__all__ = ["CohortGrid", "messages_of"]


class CohortGrid(Grid):
    """Another grid, of whose nodes only some are there.

    Args:
        grid: the other one.
        nodes: ids of those.
    """

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid, self._nodes = grid, list(nodes)

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

    def get_node_ids(self) -> list[int]:
        """The nodes of the cohort."""
        return list(self._nodes)

    def get_nodes(self) -> list[Any]:
        """What is known of them."""
        return [node for node in self._grid.get_nodes() if node.node_id in set(self._nodes)]

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
    inner: FedAvg, server_round: int, arrays: ArrayRecord, config: ConfigRecord, cohort: CohortGrid
) -> list[Message]:
    """What a strategy sends for a round to every node that it sees."""
    nodes = len(cohort.get_node_ids())
    if not nodes:
        return []
    with _everybody(inner, nodes):
        return list(inner.configure_train(server_round, arrays, config, cohort))
