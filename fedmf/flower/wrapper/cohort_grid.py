"""A grid as an inner strategy sees it: the nodes of one cohort."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedmf.flower.asking import Exchange
from fedmf.flower.boundary import Quarantine
from fedmf.flower.traffic import ForwardedGrid
from fedmf.flower.wrapper.identity import UserIdentity
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.runs import Session
from fedmf.training import FixedPointSum


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


class UserMessages(Exchange):
    """The messages of an inner strategy, one a user, of whose replies each is one row of numbers.

    Args:
        messages: to be sent.
        nodes: the user of each node.
        row: of a reply, float64; it raises for one that holds none.
    """

    def __init__(
        self, messages: list[Message], nodes: Mapping[int, str], row: Callable[[Message], Tensor]
    ) -> None:
        asked = [message.metadata.dst_node_id for message in messages]
        super().__init__(messages, [(node, (nodes[node],)) for node in asked])
        self._row = row

    def add(self, reply: Message, users: tuple[str, ...], total: FixedPointSum) -> dict[str, str]:
        """See `Exchange.add`."""
        try:
            finite = bool(total.add_updates(self._row(reply)[None]).all())
        except Exception as error:  # whatever a stranger's bytes may cause
            total.add_nothing(1)
            return dict.fromkeys(users, str(error) or type(error).__name__)
        return {} if finite else dict.fromkeys(users, "update holds NaN or infinity")


@contextmanager
def _everybody(inner: FedAvg, nodes: int) -> Iterator[None]:
    """A strategy that asks every node it sees: the cohort decides whom to ask, not its fractions."""
    chosen = {
        "fraction_train": 1.0,
        "fraction_evaluate": 1.0,
        "min_train_nodes": nodes,
        "min_evaluate_nodes": nodes,
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
    kind: Literal["train", "evaluate"],
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
    configure = inner.configure_train if kind == "train" else inner.configure_evaluate
    with _everybody(inner, len(nodes)):
        messages = list(configure(server_round, arrays, config, cohort))
    asked = [message.metadata.dst_node_id for message in messages]
    if sorted(asked) != sorted(nodes):
        raise RuntimeError(
            f"strategy {type(inner).__name__} must ask each of the {len(nodes)} nodes of the cohort once to "
            f"{kind}; it asks {len(asked)}."
        )
    return messages


@dataclass(frozen=True, eq=False)
class AppClients:
    """The clients of an app: who serves whom, and what an inner strategy sends them.

    Attributes:
        opened: the run.
        layout: of its model.
        inner: makes the messages.
        identity: which node serves whom.
        quarantine: which nodes are asked no more.
        retries: how often silence of everybody is asked again.
    """

    opened: Session
    layout: ArrayLayout
    inner: FedAvg
    identity: UserIdentity
    quarantine: Quarantine
    retries: int

    @property
    def model(self) -> ArrayRecord:
        """The released one, whole."""
        return self.layout.record(self.opened.server.parameters)

    def asked(
        self,
        kind: Literal["train", "evaluate"],
        number: int,
        users: Mapping[int, str],
        config: ConfigRecord,
        grid: Grid,
        row: Callable[[Message], Tensor],
    ) -> tuple[UserMessages, bool]:
        """The messages to users, given as ids by index, and whether it helps to wait for their replies.

        It does not where nobody is asked, or somebody's node is left out as useless: another useless reply of
        it would have ended the wait.

        Raises:
            RuntimeError: the inner strategy asks other nodes, or one twice.
        """
        found = zip(
            self.identity.nodes_of(np.array(list(users), dtype=np.int64)), users.values(), strict=True
        )
        served = {node: user for node, user in found if node is not None}
        nodes = {node: user for node, user in served.items() if (node, user) not in self.quarantine}
        cohort = CohortGrid(grid, sorted(nodes))
        messages = messages_of(self.inner, kind, number, self.model, config, cohort)
        return UserMessages(messages, nodes, row), bool(users) and len(nodes) == len(served)


def evaluation_messages_of(
    inner: FedAvg, server_round: int, arrays: ArrayRecord, config: ConfigRecord, nodes: CohortGrid
) -> list[Message]:
    """What a strategy sends to have a model evaluated, by its own fractions of the nodes that it sees.

    Nothing as long as they are fewer than it would wait for.
    """
    if len(nodes.get_node_ids()) < inner.min_available_nodes:
        return []
    return list(inner.configure_evaluate(server_round, arrays, config, nodes))
