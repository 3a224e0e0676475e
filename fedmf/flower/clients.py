"""The clients of a run on a grid: who is sent what, what a message that comes back adds, and
fedmf's own.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedmf.flower.compat import arrived
from fedmf.flower.identity import Population, read_node_keys
from fedmf.flower.messages import (
    ROWS,
    array_record,
    read_failures,
    read_reply,
    request_content,
)
from fedmf.flower.pulling import pull_until
from fedmf.flower.screen import say_plan
from fedmf.flower.served_users import ServedUsers
from fedmf.runs.loop import Clients, OnRound, Reply, TrainingLoop
from fedmf.runs.session import Session
from fedmf.runs.simulation import Request, in_messages

_log = logging.getLogger("fedmf")

#: A node, and the users whom one message asks there.
Part = tuple[int, tuple[str, ...]]

#: How often a round is asked for again if no reply to it arrives at all.
RETRIES = 10
#: Longest pause before that, in seconds.
_LONGEST_PAUSE: Final = 30.0
#: Seconds between two looks for nodes while replies are awaited.
_BETWEEN_LOOKS: Final = 1.0
#: Bytes of a reply beside what it adds to a sum: ids and failures of its users.
_SLACK: Final = 2**26


class GridClients(Clients):
    """The clients of a run on a grid.

    Args:
        session: of the run.
        nodes: which node serves whom.
        grid: where they are.
        timeout: seconds to wait for the replies of a round; default: the round timeout of the run.
    """

    #: Whether every reply is waited for, however long that takes.
    patient: bool = False

    def __init__(
        self, session: Session, nodes: ServedUsers, grid: Grid, timeout: float | None = None
    ) -> None:
        self.server = session.server
        self.user_list = session.user_list
        self.nodes = nodes
        self.grid = grid
        self.waiting = session.run.execution
        self._seconds = self.waiting.round_timeout if timeout is None else timeout

    def messages(
        self, round_index: int, by_node: Mapping[int, list[str]]
    ) -> list[tuple[Message, Part]]:
        """The messages of a round (from 0) to its cohort, users by node, and whom each asks."""
        raise NotImplementedError

    def read(self, message: Message, part: Part) -> Reply:
        """What a reply holds, with whom it was asked of; raises for what cannot be used."""
        raise NotImplementedError

    def most_bytes(self, part: Part) -> int:
        """Of a reply."""
        raise NotImplementedError

    def gather(self) -> None:
        """See `Clients.gather`."""
        self.nodes.gather(self.grid, self._seconds, self.waiting.handshake_timeout)

    def refresh(self) -> None:
        """See `Clients.refresh`."""
        self.nodes.refresh(self.grid)

    def connected(self, users: NDArray[np.int64]) -> list[bool]:
        """See `Clients.connected`."""
        asked = {user: self.user_list[user] for user in map(int, users)}
        served = self.nodes.nodes_of(asked)
        return [user in served for user in asked.values()]

    def ask(self, round_index: int, cohort: Mapping[int, str]) -> Iterator[Reply]:
        """See `Clients.ask`."""
        by_node = dict[int, list[str]]()
        for user, node in self.nodes.nodes_of(cohort).items():
            by_node.setdefault(node, []).append(user)
        asked = self.messages(round_index, dict(sorted(by_node.items())))
        sent = self.grid.push_messages([message for message, _ in asked])
        parts = {name: part for name, (_, part) in zip(sent, asked, strict=False) if name}
        self._looked = time.monotonic()
        seconds = math.inf if self.patient else self._seconds
        pulled = pull_until(
            self.grid,
            parts,
            seconds,
            lambda name: self.most_bytes(parts[name]),
            self._look_for_nodes,
        )
        for message in pulled:
            if arrived(message):
                yield self._reply(message, parts[message.metadata.reply_to_message_id])

    def _reply(self, message: Message, part: Part) -> Reply:
        try:
            return self.read(message, part)
        except Exception as reason:  # whatever a stranger's bytes may cause
            return Reply(part[1], str(reason) or type(reason).__name__, node=part[0])

    def again(self, round_index: int, attempt: int) -> bool:
        """See `Clients.again`: a bounded number of times, fixed in advance; who is there ends
        nothing.

        Nothing was released yet, so asking again costs nothing.
        """
        if attempt >= RETRIES:
            _log.warning(
                "round %d: no reply arrived in %d attempts; it continues without any, and a release"
                " is noise alone. If the nodes are offline, stop the run and resume it when they"
                " are back.",
                round_index + 1,
                RETRIES + 1,
            )
            return False
        _log.warning(
            "round %d: no reply arrived; requesting it again (%d)", round_index + 1, attempt + 1
        )
        seconds = math.inf if self.patient else self._seconds
        time.sleep(min(seconds, _LONGEST_PAUSE, 0.1 * 2**attempt))
        return True

    def _look_for_nodes(self) -> None:
        """Handshakes during training: at most one check a second."""
        if time.monotonic() - self._looked >= _BETWEEN_LOOKS:
            self._looked = time.monotonic()
            self.refresh()


class OwnClients(GridClients):
    """fedmf's own client app: a message asks for rows of users, or for their exact sum."""

    def __init__(self, session: Session, nodes: ServedUsers, grid: Grid) -> None:
        super().__init__(session, nodes, grid)
        self.patient = self.waiting.messages == "aggregate"
        self._round_index = 0
        self._lengths = session.server.new_sum().lengths

    def messages(
        self, round_index: int, by_node: Mapping[int, list[str]]
    ) -> list[tuple[Message, Part]]:
        """One message for each node that serves users of the cohort; several if their rows are too
        large.
        """
        server = self.server
        self._round_index = round_index
        asked = list[tuple[Message, Part]]()
        model = array_record({"parameters": server.parameters})
        for node, hosted in by_node.items():
            for users in in_messages(hosted, self.waiting, server.dimension):
                request = Request(
                    server.parameters,
                    self._round_index,
                    users,
                    self.patient,
                    server.clip_norm,
                    server.bits,
                )
                content = request_content(model, request)
                message = Message(content, node, MessageType.TRAIN, group_id=str(round_index + 1))
                asked.append((message, (node, users)))
        return asked

    def most_bytes(self, part: Part) -> int:
        """See `GridClients.most_bytes`: twice what they take; slices hold up to four int64 a
        parameter.
        """
        return _SLACK + (64 if self.patient else 8 * len(part[1])) * self.server.dimension

    def read(self, message: Message, part: Part) -> Reply:
        """See `GridClients.read`."""
        node, users = part
        if self.patient:
            shapes = {name: (length,) for name, length in self._lengths.items()}
            payload: Any = read_reply(message, self._round_index, users, shapes, "int64")
        else:
            rows = {ROWS: (len(users), self.server.dimension)}
            payload = read_reply(message, self._round_index, users, rows, "float32", "float64")[
                ROWS
            ].to(torch.float32)
        return Reply(users, payload, read_failures(message, users), node)


def run_on_grid(
    session: Session, grid: Grid, on_round: OnRound | None = None, nodes: ServedUsers | None = None
) -> None:
    """Run a session to the last round on any Flower grid, and write its reports.

    Args:
        session: what to run.
        grid: with fedmf's own client apps: in Flower's deployment, its simulation, or this process.
        on_round: see `OnRound`.
        nodes: the node of each user; by default, as reported by the nodes.

    If the run stops early, the reports describe its releases.
    """
    keys = session.run.execution.node_keys
    if nodes is None:
        nodes = Population(session.user_list, _log.warning, read_node_keys(keys) if keys else None)
    say_plan(session)
    TrainingLoop(session, OwnClients(session, nodes, grid), on_round).run()
