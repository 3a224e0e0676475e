"""Runs of a session on an engine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flwr.serverapp import Grid

from fedmf.errors import ConfigError, LedgerError
from fedmf.flower.asking import MessageForm, Timetable
from fedmf.flower.client_app import make_client_app
from fedmf.flower.federated_evaluation import CohortEvaluation
from fedmf.flower.local_run import CallsHere, InProcessGrid
from fedmf.flower.pool import WorkerPool
from fedmf.flower.population import Assignment
from fedmf.flower.private_evaluation import PrivateCohortEvaluation
from fedmf.flower.strategy import CorrelatedNoiseStrategy, RoundReport
from fedmf.flower.traffic import watch
from fedmf.runs import NotPrivateEvaluation, Session, local_trainer
from fedmf.training import example_counts

_log = logging.getLogger("fedmf")

#: Called after each round with its report and, if the round was evaluated, its metrics.
Observer = Callable[[RoundReport, Mapping[str, Any] | None], None]


def run_on_grid(
    session: Session,
    grid: Grid,
    observer: Observer = lambda _report, _row: None,
    assignment: Assignment | None = None,
    timetable: Timetable | None = None,
) -> None:
    """Run a session to its horizon on any Flower grid and write its reports.

    Args:
        session: what to run.
        grid: where the client apps are.
        observer: called after each round.
        assignment: which node is asked for which user; default: each user's own node, as nodes claim.
        timetable: when rounds begin; default: one after the other.

    If the run stops early, by an error or by the user, the reports describe what was released.
    """

    def on_round(report: RoundReport) -> None:
        session.note_failures(report.t, report.failures)
        observer(report, session.evaluate(report.federated))

    execution = session.run.execution
    evaluation: CohortEvaluation | PrivateCohortEvaluation | None = None
    if session.evaluator is not None:
        evaluation = PrivateCohortEvaluation(
            session.evaluator, session.judges, MessageForm.of(execution, session.server.dimension)
        )
    elif isinstance(session.run.evaluation, NotPrivateEvaluation):
        _log.warning(
            "federated evaluation: metrics on users' own examples are computed without noise. They "
            "are not private and no epsilon counts them: do not publish them."
        )
        evaluation = CohortEvaluation(session.evaluation_due, session.examples_of, session.task)
    strategy = CorrelatedNoiseStrategy(
        session.server,
        session.cohort_schedule(),
        session.task.dataset.user_ids,
        execution=execution,
        on_round=on_round,
        admit=session.admit,
        assignment=assignment,
        evaluation=evaluation,
        timetable=timetable or Timetable(),
    )
    try:
        strategy.start(watch(grid), num_rounds=session.plan.allowed_rounds)
    except BaseException:
        with contextlib.suppress(ConfigError, LedgerError):  # what stopped the run is what should be seen
            session.write_reports()
        raise
    session.write_reports()


def worker_pool(session: Session) -> WorkerPool:
    """The workers of a simulation of this session: each can train any of its users.

    Raises:
        ConfigError: the run names keys, which only nodes of a deployment have, or users' examples are on
            such nodes.
    """
    if session.run.execution.enrolment:
        raise ConfigError("enrolment must be left out in a simulation, whose nodes have no keys.")
    dataset = session.task.dataset
    if not dataset.has_examples:
        raise ConfigError(
            "users' examples must be here to simulate a run; got a roster alone. Data on nodes are for "
            "flwr run on a deployment."
        )
    sizes, workers = partial(example_counts, dataset), session.run.execution.workers
    return WorkerPool(dataset.user_ids, sizes, _log.warning, workers)


def run_in_process(session: Session, observer: Observer = lambda _report, _row: None) -> None:
    """Run a session with all client apps in this process: the fastest engine on one machine.

    Where only code of fedmf and torch trains, a round's commit is under way while the next trains
    (decision 16); the observer is called once it is durable.
    """
    pool, trainer = worker_pool(session), local_trainer(session.run, session.task)
    client_app = make_client_app(lambda _: (trainer, session.sums))
    grid = InProcessGrid(CallsHere(client_app, trainer.confined), nodes=session.run.execution.workers)
    run_on_grid(session, grid, observer, pool)
