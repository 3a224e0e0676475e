"""Simulated runs: users are trained in the process of the server, and nothing is sent.

`simulate`, `start`, `resume` and `plan` are the functions of the package for a run. `Request` and
`in_messages` are shared with the clients of a Flower deployment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.bounded_add import FRACTION_BITS
from fedmf.clipping.clipped_sum import SumSpec
from fedmf.clipping.user_statistics import reported_names
from fedmf.errors import UnsoundSumError
from fedmf.release.plan import Plan
from fedmf.runs.directory import LEDGER
from fedmf.runs.loop import Clients, OnRound, Reply, RunResult, TrainingLoop
from fedmf.runs.progress import both, shown
from fedmf.runs.run import Execution, Run
from fedmf.runs.run_plan import plan_of
from fedmf.runs.session import Session, check_run, check_users_here
from fedmf.runs.statistics.client_metric import reported_name
from fedmf.training import LocalTrainer, UserFailure, checked_sum
from fedmf.training.user_failures import described
from fedmf.training.workers import copied_vector

#: Most bytes of the rows of a message with more than one user.
_MOST_ROW_BYTES: Final = 2**28


def in_messages(
    users: Sequence[str], execution: Execution, dimension: int
) -> list[tuple[str, ...]]:
    """Split the users of a node into messages, in their order.

    With ``aggregate`` one message requests the exact sum of all users. With ``per-user`` a message
    has as many users as have rows of 2²⁸ bytes together; with ``one-user`` it has one.

    Args:
        users: the users to train.
        execution: of the run.
        dimension: d.
    """
    size = max(1, len(users))
    if execution.messages == "per-user":
        size = max(1, _MOST_ROW_BYTES // (4 * max(1, dimension)))
    elif execution.messages == "one-user":
        size = 1
    return [tuple(users[start : start + size]) for start in range(0, len(users), size)]


@dataclass(frozen=True, eq=False)
class Request:
    """Train ``users`` from ``parameters`` in round ``t`` (0-based).

    Args:
        parameters: of the model, shape (d,); training may write into them.
        t: the round.
        users: the users to train.
        as_slice: whether their contributions are summed; otherwise there is one row per user.
        clip_norm: ζ_t of the round; None for the run's ζ.
        bits: B and F of the units of sums and of second moments.
    """

    parameters: Tensor
    t: int
    users: tuple[str, ...]
    as_slice: bool
    clip_norm: float | None = None
    bits: tuple[int, int] = (FRACTION_BITS, FRACTION_BITS)

    def trained(self, trainer: LocalTrainer, sums: SumSpec) -> Reply:
        """Train the users and clip their updates.

        Raises:
            UnsoundSumError: a contribution above the clip norm, a bug of fedmf.
        """
        sums = sums.with_clip_norm(self.clip_norm).in_units(*self.bits)
        reported, failures = self._reported(trainer, sums)
        if self.as_slice:
            total, failed = checked_sum(
                trainer, sums, self.parameters, self.users, self.t, reported
            )
            return Reply(self.users, total.parts, failed + failures)
        rows, failed = trainer.clipped_rows(self.parameters, self.users, self.t, sums.clip_norm)
        return Reply(self.users, rows, failed + failures, reported=reported)

    def _reported(
        self, trainer: LocalTrainer, sums: SumSpec
    ) -> tuple[dict[str, NDArray[np.float64]], list[UserFailure]]:
        """The metrics of the model as it was sent, before training may write into it."""
        wanted = reported_names(sums.statistics)
        reported = dict[str, NDArray[np.float64]]()
        if not wanted:
            return reported, []
        metrics, failures = trainer.held_out.metrics(self.parameters, self.users)
        for metric, numbers in metrics.items():
            if reported_name(metric) in wanted:
                reported[reported_name(metric)] = numbers
        return reported, failures

    def reply(self, trainer: LocalTrainer, sums: SumSpec) -> Reply:
        """Return the users' contributions, or the error of a task as their reply.

        Raises:
            UnsoundSumError: as `trained`; nothing may be released.
        """
        try:
            return self.trained(trainer, sums)
        except UnsoundSumError:
            raise
        except Exception as error:  # a user's own task may raise anything
            return Reply(self.users, described(error), fault="training failed")


class InProcessClients(Clients):
    """Users with examples in this process; one reply is in memory at a time.

    Args:
        session: the open run.
    """

    def __init__(self, session: Session) -> None:
        self._server = session.server
        self._sums = session.sums
        self._execution = session.run.execution
        run = session.run
        self._trainer = LocalTrainer(session.task, run.client, users=run.users_in_a_call)

    def ask(self, round_index: int, cohort: Mapping[int, str]) -> Iterator[Reply]:
        """Train the cohort, and yield one reply per message."""
        server = self._server
        as_slice = self._execution.messages == "aggregate"
        for users in in_messages(list(cohort.values()), self._execution, server.dimension):
            model = copied_vector(server.parameters)  # training writes into it
            request = Request(model, round_index, users, as_slice, server.clip_norm, server.bits)
            yield self._reply(request)

    def _reply(self, request: Request) -> Reply:
        return request.reply(self._trainer, self._sums)


def run_in_process(session: Session, on_round: OnRound | None = None) -> bool:
    """Run a session to its horizon in this process, without Flower, and write its reports.

    Args:
        session: the open run.
        on_round: see `OnRound`.

    Returns:
        Whether ``on_round`` stopped it.

    Raises:
        ConfigError: as `check_users_here`.
        Exception: as `TrainingLoop.run`.
    """
    check_users_here(session.run, session.task)
    return TrainingLoop(session, InProcessClients(session), on_round).run()


def plan(run: Run) -> Plan:
    """The calibrated mechanism of a run; the task is built, because the model sets the dimension.

    Raises:
        ConfigError: a mechanism that cannot be built or that the accountant does not cover.
    """
    check_run(run)
    task = run.task_source.build()
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return plan_of(run, optimizer, task.model.dimension)


def start(run: Run, path: str | Path, device: str = "cpu") -> Session:
    """Plan the run, create its directory and draw its key; returns a session at round 0.

    Args:
        run: the run.
        path: the run directory; must not exist, or be empty.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: the run cannot be executed, or the place cannot be used; nothing is left there.
    """
    return Session.start(Path(path), run, device)


def resume(run: Run, path: str | Path, device: str = "cpu") -> Session:
    """Open an interrupted run at the end of its ledger.

    Raises:
        ConfigError: not a run directory, or another run's.
        LedgerError: a damaged ledger, or another process is running it.
    """
    return Session.resume(Path(path), run, device)


def simulate(
    run: Run,
    path: str | Path,
    device: str = "cpu",
    on_round: OnRound | None = None,
    progress: bool | None = None,
) -> RunResult:
    """Start or resume a run in this process, and run it to the last round.

    Args:
        run: the run.
        path: the run directory.
        device: "cpu" or "cuda".
        on_round: called with a `fedmf.runs.RoundRecord` after each committed round, for tracking,
            saving models, or stopping early: the run ends if it returns True.
        progress: whether rounds are shown; default: on a terminal and in a notebook.

    Raises:
        ConfigError: the run cannot be executed, or the directory contains something else.
        Exception: raised by ``on_round``; the same call continues the run.
    """
    if (Path(path) / LEDGER).is_file():
        session = resume(run, path, device)
    else:
        session = Session.start(Path(path), run, device, simulated=True)
    with session:
        view = shown(session, progress)
        try:
            with view or nullcontext():
                stopped = run_in_process(session, both(view, on_round))
        except (KeyboardInterrupt, SystemExit):
            print(
                f"Stopped: round {session.server.t} of {session.server.horizon} is the last that"
                f" was released. {path} is kept; the same call continues it.",
                file=sys.stderr,
            )
            raise
        by = ""
        if stopped:
            by = "on_round"
            done = f"round {session.server.t} of {session.server.horizon}"
            print(f"Stopped: {by} ended the run after {done}.", file=sys.stderr)
        session.draw()
        parameters = session.server.parameters.detach().clone()
        return RunResult(
            path=Path(path),
            parameters=parameters,
            metrics=session.metrics,
            statement=session.statement(),
            quality=session.quality,
            stopped=by,
        )
