"""The rounds of a run: one loop for all kinds of clients and programs."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.errors import ConfigError
from fedmf.ledger.signals import raising_on_termination
from fedmf.runs.model_layout import named_copies
from fedmf.statements.statement import PrivacyStatement
from fedmf.training import UserFailure

if TYPE_CHECKING:
    from fedmf.runs.session import Session


@dataclass(frozen=True)
class RoundReport:
    """What the operator may know about a round. It tells who took part and failed: do not publish.

    Args:
        t: 0-based round, now released.
        asked: users in the cohort.
        present: users with a reply, whatever it held.
        failures: users among them that contribute the zero vector, and replies that were not
            requested.
        seconds: wall time of the round, without what callbacks take.
    """

    t: int
    asked: int
    present: int
    failures: tuple[UserFailure, ...]
    seconds: float


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """What a callback sees after a round: released and recorded values, which only `report` and
    metrics of held-out users do not protect.

    Args:
        rounds: how many rounds are released.
        horizon: n.
        metrics: the row of the metrics table with ε so far, and what ``evaluate_fn`` of a Flower
            app returned; empty if the model was not evaluated. Figures of training users' own
            examples without noise are left out, unless the run has no privacy. Those of held-out
            users are for the operator: do not publish them.
        released: the model, flat.
        arrays: name and shape of each trained tensor, in the order of the flat model.
        report: for the operator; None where an earlier process released the round. A run that is
            stopped by it tells about users by its number of rounds.
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
        """A copy of it by the names of the trained parameters, float32, as `load_model` gives
        them.
        """
        flat = self.released.detach().to("cpu", torch.float32)
        return named_copies(flat, self.arrays, self.tied)


#: Called after each committed round; the run ends there if it returns True. A tracker is one line
#: in it: ``lambda record: writer.add_scalars("run", record.metrics, record.rounds)`` for a
#: ``SummaryWriter`` of TensorBoard, ``lambda record: wandb.log(dict(record.metrics),
#: step=record.rounds)`` for W&B.
OnRound = Callable[[RoundRecord], bool | None]


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run leaves that was carried out.

    Args:
        path: its directory.
        parameters: the released model, shape (d,), in the order of the module's parameters.
        metrics: by released rounds.
        statement: of its privacy.
        stopped: whether a callback ended it.
    """

    path: Path
    parameters: Tensor
    metrics: Mapping[int, Mapping[str, Any]]
    statement: PrivacyStatement
    stopped: bool = False


@dataclass(frozen=True, eq=False)
class Reply:
    """What one message brought: a row of each user that it asked, one exact sum of them, or
    nothing.

    Args:
        users: whom the message asked; none if no user was asked for this reply.
        payload: rows of shape (r, d), in the order of the users; exact sums by name, int64; or, in a
            line, why there is neither.
        failures: what the client says of users that it could not train.
        node: who sent it; None if nothing travelled.
        origin: rows are models, and what counts is row − origin, shape (d,); None if rows are
            updates.
    """

    users: tuple[str, ...]
    payload: Tensor | Mapping[str, Tensor] | str
    failures: Sequence[UserFailure] = ()
    node: int | None = None
    origin: Tensor | None = None

    def add_to(self, total: ClippedSum) -> list[UserFailure]:
        """Add it to a sum, in which each of the users is counted; every row is clipped again.

        A row that is not finite is the zero vector of its user; an unusable reply is the zero
        vector of all of them: nothing but a user's own contribution depends on what that user sent.

        Returns:
            Who counts as zero, and why.
        """
        where = "" if self.node is None else f"node {self.node}: "
        if not self.users:
            return [UserFailure("", "reply", f"{where}no user is asked for this reply")]
        zeros = self._zeros(total)
        said = list(self.failures) if len(zeros) < len(self.users) else []
        return [UserFailure(user, "reply", where + why) for user, why in zeros.items()] + said

    def _zeros(self, total: ClippedSum) -> dict[str, str]:
        reason = self.payload
        if not isinstance(reason, str):
            try:
                if not isinstance(reason, Tensor):
                    total.add_parts(reason, len(self.users))
                    return {}
                if len(reason) != len(self.users):
                    raise ValueError(f"reply must hold {len(self.users)} rows; got {len(reason)}")
                finite = total.add_updates(reason, self.origin).tolist()
                lost = (user for user, good in zip(self.users, finite, strict=True) if not good)
                return dict.fromkeys(lost, "update holds NaN or infinity")
            except ValueError as error:
                reason = str(error)
        total.add_nothing(len(self.users))
        return dict.fromkeys(self.users, reason)


class Clients:
    """Who trains the users of a run, and the way to them: in this process, or on a grid of
    Flower's.
    """

    def gather(self) -> None:
        """Wait for those who are to be asked, before the first round.

        Raises:
            RuntimeError: no user is served.
        """

    def refresh(self) -> None:
        """Notice who came and left, before a round is asked; never wait."""

    def connected(self, users: NDArray[np.int64]) -> list[bool]:
        """Which users, by index, can be asked now."""
        return [True] * users.size

    def ask(self, round_index: int, cohort: Mapping[int, str]) -> Iterator[Reply]:
        """The replies of a cohort, ids by index, to round ``round_index`` (from 0), each as it
        arrives.
        """
        raise NotImplementedError

    def again(self, round_index: int, attempt: int) -> bool:
        """Whether a round is requested again, after a pause, without a reply to attempt 0, 1, …:
        never.
        """
        del round_index, attempt
        return False


class TrainingLoop:
    """A session's rounds, each in one order: asked, released, kept, told.

    1. *Asked*: the cohort, again while everybody is silent, as often as was said beforehand; then
       the round continues without users, so that the number of rounds does not depend on who was
       present.
    2. *Released*: the sum of the replies, with noise, in one commit. The round consumes its row of
       noise in any case. The report is held before that, so that nothing of it is lost where this
       is interrupted.
    3. *Kept*: who failed, for the operator, and the round's row of metrics.
    4. *Told*: the callback is called, and may stop the run.

    Args:
        session: the run of these rounds.
        clients: whom it asks.
        on_round: see `OnRound`.
        evaluate: called with the number of the round where the run stands (0 for a new one), and
            with that of each round once it is kept; what it returns joins the metrics that
            ``on_round`` sees.

    Guarantees:
        A round is told once, after its commit, or never if that failed. Whatever stops the loop,
        what is committed by then is kept, told, and in the reports of the run directory. A callback
        that decides by the released values in its record makes a post-processing of them, so the ε
        of all n rounds holds for when it stops.
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
        self._begun = 0.0

    def cohort(self, round_index: int) -> Mapping[int, str]:
        """Who is asked in round ``round_index`` (from 0), among those who are connected: ids by index."""
        self._begun = time.perf_counter()
        self._cohort = self.session.cohort(round_index, self.clients.connected)
        return self._cohort

    def _asked(self, round_index: int) -> Iterator[Reply]:
        """1. The replies to the first attempt that gets any; an empty cohort is asked once."""
        for attempt in itertools.count():
            self.clients.refresh()
            replies = self.clients.ask(round_index, self.cohort(round_index))
            first = next(replies, None)
            if first is not None:
                return itertools.chain([first], replies)
            if not (self._cohort and self.clients.again(round_index, attempt)):
                break
        return iter(())

    def release(self, round_index: int, replies: Iterable[Reply]) -> bool:
        """2 to 4. Add the replies to the sum as they come, release it, keep and tell what the round
        leaves.

        Returns:
            Whether the callback stops the run.
        """
        server = self._server
        failures = list[UserFailure]()
        present = list[str]()
        total = server.new_sum()
        for reply in replies:
            failures += reply.add_to(total)
            present += reply.users
        self._report = RoundReport(
            round_index, len(self._cohort), len(present), tuple(failures), 0.0
        )
        server.release(total, sorted(present))
        self._report = replace(self._report, seconds=time.perf_counter() - self._begun)
        return self._told()

    def _told(self) -> bool:
        """3 and 4, unless the round was not committed or was told before."""
        report = self._report
        t = self._server.t
        if report is None or report.t >= t:
            return False
        self.session.note_failures(report.t, report.failures, report.present)
        self.session.evaluate()
        self._report = None
        return self._tell(report)

    def _tell(self, report: RoundReport | None) -> bool:
        t = self._server.t
        session = self.session
        more = None if self.evaluate is None else self.evaluate(t)
        if self.on_round is None or t == 0:
            return False
        private = session.run.is_private
        row = {
            name: value
            for name, value in session.metrics.get(t, {}).items()
            if value is not None and not (private and name.endswith("_not_private"))
        }
        header = session.directory.header
        seen = {**row, **(more or {})}
        record = RoundRecord(
            t,
            self._server.horizon,
            seen,
            self._server.parameters,
            header.arrays,
            report,
            header.tied,
        )
        return self.on_round(record) is True  # a value that happens to be true ends no run

    @torch.inference_mode(False)
    def run(self, last: int | None = None) -> bool:
        """Continue from the session's committed round to round ``last`` (default: the horizon);
        write reports.

        A run that is continued begins with a call of ``on_round`` for the round where it stands,
        which an earlier process may have made.

        Args:
            last: number of rounds of the whole run, including earlier processes.

        Returns:
            Whether a callback stopped it.

        Raises:
            ConfigError: more rounds than the noise was calibrated for; no round is run. The disk
                failed.
            RuntimeError: no node answers before the first of these rounds.
            LedgerError: a release failed, now or before. Open the run again.
            Exception: what a callback raises; the round is kept, and the run can be continued.
        """
        with raising_on_termination():
            return self._run(last)

    def _run(self, last: int | None) -> bool:
        server = self._server
        server.ledger.guard.require()
        last = server.horizon if last is None else last
        if last > server.horizon:
            raise ConfigError(
                f"num_rounds must be at most the horizon n={server.horizon}; got {last}. "
                "The noise of further rounds was not calibrated."
            )
        try:
            stopped = not server.lost and self._tell(None)
            if server.t < last and not stopped:
                self.clients.gather()
            for round_index in range(server.t, last):
                if stopped:
                    break
                stopped = self.release(round_index, self._asked(round_index))
        except BaseException:
            for then in (server.keep_state, self._told, self.session.write_reports):
                with contextlib.suppress(Exception):  # what stopped the run is what should be seen
                    then()
            raise
        server.keep_state()
        self.session.write_reports()
        return stopped
