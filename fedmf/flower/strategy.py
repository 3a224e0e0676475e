"""Server strategies whose rounds are those of `fedmf.runs.loop`, and the clients of a run on a grid."""

from __future__ import annotations

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedmf.flower.compat import arrived, is_of_the_link
from fedmf.flower.identity import Enrolment, Population
from fedmf.flower.messages import (
    array_record,
    read_failures,
    read_rows_reply,
    read_slice_reply,
    request_content,
)
from fedmf.flower.pulling import Wait, pull_until
from fedmf.flower.screen import say_plan
from fedmf.flower.served_users import ServedUsers
from fedmf.runs.loop import Clients, OnRound, Reply, RoundRecord, Rounds
from fedmf.runs.session import Session
from fedmf.runs.simulation import Request, in_messages

_log = logging.getLogger("fedmf")

#: A node, and the users whom one message asks there.
Part = tuple[int, tuple[str, ...]]
#: Of Flower's ``start``: called with the number of a round and the result so far; True stops the run.
ShouldStop = Callable[[int, Result], bool]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

#: How often a round is asked for again if no reply to it arrives at all.
RETRIES = 10
#: Longest pause before that, in seconds.
_LONGEST_PAUSE: Final = 30.0
#: Seconds between two looks for nodes while replies are awaited.
_BETWEEN_LOOKS: Final = 1.0
#: Bytes of a reply beside what it adds to a sum: ids and failures of its users.
_SLACK: Final = 2**26


class GridClients(Clients):
    """The clients of a run on a grid: who is sent what, and what a message that comes back adds.

    Args:
        session: of the run.
        nodes: which node serves whom.
        most_bytes: of a reply, beside `bytes_of` its users.
    """

    #: Whether every reply is waited for, however long that takes.
    patient: bool = False
    grid: Grid
    train_config: ConfigRecord

    def __init__(self, session: Session, nodes: ServedUsers, most_bytes: int) -> None:
        self.server, self.user_list = session.server, session.user_list
        self.nodes, self.most_bytes = nodes, most_bytes
        self.waiting = session.run.execution
        self._messages = list[Message]()
        self._parts = list[Part]()
        self._unanswered: dict[str, Part] | None = None

    def over(
        self, grid: Grid, timeout: float | None = None, train_config: ConfigRecord | None = None
    ) -> None:
        """Ask on this grid from now on; the arguments are those of Flower's ``start``."""
        self.grid, self.train_config = grid, train_config or ConfigRecord()
        self._seconds = self.waiting.round_timeout if timeout is None else timeout

    @property
    @abstractmethod
    def arrays(self) -> ArrayRecord:
        """The released model, as Flower's result and functions of the caller hold it."""

    @abstractmethod
    def messages(self, number: int, by_node: Mapping[int, list[str]]) -> list[tuple[Message, Part]]:
        """The messages of round ``number`` to its cohort, users by node, and whom each asks."""

    @abstractmethod
    def read(self, message: Message, part: Part) -> Reply:
        """What a reply holds, with whom it was asked of; raises for what cannot be used."""

    def bytes_of(self, part: Part) -> int:
        """What the arrays of a reply may take beyond what every reply may."""
        del part
        return 0

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

    def prepare(self, number: int, cohort: Mapping[int, str]) -> list[Message]:
        """The messages of a round to those of a cohort whom a node serves; `reply` then reads the answers."""
        by_node = dict[int, list[str]]()
        for user, node in self.nodes.nodes_of(cohort).items():
            by_node.setdefault(node, []).append(user)
        asked = self.messages(number, dict(sorted(by_node.items())))
        self._messages, self._parts = [message for message, _ in asked], [part for _, part in asked]
        self._unanswered = None
        return self._messages

    @property
    def unanswered(self) -> dict[str, Part]:
        """Whom each message asked that was sent and not answered, by the id that the grid gave it."""
        if self._unanswered is None:
            ids = (message.metadata.message_id for message in self._messages)
            self._unanswered = dict(zip(ids, self._parts, strict=True))
        return self._unanswered

    def reply(self, message: Message) -> Reply:
        """What a message adds that came from a node; nothing if it is a second answer, or to nothing."""
        part = self.unanswered.pop(message.metadata.reply_to_message_id, None)
        if part is None:
            return Reply((), "nobody was asked", node=message.metadata.src_node_id)
        try:
            return self.read(message, part)
        except Exception as reason:  # whatever a stranger's bytes may cause
            return Reply(part[1], str(reason) or type(reason).__name__, node=part[0])

    def ask(self, number: int, cohort: Mapping[int, str]) -> Iterator[Reply]:
        """See `Clients.ask`."""
        sent = list(self.grid.push_messages(self.prepare(number, cohort)))

        def most_bytes(message_id: str) -> int:
            return self.most_bytes + self.bytes_of(self.unanswered.get(message_id, (0, ())))

        wait = Wait(math.inf if self.patient else self._seconds, most_bytes)
        came = filter(arrived, pull_until(self.grid, sent, wait, self._looks_for_nodes()))
        return map(self.reply, came)

    def again(self, number: int, attempt: int) -> bool:
        """See `Clients.again`: a bounded number of times, fixed in advance; who is there ends nothing.

        Nothing was released yet, so asking again costs nothing.
        """
        if attempt >= RETRIES:
            _log.warning(
                "round %d: no reply arrived in %d attempts; it goes on without any, and a release is noise "
                "alone. Are the nodes gone? Stop the run, and continue it when they are back.",
                number,
                RETRIES + 1,
            )
            return False
        _log.warning("round %d: no reply arrived; asking again (%d)", number, attempt + 1)
        seconds = math.inf if self.patient else self._seconds
        time.sleep(min(seconds, _LONGEST_PAUSE, 0.1 * 2**attempt))
        return True

    def _looks_for_nodes(self) -> Callable[[], None]:
        """Handshakes beside training: at most one look a second. A link that fails there fails no round."""
        last = time.monotonic()

        def look() -> None:
            nonlocal last
            if time.monotonic() - last < _BETWEEN_LOOKS:
                return
            last = time.monotonic()
            try:
                self.refresh()
            except Exception as error:
                if not is_of_the_link(error):
                    raise

        return look


class RoundStrategy(Strategy):
    """A server strategy whose four methods are steps of `Rounds`, so that Flower's loop drives them too.

    Attributes:
        rounds: of its run.
        clients: whom they ask.
    """

    rounds: Rounds
    clients: GridClients

    def prepare(self, arrays: ArrayRecord | None) -> None:
        """Begin the run from this model, if that was not done yet."""

    def say(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Tell whoever looks on of a released round; of the initial model as round 0."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        should_stop: ShouldStop | None = None,
        on_round: OnRound | None = None,
    ) -> Result:
        """Run up to ``num_rounds``, from the round after the last that was committed.

        Args:
            grid: where the nodes are.
            initial_arrays: the model before the first round.
            num_rounds: of the whole run; default: all that were planned.
            timeout: seconds to wait for the replies of a round; default: the round timeout of the run.
            train_config: for clients.
            evaluate_config: not used: nobody is asked to evaluate.
            evaluate_fn: says what of a released model; the result and `RoundRecord.metrics` hold it.
            should_stop: called with the number of a round and the result so far; True ends the run.
            on_round: called with a `fedmf.runs.RoundRecord` after each committed round; True ends the run.

        Raises:
            ConfigError: more rounds than were planned; nobody is asked. The disk failed.
            RuntimeError: no node answers before the first of these rounds.
            LedgerError: a release failed, now or before. Close this strategy and make another one.
            Exception: what ``on_round`` raises; the same call continues the run.
        """
        self.prepare(initial_arrays)
        rounds, clients, result = self.rounds, self.clients, Result()
        self.summary()
        clients.over(grid, timeout, train_config)

        def evaluate(number: int) -> Mapping[str, Any] | None:
            assert evaluate_fn is not None
            metrics = evaluate_fn(number, clients.arrays)
            if metrics is not None:
                result.evaluate_metrics_serverapp[number] = metrics
            if number == 0:
                self.say(0, metrics or {})
            return metrics

        def told(record: RoundRecord) -> bool:
            stop = False
            if record.report is not None:
                self.say(record.rounds, record.metrics)
                if should_stop is not None:
                    result.arrays = clients.arrays
                    stop = should_stop(record.rounds, result)
            return bool(on_round is not None and on_round(record)) or stop

        rounds.on_round, rounds.evaluate = told, None if evaluate_fn is None else evaluate
        rounds.carry_out(num_rounds)
        result.arrays = clients.arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The messages of a round to its cohort.

        ``arrays`` is not read once the run has begun: the model of the private server is what is sent.

        Raises:
            RuntimeError: an inner strategy asks other nodes, or one twice.
        """
        self.prepare(arrays)
        self.clients.over(grid, train_config=config)
        return self.clients.prepare(server_round, self.rounds.cohort(server_round))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, sum, noise, step, commit. Whose reply arrived is present, whatever it holds."""
        self.rounds.release(server_round, map(self.clients.reply, filter(arrived, replies)))
        return self.clients.arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nobody is asked: what clients say of a model has no noise."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nobody was asked."""
        return None


class OwnClients(GridClients):
    """fedmf's own client app: a message asks for rows of users, or for their exact sum.

    Args:
        session: of the run.
        nodes: which node is asked for which user.
    """

    def __init__(self, session: Session, nodes: ServedUsers) -> None:
        super().__init__(session, nodes, _SLACK)
        self.patient = self.waiting.messages == "aggregate"
        self._t, self._lengths = 0, session.server.new_sum().lengths

    @property
    def arrays(self) -> ArrayRecord:
        """See `GridClients.arrays`."""
        return array_record({"parameters": self.server.parameters})

    def messages(self, number: int, by_node: Mapping[int, list[str]]) -> list[tuple[Message, Part]]:
        """One message for each node that serves users of the cohort; several if their rows are too large."""
        server, self._t, arrays = self.server, number - 1, self.arrays
        asked = list[tuple[Message, Part]]()
        for node, hosted in by_node.items():
            for users in in_messages(hosted, self.waiting, server.dimension):
                request = Request(server.parameters, self._t, users, self.patient, server.clip_norm)
                content = request_content(arrays, request)
                message = Message(content, node, MessageType.TRAIN, group_id=str(number))
                asked.append((message, (node, users)))
        return asked

    def bytes_of(self, part: Part) -> int:
        """See `GridClients.bytes_of`: twice what they take; slices hold up to four int64 a parameter."""
        return (64 if self.patient else 8 * len(part[1])) * self.server.dimension

    def read(self, message: Message, part: Part) -> Reply:
        """See `GridClients.read`."""
        node, users = part
        if self.patient:
            held: Any = read_slice_reply(message, t=self._t, asked=users, lengths=self._lengths)
        else:
            held = read_rows_reply(message, t=self._t, asked=users, dimension=self.server.dimension)
        return Reply(users, held, read_failures(message, users), node)


class CorrelatedNoiseStrategy(RoundStrategy):
    """Federated averaging of clipped updates with matrix-factorization noise.

    It depends only on the ``Grid`` interface, so the same object serves Flower's deployment, Flower's
    simulation and the in-process grid. The model always comes from the private server: the arrays that
    ``start`` is given are not looked at.

    Args:
        session: the run that is carried out, open.
        nodes: which node is asked for which user; default: each user's own node, as nodes claim.

    References:
        Kairouz et al. (2021), "Practical and Private (Deep) Learning without Sampling or Shuffling";
        McKenna (2024), "Scaling up the Banded Matrix Factorization Mechanism".
    """

    def __init__(self, session: Session, nodes: ServedUsers | None = None) -> None:
        keys = session.run.execution.enrolment
        found = nodes or Population(session.user_list, _log.warning, Enrolment.of(keys) if keys else None)
        self.session, self.clients = session, OwnClients(session, found)
        self.rounds = Rounds(session, self.clients)

    def summary(self) -> None:
        """Say what will run."""
        say_plan(self.session)


def run_on_grid(
    session: Session, grid: Grid, on_round: OnRound | None = None, nodes: ServedUsers | None = None
) -> None:
    """Run a session to its horizon on any Flower grid and write its reports.

    Args:
        session: what to run.
        grid: where the client apps are.
        on_round: see `OnRound`.
        nodes: which node is asked for which user; default: each user's own node, as nodes claim.

    If the run stops early, by an error or by the user, the reports describe what was released.
    """
    CorrelatedNoiseStrategy(session, nodes).start(grid, on_round=on_round)
