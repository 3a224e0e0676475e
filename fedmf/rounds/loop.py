"""The rounds of a run: one loop, whoever the clients are and whoever drives it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import ConfigError
from fedmf.rounds.clients import Dialogue, Exchange, Link, Question
from fedmf.runs import Session, Waiting
from fedmf.training import UserFailure


@dataclass(frozen=True)
class RoundReport:
    """What the operator may know about a round. It tells who took part and failed: do not publish.

    Args:
        t: 0-based round, now released.
        asked: users in the cohort.
        present: users whose reply arrived, whatever it held.
        failures: those of them whose contribution is the zero vector, and replies that nobody was asked for.
        seconds: wall time of the round, without what callbacks take.
    """

    t: int
    asked: int
    present: int
    failures: tuple[UserFailure, ...]
    seconds: float


#: Called after each round with its report and, if the round was evaluated, its metrics.
Observer = Callable[[RoundReport, Mapping[str, Any] | None], None]


def unseen(_report: RoundReport, _row: Mapping[str, Any] | None) -> None:
    """Nobody looks on."""


class Rounds:
    """A session's rounds, each in one order: asked, released, kept, told.

    1. *Asked*: the cohort, again while everybody is silent, as often as was said beforehand; then the round
       goes on as one of nobody, so that the number of rounds tells nothing of who was there.
    2. *Released*: the sum of the replies, with noise. The report is held before that, so that nothing of it
       is lost where the release is interrupted.
    3. *Kept*, once the round is final: who failed, for the operator, and the round's row of metrics.
    4. *Told*: the observer is called.

    Args:
        session: whose rounds they are.
        dialogue: with its clients.
        observer: see `Observer`.

    Guarantees:
        A report is told once, after the commit of its round, or never if that failed. Whatever stops the
        loop, what is committed by then is kept, told, and in the reports of the run directory.
    """

    def __init__(
        self,
        session: Session,
        dialogue: Dialogue,
        observer: Observer = unseen,
    ) -> None:
        self.session, self.dialogue = session, dialogue
        self.observer = observer
        self._server = session.server
        self.waiting: Waiting = session.run.execution
        self._cohort: dict[int, str] = {}
        self._exchange: Exchange | None = None
        self._may_repeat = True
        self._report: RoundReport | None = None
        self._begun, self._elsewhere = 0.0, 0.0

    def ask(self, number: int, link: Link) -> list[Any]:
        """1. The messages of round ``number`` to its cohort."""
        self._cohort = self.session.cohort(number - 1, self._connected)
        by_node = self._by_node(self._cohort)
        self._may_repeat = bool(self._cohort)
        self._exchange = self.dialogue.training(number, by_node, link)
        return self._exchange.messages

    def _connected(self, users: NDArray[np.int64]) -> list[bool]:
        """Which users, given by index, a node serves now."""
        return [node is not None for node in self.dialogue.served.nodes_of(users)]

    def _by_node(self, users: Mapping[int, str]) -> dict[int, list[str]]:
        """Users, given as ids by index, by the node to ask for them; without those that none serves."""
        by_node = dict[int, list[str]]()
        nodes = self.dialogue.served.nodes_of(np.array(list(users), dtype=np.int64))
        for user, node in zip(users.values(), nodes, strict=True):
            if node is not None:
                by_node.setdefault(node, []).append(user)
        return by_node

    def release(self, number: int, replies: Iterable[Any]) -> None:
        """2 and 3. Fold the replies into the sum as they come, release the round, keep what it leaves.

        What a reply adds is said by `Exchange.fold`. The round consumes its row of noise in any case.
        """
        assert self._exchange is not None
        total = self._server.new_sum()
        with self._server.times.measure(number, "clients"):
            present, failures = self._exchange.fold(replies, total)
        self._report = RoundReport(
            number - 1, len(self._cohort), len(present), tuple(failures), self._clock() - self._begun
        )
        self._server.release(total, present)
        with self._not_counted():
            self.session.note_failures(self._report.t, failures, self._report.present)
            self.session.evaluate()

    def _tell(self) -> None:
        """4. The observer sees the round that is held, with its row of metrics.

        Raises:
            Exception: of the observer.
        """
        report, self._report = self._report, None
        if report is not None and report.t < self._server.t:
            with self._not_counted():
                self.observer(report, self.session.evaluate())

    def _clock(self) -> float:
        """Seconds that pass, but for those of callbacks."""
        return time.perf_counter() - self._elsewhere

    @contextlib.contextmanager
    def _not_counted(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._elsewhere += time.perf_counter() - begun

    def carry_out(
        self,
        link: Link,
        last: int | None = None,
        evaluate: Callable[[int], None] | None = None,
    ) -> None:
        """Go on from the session's committed round to round ``last`` (default: the horizon); write reports.

        Args:
            link: to the clients.
            last: number of rounds of the whole run, those of processes before included.
            evaluate: called with 0 before anything was released, and with the number of each round once it is
                told of.

        Raises:
            ConfigError: more rounds than the noise was calibrated for; nobody is asked. The disk failed.
            RuntimeError: no node answers before the first of these rounds.
            LedgerError: a release failed, now or before. Open the run again.
        """
        server = self._server
        server.require_right()
        last = server.horizon if last is None else last
        if last > server.horizon:
            raise ConfigError(
                f"num_rounds must be at most the horizon n={server.horizon}; got {last}. "
                "The noise of further rounds was not calibrated."
            )
        try:
            if evaluate is not None and server.t == 0:
                evaluate(0)
            if server.t < last:
                link.gather()
            for number in range(server.t + 1, last + 1):
                self._round(number, link)
                self._tell()
                if evaluate is not None:
                    evaluate(number)
        except BaseException:
            for then in (self._tell, self.session.write_reports):
                with contextlib.suppress(Exception):  # what stopped the run is what should be seen
                    then()
            raise
        self.session.write_reports()

    def _round(self, number: int, link: Link) -> None:
        """1 to 3."""
        self._begun = self._clock()
        question = Question(
            f"round {number}",
            lambda: self.ask(number, link),
            lambda: self._may_repeat,
            self.dialogue.patient,
            lambda message_id: 0 if self._exchange is None else self._exchange.bytes_of(message_id),
        )
        with self._server.times.measure(number, "clients"):
            replies = link.replies(question)
        self.release(number, replies)
        if self._report is not None and self._report.t == number - 1:
            self._report = replace(self._report, seconds=self._clock() - self._begun)
