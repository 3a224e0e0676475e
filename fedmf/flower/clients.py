"""The clients of a run on a Flower grid: which messages a round sends, and how replies are read.

`GridClients` is what the training loop asks; a subclass makes and reads the messages: `OwnClients`
here for fedmf's own client app, `fedmf.flower.wrapper` for other Flower apps.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedmf.clipping.user_statistics import reported_names
from fedmf.data.row_counts import OPERATOR
from fedmf.flower.compat import arrived
from fedmf.flower.handshake import RejectedReply
from fedmf.flower.identity import Population, read_node_keys
from fedmf.flower.messages import ROWS, array_record, read_failures, read_reply, request_content
from fedmf.flower.pulling import pull_until
from fedmf.flower.screen import say, say_plan, without_client_errors
from fedmf.flower.served_users import ServedUsers, first_names
from fedmf.runs.loop import Clients, OnRound, Reply, TrainingLoop
from fedmf.runs.session import Session
from fedmf.runs.simulation import Request, in_messages

_log = logging.getLogger("fedmf")

#: The node and the users of one message.
Part = tuple[int, tuple[str, ...]]

#: Seconds of pause before each further request of a round of which too few replies arrived.
PAUSES = (1.0, 5.0, 15.0, 30.0)
#: Most users, with a node each, of whom all must be served by default; else half of them.
_SMALL_POPULATION: Final = 20
#: Seconds of waiting for the users of a round before the log says so.
_FIRST_REPORT: Final = 2.0
#: Seconds between two looks for nodes while replies are awaited.
_BETWEEN_LOOKS: Final = 1.0
#: Bytes of a reply in addition to its arrays: ids and failures of its users.
_SLACK: Final = 2**26


class GridClients(Clients):
    """The clients of a run on a grid.

    Args:
        session: the session of the run.
        nodes: the node of each user.
        grid: the grid of these nodes.
        timeout: seconds to wait for the replies of a round; default: the round timeout of the run.
    """

    #: Whether every reply is waited for, however long that takes.
    patient: bool = False

    def __init__(
        self, session: Session, nodes: ServedUsers, grid: Grid, timeout: float | None = None
    ) -> None:
        self.session = session
        self.server = session.server
        self.user_list = session.user_list
        self.nodes = nodes
        self.grid = grid
        self.waiting = session.run.execution
        if timeout is None:
            timeout = self.waiting.round_timeout
        self._timeout = timeout
        self._is_repeated = False  # whether the request of the round is repeated
        self._attempts = 0  # requests of the round that went to any node
        self._awaited_round = -1
        self._awaited_since = 0.0
        self._is_wait_reported = False

    @property
    def _in_connected_cohorts(self) -> bool:
        """Whether only connected users are in a cohort."""
        return self.session.run.cohorts.is_order

    @property
    def _needs_everybody(self) -> bool:
        """Whether users are so few, with a node each, that none may be missing."""
        return self.nodes.users <= _SMALL_POPULATION and not self.nodes.several

    @property
    def min_users(self) -> int:
        """The least number of served users before the first round."""
        least = self.waiting.min_users
        if least is not None:
            return min(least, self.nodes.users)
        if self._in_connected_cohorts:
            return min(self.session.plan.users_per_round, self.nodes.users)
        if self._needs_everybody:
            return self.nodes.users
        return math.ceil(self.nodes.users / 2)

    def _required(self, users: int) -> int:
        """The number of users out of so many with whom a round does without the others."""
        share = self.waiting.min_reply_share
        if share is None:
            share = 0.5
            if self._needs_everybody and not self._in_connected_cohorts:
                share = 1.0
        return math.ceil(share * users)

    def messages(
        self, round_index: int, by_node: Mapping[int, list[str]]
    ) -> list[tuple[Message, Part]]:
        """Return the messages of a round (from 0) with the node and users of each.

        Args:
            round_index: the round.
            by_node: the users of the cohort by the node that serves them.
        """
        raise NotImplementedError

    def read(self, message: Message, part: Part) -> Reply:
        """Decode the reply to the message for ``part``; any error rejects it."""
        raise NotImplementedError

    def most_bytes(self, part: Part) -> int:
        """Return the largest number of bytes that the reply to a message may take."""
        raise NotImplementedError

    def gather(self) -> None:
        least = 1
        if self.server.t == 0:
            least = self.min_users
        try:
            self.nodes.gather(
                self.grid, self.waiting.connection_timeout, self.waiting.handshake_timeout, least
            )
        except RuntimeError:  # too few users are served
            self._note_unserved()
            raise
        self._note_unserved()

    def _note_unserved(self) -> None:
        """Name the users whom no node serves to the operator, in the log and in a file."""
        unserved = self.nodes.unserved()
        self.session.note_for_operator("users_not_served", unserved)
        effect = "Rounds that ask them wait for them, then count zeros and spend epsilon as always."
        if self._in_connected_cohorts:
            effect = "They take part from the round in which their nodes connect."
        if unserved:
            _log.warning(
                "%d of %d users are not served by any node yet: %s. %s All names are in %s"
                " (secret).",
                len(unserved),
                self.nodes.users,
                first_names(unserved),
                effect,
                self.session.directory.path / OPERATOR,
            )

    def refresh(self) -> None:
        self.nodes.refresh(self.grid)

    def connected(self, users: NDArray[np.int64]) -> list[bool]:
        ids = dict[int, str]()
        for index in map(int, users):
            ids[index] = self.user_list[index]
        served = self.nodes.nodes_of(ids)
        return [user in served for user in ids.values()]

    def is_awaited(self, round_index: int, cohort: int) -> bool:
        """Wait for connected users of a round, in all at most `connection_timeout`.

        A place that no user may take, whoever is connected, is not waited for.
        """
        places = self.session.plan.users_per_round
        required = self._required(places)
        if not self._in_connected_cohorts or cohort >= required:
            return False
        if cohort >= min(required, len(self.session.cohort(round_index))):
            return False
        now = time.monotonic()
        if round_index != self._awaited_round:
            self._awaited_round = round_index
            self._awaited_since = now
            self._is_wait_reported = False
        waited = now - self._awaited_since
        limit = self.waiting.connection_timeout
        if waited < limit:
            if waited >= _FIRST_REPORT and not self._is_wait_reported:
                self._is_wait_reported = True
                _log.warning(
                    "round %d: waiting at most %g s (connection_timeout) for %d users who may take"
                    " part: %s.",
                    round_index + 1,
                    limit,
                    required,
                    self._connected_in_words(round_index),
                )
            time.sleep(min(_BETWEEN_LOOKS, limit - waited))
            return True
        if cohort == 0:
            raise RuntimeError(
                f"round {round_index + 1}: no user whom min_separation and max_participations admit"
                f" was connected within {limit:g} s (connection_timeout):"
                f" {self._connected_in_words(round_index)}. The run stops before the round spends"
                " anything. Other users must connect, since those of later rounds wait for this one"
                " to be released; the same command continues the run."
            )
        if not self._is_repeated:
            _log.warning(
                "round %d: only %d users who may take part, for %d places, were connected within"
                " %g s (connection_timeout); it continues with them and spends epsilon as always.",
                round_index + 1,
                cohort,
                places,
                limit,
            )
        return False

    def _connected_in_words(self, round_index: int) -> str:
        """Return how many users are connected, and when k and b admit them."""
        connected = self.nodes.nodes_of(dict(enumerate(self.user_list)))
        admitted = self.session.admitted_in_words(round_index, connected)
        return f"{len(connected)} connected, {admitted}"

    def ask(self, round_index: int, cohort: Mapping[int, str]) -> Iterator[Reply]:
        by_node = self.by_node(cohort)
        if by_node:
            self._attempts += 1
        for message, part in self.answers(self.messages(round_index, by_node)):
            yield self._reply(message, part)

    def by_node(self, cohort: Mapping[int, str]) -> dict[int, list[str]]:
        """Return the users of a cohort by the node that serves them."""
        by_node = dict[int, list[str]]()
        for user, node in self.nodes.nodes_of(cohort).items():
            by_node.setdefault(node, []).append(user)
        return dict(sorted(by_node.items()))

    def answers(self, messages: Sequence[tuple[Message, Part]]) -> Iterator[tuple[Message, Part]]:
        """Send messages and yield the replies as they arrive, until the time of a round is up."""
        message_ids = self.grid.push_messages([message for message, _ in messages])
        parts = dict[str, Part]()
        for message_id, (_, part) in zip(message_ids, messages, strict=False):
            if message_id:  # Flower's link gives none to a message that it does not take
                parts[message_id] = part
        self._looked = time.monotonic()
        pulled = pull_until(
            self.grid,
            parts,
            self._seconds_to_wait,
            lambda message_id: self.most_bytes(parts[message_id]),
            self._look_for_nodes,
        )
        for message in pulled:
            if arrived(message):
                yield message, parts[message.metadata.reply_to_message_id]

    @property
    def _seconds_to_wait(self) -> float:
        """Seconds to wait; all further requests of a round together wait as long as the first."""
        if self.patient:
            return math.inf
        if self._is_repeated:
            return self._timeout / len(PAUSES)
        return self._timeout

    def _reply(self, message: Message, part: Part) -> Reply:
        try:
            return self.read(message, part)
        except RejectedReply as error:
            reason = str(error)
            fault = error.fault
        except Exception as error:  # the bytes are untrusted
            reason = str(error) or type(error).__name__
            fault = ""
        node, users = part
        return Reply(users, reason, node=node, fault=fault)

    def again(self, round_index: int, attempt: int, cohort: int, absent: Sequence[str]) -> bool:
        """Request missing replies again while the share that replied is below the required one.

        There are at most as many further requests as `PAUSES`, whichever nodes are connected: one
        user cannot stop a run. Nothing of the round was released yet, so they cost no budget.
        """
        replies = cohort - len(absent)
        required = self._required(cohort)
        self._is_repeated = replies < required and attempt < len(PAUSES)
        if self._is_repeated:
            time.sleep(min(self._seconds_to_wait, PAUSES[attempt]))
            return True
        if replies < required:
            attempts = "1 attempt" if self._attempts == 1 else f"{self._attempts} attempts"
            remedy = ""
            if not self._in_connected_cohorts:
                remedy = " If nodes are offline, stop the run and resume it when they are back."
            _log.warning(
                "round %d: too few replies arrived in %s; the missing ones count as zero,"
                " and the round spends epsilon as always.%s %s (secret) names the users.",
                round_index + 1,
                attempts,
                remedy,
                self.session.directory.path / OPERATOR,
            )
        self._attempts = 0
        if absent:
            self.session.note_absent(round_index, absent)
        return False

    def _look_for_nodes(self) -> None:
        """Continue handshakes during training, at most once a second."""
        if time.monotonic() - self._looked >= _BETWEEN_LOOKS:
            self._looked = time.monotonic()
            self.refresh()


class OwnClients(GridClients):
    """Clients with fedmf's own app: a message asks for rows of users, or for their exact sum."""

    def __init__(self, session: Session, nodes: ServedUsers, grid: Grid) -> None:
        super().__init__(session, nodes, grid)
        self.patient = self.waiting.messages == "aggregate"
        self._round_index = 0
        self._lengths = session.server.new_sum().lengths

    def messages(
        self, round_index: int, by_node: Mapping[int, list[str]]
    ) -> list[tuple[Message, Part]]:
        """Return one message for each node, or several if the rows of its users are too large."""
        server = self.server
        self._round_index = round_index
        messages = list[tuple[Message, Part]]()
        model = array_record({"parameters": server.parameters})
        for node, served in by_node.items():
            for users in in_messages(served, self.waiting, server.dimension):
                request = Request(
                    server.parameters,
                    round_index,
                    users,
                    self.patient,
                    server.clip_norm,
                    server.bits,
                )
                content = request_content(model, request)
                message = Message(content, node, MessageType.TRAIN, group_id=str(round_index + 1))
                messages.append((message, (node, users)))
        return messages

    def most_bytes(self, part: Part) -> int:
        """Allow twice the size of the arrays; a slice holds up to four int64 per parameter."""
        _, users = part
        per_parameter = 8 * len(users)
        if self.patient:
            per_parameter = 64
        return _SLACK + per_parameter * self.server.dimension

    def read(self, message: Message, part: Part) -> Reply:
        node, users = part
        payload: Any
        reported = dict[str, NDArray[np.float64]]()
        if self.patient:
            shapes = {name: (length,) for name, length in self._lengths.items()}
            payload = read_reply(message, self._round_index, users, shapes, "int64")
        else:
            shapes = {ROWS: (len(users), self.server.dimension)}
            names = reported_names(self.server.sums.statistics)
            shapes |= dict.fromkeys(names, (len(users),))
            arrays = read_reply(message, self._round_index, users, shapes, "float32", "float64")
            payload = arrays[ROWS].to(torch.float32)
            for name in names:
                reported[name] = arrays[name].to(torch.float64).numpy()
        failures = read_failures(message, users)
        return Reply(users, payload, failures, node, reported=reported)


def run_on_grid(
    session: Session, grid: Grid, on_round: OnRound | None = None, nodes: ServedUsers | None = None
) -> None:
    """Run a session to the last round on any Flower grid, and write its reports.

    If the run stops early, the reports describe its releases.

    Args:
        session: the session to run.
        grid: a grid of fedmf's own client apps: Flower's deployment, its simulation, or this
            process.
        on_round: see `OnRound`.
        nodes: the node of each user; by default, as reported by the nodes.
    """
    if nodes is None:
        node_keys = None
        if session.run.execution.node_keys:
            node_keys = read_node_keys(session.run.execution.node_keys)
        nodes = Population(session.user_list, _log.warning, node_keys)
    say_plan(session)
    with without_client_errors():
        stopped = TrainingLoop(session, OwnClients(session, nodes, grid), on_round).run()
    if stopped:
        server = session.server
        say(f"on_round ended the run after round {server.t} of {server.horizon}")
