"""The rounds of a run: one loop for all kinds of clients.

`TrainingLoop` asks `Clients` for a `Reply` from each user or group of users, adds the replies to a
sum, lets the session's private server release it, and reports each round as a `RoundRecord`.
Rounds are numbered from 0 (``round_index``) everywhere except in `RoundRecord` and reports.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.clipping.user_statistics import reported_names
from fedmf.errors import ConfigError
from fedmf.figures import html_table
from fedmf.ledger.signals import stopping
from fedmf.runs.model_layout import named_copies
from fedmf.statements.statement import PrivacyStatement, headline
from fedmf.training import UserFailure

if TYPE_CHECKING:
    from fedmf.runs.session import Session


_NOT_FINITE: Final = "update holds NaN or infinity"
_NO_NUMBER: Final = "users report no finite number for a client metric"


@dataclass(frozen=True)
class RoundReport:
    """Facts about a round for the operator alone: they tell who took part and who failed.

    Args:
        round_index: the released round, from 0.
        cohort_size: the number of users in the cohort.
        present: the number of users with a reply, whatever its content.
        failures: users among them that contribute the zero vector or no number to a client metric,
            and replies that were not requested.
        seconds: wall time of the round, without the time in callbacks.
    """

    round_index: int
    cohort_size: int
    present: int
    failures: tuple[UserFailure, ...]
    seconds: float


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """The released and recorded values that a callback receives after each round.

    For users of the package, ``rounds`` counts released rounds, so the first record has
    ``rounds=1``, and its round has the index 0 everywhere else (`RoundReport.round_index`).

    Args:
        rounds: the number of released rounds, from 1.
        horizon: n.
        metrics: the row of the metrics table with ε so far, and the result of ``evaluate_fn`` of a
            Flower app; empty if the model was not evaluated. Metrics of training users' own
            examples without noise are left out, unless the run has no privacy. Those of held-out
            users have no noise either: do not publish them.
        released: the model, flat.
        arrays: name and shape of each trained tensor, in the order of the flat model.
        report: for the operator, the only field that depends on training users directly; None if
            an earlier process released the round. A run that stops because of it reveals something
            about users by its number of rounds.
        tied: further names of trained tensors, each with the name in ``arrays``.
    """

    rounds: int
    horizon: int
    metrics: Mapping[str, Any]
    released: Tensor
    arrays: Sequence[tuple[str, tuple[int, ...]]]
    report: RoundReport | None = None
    tied: Mapping[str, str] = field(default_factory=dict)

    def parameters(self) -> Tensor:
        """A copy of the released model, shape (d,)."""
        return self.released.detach().clone()

    def model(self) -> dict[str, Tensor]:
        """A copy of the model as float32 tensors by parameter name, like that of `load_model`."""
        flat = self.released.detach().to("cpu", torch.float32)
        return named_copies(flat, self.arrays, self.tied)


#: Called after each committed round; the run ends there if it returns True. A tracker is one line
#: in it: ``lambda record: writer.add_scalars("run", record.metrics, record.rounds)`` for a
#: ``SummaryWriter`` of TensorBoard, ``lambda record: wandb.log(dict(record.metrics),
#: step=record.rounds)`` for W&B.
OnRound = Callable[[RoundRecord], bool | None]


@dataclass(frozen=True, eq=False)
class RunResult:
    """The result of a simulated run.

    Args:
        path: the run directory.
        parameters: the released model, shape (d,), in the order of the module's parameters.
        metrics: rows of the metrics table, by the number of released rounds.
        statement: the privacy statement.
        quality: loss, metrics and final metrics of the model on the test part, such as ``auc`` and
            ``confusion_matrix`` of classes, or ``r2`` of numbers (`final_metrics`).
        stopped: the callback that ended the run, "on_round"; empty if none did.
    """

    path: Path
    parameters: Tensor
    metrics: Mapping[int, Mapping[str, Any]]
    statement: PrivacyStatement
    quality: Mapping[str, Any] = field(default_factory=dict)
    stopped: str = ""

    def __repr__(self) -> str:
        """The directory, the rounds and the last evaluation in one line."""
        figures = ", ".join(f"{name} {value}" for name, value in self._last().items())
        return f"RunResult({str(self.path)!r}, {self._rounds()}, {figures or 'not evaluated'})"

    def _repr_html_(self) -> str:
        rows = [("directory", str(self.path)), ("rounds", self._rounds()), *self._last().items()]
        rows.append(("privacy", headline(self.statement)))
        rows.append(("statement", self.statement.counts()))
        return html_table(rows)

    def _rounds(self) -> str:
        return f"{self.statement['rounds_released']} of {self.statement['rounds']} rounds"

    def _last(self) -> dict[str, str]:
        """The quality of the model, with four digits."""
        figures = dict[str, str]()
        for name, value in self.quality.items():
            if isinstance(value, float):
                figures[name.replace("_", " ")] = f"{value:.4g}"
        return figures


@dataclass(frozen=True, eq=False)
class Reply:
    """The content of one reply: one row per user, an exact sum over users, or an error.

    Args:
        users: the users from whom the reply was requested; none if it was not requested.
        payload: rows of shape (r, d), in the order of the users; exact sums by name, int64; or an
            error in one line.
        failures: users that the client could not train, according to the client.
        node: the sender; None if nothing was sent over a network.
        origin: if given, rows are models, and the updates are row − origin, shape (d,).
        fault: the error without text that clients chose, which logs may show.
        reported: numbers of the users by name, shape (r,), NaN for none; only next to rows.
    """

    users: tuple[str, ...]
    payload: Tensor | Mapping[str, Tensor] | str
    failures: Sequence[UserFailure] = ()
    node: int | None = None
    origin: Tensor | None = None
    fault: str = ""
    reported: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def add_to(self, total: ClippedSum) -> list[UserFailure]:
        """Add the reply to a sum, which counts each of its users; every row is clipped again.

        A row that is not finite counts as the zero vector of its user; an unusable reply counts as
        the zero vector of all its users: nothing but a user's own contribution depends on what that
        user sent.

        Returns:
            Who counts as zero, and why.
        """
        where = ""
        if self.node is not None:
            where = f"node {self.node}: "
        if not self.users:
            return [UserFailure("", "reply", f"{where}no user is asked for this reply")]
        failures = list[UserFailure]()
        for user, reason in self._zeros(total).items():
            fault = reason if reason == _NOT_FINITE else self.fault
            failures.append(UserFailure(user, "reply", where + reason, fault))
        if len(failures) < len(self.users):
            failures += self.failures
            failures += self._without_number(total)
        return failures

    def _without_number(self, total: ClippedSum) -> list[UserFailure]:
        """The users without a finite number for a client metric, which counts as 0."""
        failures = list[UserFailure]()
        if not isinstance(self.payload, Tensor):
            return failures
        failed = {failure.user for failure in self.failures}
        missing = np.full(len(self.users), math.nan)
        for name in reported_names(total.statistics):
            numbers = self.reported.get(name, missing)
            for place in np.flatnonzero(~np.isfinite(numbers)).tolist():
                user = self.users[place]
                if user not in failed:
                    reason = f"no finite number for {name}; got {numbers[place]}"
                    failures.append(UserFailure(user, "metric", reason, _NO_NUMBER))
        return failures

    def _zeros(self, total: ClippedSum) -> dict[str, str]:
        """Add the payload; returns the users that count as zero, with reasons."""
        error = self.payload
        if not isinstance(error, str):
            try:
                return self._add_payload(total)
            except ValueError as wrong:
                error = str(wrong)
        total.add_nothing(len(self.users))
        return dict.fromkeys(self.users, error)

    def _add_payload(self, total: ClippedSum) -> dict[str, str]:
        assert not isinstance(self.payload, str)
        if not isinstance(self.payload, Tensor):
            total.add_parts(self.payload, len(self.users))
            return {}
        if len(self.payload) != len(self.users):
            raise ValueError(f"reply must hold {len(self.users)} rows; got {len(self.payload)}")
        finite = total.add_updates(self.payload, self.origin, self.reported).tolist()
        zeros = dict[str, str]()
        for user, is_finite in zip(self.users, finite, strict=True):
            if not is_finite:
                zeros[user] = _NOT_FINITE
        return zeros


class Clients:
    """The users of a run and the way to reach them: in this process, or through Flower."""

    def gather(self) -> None:
        """Wait before the first round until users can be reached.

        Raises:
            RuntimeError: too few users are served.
        """

    def refresh(self) -> None:
        """Update, without waiting, which users are connected; called before each request."""

    def connected(self, users: NDArray[np.int64]) -> list[bool]:
        """Which users, by index, can be reached now."""
        return [True] * users.size

    def is_awaited(self, round_index: int, cohort: int) -> bool:
        """Whether to look again for connected users of a round; it may pause before.

        Args:
            round_index: the round, from 0.
            cohort: the number of users who may take part and are connected.

        Raises:
            RuntimeError: there is none after the longest wait.
        """
        del round_index, cohort
        return False

    def ask(self, round_index: int, cohort: Mapping[int, str]) -> Iterator[Reply]:
        """The replies of a cohort (ids by index) in round ``round_index``, each as it arrives."""
        raise NotImplementedError

    def again(self, round_index: int, attempt: int, cohort: int, absent: Sequence[str]) -> bool:
        """Whether to request the missing replies of a round again; it may pause before.

        Args:
            round_index: the round, from 0.
            attempt: the number of the last attempt, from 0.
            cohort: the number of users in the cohort.
            absent: those of them from whom no reply has arrived.
        """
        del round_index, attempt, cohort, absent
        return False


class TrainingLoop:
    """The rounds of a session, each in the same order: request, release, record, report.

    1. *Request*: replies are requested from the cohort, and missing ones again while too few have
       arrived, as often as was fixed beforehand; then the round continues with those that there
       are. If only connected users are in a cohort, too few are waited for before, and the loop
       stops if nobody is connected; otherwise the number of rounds does not depend on who was
       present.
    2. *Release*: the sum of the replies, with noise, in one commit. The round uses up its row of
       noise in any case. The report is stored before that, so that nothing of it is lost if this
       step is interrupted.
    3. *Record*: the failed users, for the operator, and the round's row of metrics.
    4. *Report*: the callback is called, and may stop the run.

    Args:
        session: the run of these rounds.
        clients: the users of the run.
        on_round: see `OnRound`.
        evaluate: called with the number of released rounds, at the start (0 for a new run) and
            after each round; its result joins the metrics that ``on_round`` receives.

    Guarantees:
        A round is reported once, after its commit, or never if the commit failed. Whatever stops
        the loop, the committed rounds are recorded, reported, and in the reports of the run
        directory. A callback that decides by the released values in its record post-processes them,
        so the ε of all n rounds holds for when it stops.
    """

    def __init__(
        self,
        session: Session,
        clients: Clients,
        on_round: OnRound | None = None,
        evaluate: Callable[[int], Mapping[str, Any] | None] | None = None,
    ) -> None:
        self.session = session
        self.clients = clients
        self.on_round = on_round
        self.evaluate = evaluate
        self._server = session.server
        self._cohort: Mapping[int, str] = {}
        self._report: RoundReport | None = None
        self._start = 0.0

    def cohort(self, round_index: int) -> Mapping[int, str]:
        """The connected users to train in a round, ids by index."""
        self._start = time.perf_counter()
        self._cohort = self.session.cohort(round_index, self.clients.connected)
        return self._cohort

    def _gathered_cohort(self, round_index: int) -> Mapping[int, str]:
        """The cohort of a round, once enough users are connected or the wait for them is over."""
        self.clients.refresh()
        cohort = self.cohort(round_index)
        while self.clients.is_awaited(round_index, len(cohort)):
            self.clients.refresh()
            cohort = self.cohort(round_index)
        return cohort

    def _replies(self, round_index: int) -> Iterator[Reply]:
        """1. The replies of the cohort; every attempt asks only users without a reply."""
        absent = dict[int, str]()
        for attempt in itertools.count():
            if len(absent) == len(self._cohort) or attempt == 0:  # nobody has replied so far
                absent = dict(self._gathered_cohort(round_index))
            else:
                self.clients.refresh()
            replied = set[str]()
            for reply in self.clients.ask(round_index, absent):
                replied.update(reply.users)
                yield reply
            absent = {index: user for index, user in absent.items() if user not in replied}
            names = list(absent.values())
            if not self.clients.again(round_index, attempt, len(self._cohort), names):
                break

    def release(self, round_index: int, replies: Iterable[Reply]) -> bool:
        """2 to 4. Add the replies to a sum as they arrive, release it, record and report the round.

        Returns:
            Whether the callback stops the run.
        """
        failures = list[UserFailure]()
        present = list[str]()
        total = self._server.new_sum()
        for reply in replies:
            failures += reply.add_to(total)
            present += reply.users
        self._report = RoundReport(
            round_index, len(self._cohort), len(present), tuple(failures), seconds=0.0
        )
        self._server.release(total, sorted(present))
        self._report = replace(self._report, seconds=time.perf_counter() - self._start)
        return self._finish_round()

    def _finish_round(self) -> bool:
        """3 and 4, unless the round was not committed or was reported before."""
        report = self._report
        if report is None or report.round_index >= self._server.t:
            return False
        self.session.note_failures(report.round_index, report.failures, report.present)
        self.session.note_arrivals()
        self.session.evaluate()
        self._report = None
        return self._report_round(report)

    def _report_round(self, report: RoundReport | None) -> bool:
        """4. Report the last released round; returns whether the callback stops the run."""
        t = self._server.t
        evaluated: Mapping[str, Any] | None = None
        if self.evaluate is not None:
            evaluated = self.evaluate(t)
        if self.on_round is None or t == 0:
            return False
        record = RoundRecord(
            rounds=t,
            horizon=self._server.horizon,
            metrics={**self._reportable_metrics(), **(evaluated or {})},
            released=self._server.parameters,
            arrays=self.session.directory.header.arrays,
            report=report,
            tied=self.session.directory.header.tied,
        )
        return self.on_round(record) is True  # a value that happens to be true stops no run

    def _reportable_metrics(self) -> dict[str, Any]:
        private = self.session.run.is_private
        metrics = dict[str, Any]()
        for name, value in self.session.metrics.get(self._server.t, {}).items():
            if value is not None and not (private and name.endswith("_not_private")):
                metrics[name] = value
        return metrics

    @torch.inference_mode(False)
    def run(self, last: int | None = None) -> bool:
        """Continue from the last committed round to ``last`` rounds, and write the reports.

        A run that is continued begins with a call of ``on_round`` for its last released round,
        which an earlier process may have reported already.

        Args:
            last: the number of rounds after which the run ends, including those of earlier
                processes; default: the horizon.

        Returns:
            Whether a callback stopped it.

        Raises:
            ConfigError: more rounds than the noise was calibrated for; no round is run. The disk
                failed.
            RuntimeError: too few users are served before the first of these rounds, or nobody is
                before a round whose cohort are connected users.
            LedgerError: a release failed, now or before. Open the run again.
            Exception: raised by a callback; the round is committed, and the run can be continued.
        """
        with stopping():
            return self._run(last)

    def _run(self, last: int | None) -> bool:
        server = self._server
        server.ledger.guard.require()
        if last is None:
            last = server.horizon
        if last > server.horizon:
            raise ConfigError(
                f"num_rounds must be at most the horizon n={server.horizon}; got {last}. "
                "The noise of further rounds was not calibrated."
            )
        self.session.write_reports()  # there is something to watch before the first release
        try:
            stopped = not server.lost and self._report_round(None)
            if server.t < last and not stopped:
                self.clients.gather()
            for round_index in range(server.t, last):
                if stopped:
                    break
                stopped = self.release(round_index, self._replies(round_index))
        except BaseException:
            for cleanup in (server.keep_state, self._finish_round, self.session.write_reports):
                with contextlib.suppress(Exception):  # the original exception should be seen
                    cleanup()
            raise
        server.keep_state()
        self.session.write_reports()
        return stopped
