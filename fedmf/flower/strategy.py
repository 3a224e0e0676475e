"""The Flower server strategy: correlated noise on sums of clipped updates, user by user."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedmf.cohorts import CohortSchedule
from fedmf.flower.arrays import array_record
from fedmf.flower.asking import Asked, MessageForm, Persistence, RoundReport, Telling, Timetable
from fedmf.flower.boundary import Enrolment, Quarantine, ServedUsers, Wait
from fedmf.flower.federated_evaluation import CohortEvaluation
from fedmf.flower.local_run import InProcessGrid
from fedmf.flower.population import Population
from fedmf.flower.private_evaluation import PrivateCohortEvaluation
from fedmf.runs import Execution, PrivateServer
from fedmf.training import UserFailure

_log = logging.getLogger("fedmf")

_EXECUTION: Final = Execution()
_AT_ONCE: Final = Timetable()
#: Bytes of a reply beside what it adds to a sum: ids and failures of its users, an evaluation.
_SLACK: Final = 2**26
#: A round that takes longer, in seconds, is told of before the next begins: its commit is little of it.
_SHORT: Final = 0.5


class CorrelatedNoiseStrategy(Strategy):
    """Federated averaging of clipped updates with matrix-factorization noise.

    It depends only on the ``Grid`` interface, so the same object serves Flower's deployment, Flower's
    simulation and the in-process grid.

    Args:
        server: noise, optimizer and commit.
        schedule: which users are asked in which round.
        roster: stable user ids by user index.
        execution: whether a reply holds a row of each user, which the server clips again, or a sum over users
            whom a worker clips; how long replies are waited for (slices: always), how often silence is asked
            again.
        on_round: called after each round with its report.
        admit: those of a round's users that their own budgets allow to be asked.
        assignment: which node is asked for which user; default: each user's own node, as nodes claim.
        evaluation: how released models are evaluated on users' own examples; default: never.
        timetable: when rounds may begin; default: at once.

    References:
        Kairouz et al. (2021), "Practical and Private (Deep) Learning without Sampling or Shuffling";
        McKenna (2024), "Scaling up the Banded Matrix Factorization Mechanism".
    """

    def __init__(
        self,
        server: PrivateServer,
        schedule: CohortSchedule,
        roster: Sequence[str],
        execution: Execution = _EXECUTION,
        on_round: Callable[[RoundReport], None] = lambda _: None,
        admit: Callable[[int, Sequence[str]], list[str]] = lambda _, users: list(users),
        assignment: ServedUsers | None = None,
        evaluation: CohortEvaluation | PrivateCohortEvaluation | None = None,
        timetable: Timetable = _AT_ONCE,
    ) -> None:
        if len(roster) != schedule.users:
            raise ValueError(f"roster must name the schedule's {schedule.users} users; got {len(roster)}.")
        self.server, self.schedule, self.roster = server, schedule, roster
        self.form, self.retries = MessageForm.of(execution, server.dimension), execution.silent_retries
        self._telling, self._handshake_timeout = Telling(server, on_round), execution.handshake_timeout
        self._runs_ahead, self._begun = False, 0.0
        self.wait = Wait(
            execution.round_timeout,
            execution.min_replies,
            execution.grace,
            _SLACK,
            lambda message_id: self._asked.bytes_of(message_id),
        )
        self._quarantine = Quarantine(0 if self.form.is_slice else execution.refusals)
        self.admit = admit
        enrolment = Enrolment.of(execution.enrolment) if execution.enrolment else None
        self._assignment = assignment or Population(roster, _log.warning, enrolment)
        self._evaluation, self._timetable = evaluation, timetable
        self._cohort: dict[int, str] = {}
        self._judges: Mapping[int, str] = {}
        self._asked = Asked(self.form, [], server.parameters, server.t)
        self._present: list[str] = []
        self._failures: list[UserFailure] = []

    def initial_arrays(self) -> ArrayRecord:
        """The model the next round starts from, as Flower's ``start`` wants it."""
        return array_record({"parameters": self.server.parameters})

    def cohort(self, t: int) -> dict[int, str]:
        """The users asked in round t (0-based): ids by index."""
        planned = {self.roster[u]: u for u in map(int, self.schedule.cohort(t))}
        return {planned[user]: user for user in self.admit(t, list(planned))}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message for each node that serves users of the cohort; several where their rows are too large.

        ``arrays`` is not read: the model of the private server is what is sent, committed if it leaves the
        process.
        """
        t = server_round - 1
        self._cohort = self.cohort(t)
        parts = self.form.parts(self._by_node(self._cohort), self._quarantine.is_suspect)
        self._asked = Asked(self.form, parts, self.server.coming, t, clip_norm=self.server.clip_norm)
        return self._asked.messages

    def _by_node(self, users: Mapping[int, str]) -> dict[int, list[str]]:
        """Users, given as ids by index, by the node to ask for them; without those that none serves well."""
        by_node: dict[int, list[str]] = {}
        nodes = self._assignment.nodes_of(np.array(list(users), dtype=np.int64))
        for user, node in zip(users.values(), nodes, strict=True):
            if node is not None and (node, user) not in self._quarantine:
                by_node.setdefault(node, []).append(user)
        return by_node

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies into the sum as they come, release the round, return the new model.

        What a reply adds is said by `Exchange.fold`. The round consumes its row of noise in any case. If the
        next round may be trained meanwhile, the commit is left under way, nothing is returned.
        """
        total = self.server.new_sum()
        with self.server.times.measure(server_round, "clients"):
            self._present, self._failures = self._asked.fold(replies, total, self._quarantine)
        if self._runs_ahead:
            self._telling.tell()  # all of the last round, before anything of this one
            try:
                self.server.begin_release(total, self._present)
            finally:  # whose commit is under way is told of once it ended, whatever interrupts
                self._telling.hold(self._report(server_round))
            return None, None
        self.server.release(total, self._present)
        return self.initial_arrays(), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message for each node that serves users to ask about the released model, if that is wanted."""
        if self._evaluation is None:
            return []
        t, present = server_round - 1, set(self._present)
        participants = {index: user for index, user in self._cohort.items() if user in present}
        self._judges = self._evaluation.asked(t, participants)
        return self._evaluation.ask(t, self.server.parameters, self._by_node(self._judges))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What the users asked say of the model; None if nobody was asked."""
        if self._evaluation is None:
            return None
        metrics = self._evaluation.collect(server_round - 1, replies)
        self._failures += self._evaluation.failures
        return MetricRecord({**metrics}) if metrics else None

    def summary(self) -> None:
        """Log what will run."""
        plan = self.server.plan
        _log.info(
            "mechanism %s, sensitivity %.4g (%s), noise multiplier %.4g, rounds %d to %d",
            plan.mechanism.name,
            plan.sensitivity.value,
            plan.sensitivity.kind,
            plan.noise_multiplier,
            self.server.t + 1,
            self.server.horizon,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run from the server's committed round up to ``num_rounds`` (default: the horizon).

        The model always comes from the private server, so ``initial_arrays`` is ignored; it is accepted
        to match Flower's signature. A stopped run continues with the round after its last commit.

        With fedmf's own clients in this process and nobody else to be asked or shown anything, a commit is
        under way while the next round is trained. What is told of a round waits for it (decision 16).

        Raises:
            ValueError: ``num_rounds`` lies beyond the horizon that the noise was calibrated for.
            RuntimeError: no node answers, or no reply to a round arrived however often it was asked for.
            LedgerError: a release failed, now or before. Open the run again.
        """
        self.server.require_right()
        last = self.server.horizon if num_rounds is None else num_rounds
        if last > self.server.horizon:
            raise ValueError(
                f"num_rounds must be at most the horizon n={self.server.horizon}; got {last}. "
                "The noise of further rounds was not calibrated."
            )
        wait = self.wait if timeout is None else replace(self.wait, seconds=timeout)
        self.summary()
        result = Result()
        left = self._evaluation is not None and self._evaluation.is_left(self.server.t)
        if left or self.server.t < last:
            self._assignment.gather(grid, wait.seconds, self._handshake_timeout)
        if self.form.is_slice:
            wait = replace(wait, seconds=math.inf, min_replies=0)
        if left:  # a process was stopped between a round and its evaluation
            self._evaluate(self.server.t, grid, wait)
        confined = isinstance(grid, InProcessGrid) and grid.confined
        alone = confined and self._evaluation is None and evaluate_fn is None
        self._runs_ahead = alone and self._timetable == _AT_ONCE
        try:
            for number in range(self.server.t + 1, last + 1):
                self._run_round(number, grid, wait, train_config or ConfigRecord())
                if evaluate_fn is not None:
                    metrics = evaluate_fn(number, self.initial_arrays())
                    if metrics is not None:
                        result.evaluate_metrics_serverapp[number] = metrics
            self._telling.tell()
        except BaseException:
            with contextlib.suppress(Exception):  # what stopped the run is what should be seen
                self._telling.tell()
            raise
        finally:
            self._runs_ahead = False
        result.arrays = self.initial_arrays()
        return result

    def _run_round(self, number: int, grid: Grid, wait: Wait, config: ConfigRecord) -> None:
        self._timetable.wait()
        self._begun = self._telling.clock()
        with self.server.times.measure(number, "clients"):
            replies = Persistence(wait, self.retries).replies(
                f"round {number}",
                grid,
                self._assignment,
                lambda: self.configure_train(number, ArrayRecord(), config, grid),
                self._is_worth_asking_again,
            )
        if replies is None:
            raise RuntimeError(
                f"no reply to round {number} arrived in {self.retries + 1} attempts; stopped. Nothing of it "
                "was released: resume the run when nodes answer again."
            )
        self.aggregate_train(number, replies)
        with self.server.times.measure(number, "evaluation"):
            self._evaluate(number, grid, wait)
        report = self._report(number)
        self._telling.hold(report)
        if not self._runs_ahead or report.failures or report.seconds > _SHORT:
            self._telling.tell()

    def _report(self, number: int) -> RoundReport:
        return RoundReport(
            t=number - 1,
            asked=len(self._cohort),
            present=len(self._present),
            failures=tuple(self._failures),
            seconds=self._telling.clock() - self._begun,
            federated={} if self._evaluation is None else self._evaluation.metrics,
        )

    def _is_worth_asking_again(self) -> bool:
        """Not where silence is no fault, nor with a user who is asked no more, whose reply ended the wait."""
        if not self.schedule.expects_replies:
            return False
        nodes = self._assignment.nodes_of(np.array(list(self._cohort), dtype=np.int64))
        asked = zip(nodes, self._cohort.values(), strict=True)
        return bool(self._cohort) and not any(pair in self._quarantine for pair in asked)

    def _evaluate(self, number: int, grid: Grid, wait: Wait) -> None:
        """Ask users about the model after so many rounds, where that is wanted."""
        if self._evaluation is None:
            return
        if not self._evaluation.retried:
            wait = replace(wait, seconds=min(wait.seconds, self.wait.seconds))
        persistence = Persistence(wait, self.retries * self._evaluation.retried)
        replies = persistence.replies(
            f"the evaluation after round {number}",
            grid,
            self._assignment,
            lambda: self.configure_evaluate(number, ArrayRecord(), ConfigRecord(), grid),
            lambda: bool(self._judges),
        )
        self.aggregate_evaluate(number, replies or ())
