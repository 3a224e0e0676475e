"""A grid as an inner strategy sees it: the nodes of one cohort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedmf.flower.forwarded_grid import ForwardedGrid

__all__ = ["CohortGrid", "messages_of"]


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
    inner: FedAvg, server_round: int, arrays: ArrayRecord, config: ConfigRecord, cohort: CohortGrid
) -> list[Message]:
    """What a strategy sends for a round to every node that it sees."""
    nodes = len(cohort.get_node_ids())
    if not nodes:
        return []
    with _everybody(inner, nodes):
        return list(inner.configure_train(server_round, arrays, config, cohort))
