"""Runs carried out: what is done with a `Run`, which itself only describes."""

from __future__ import annotations

from pathlib import Path

from fedmf.optim import ServerOptimizer
from fedmf.rounds import run_in_process
from fedmf.runs import (
    LEDGER,
    OnRound,
    Run,
    RunResult,
    Session,
    carried_out,
    plan_run,
    read_header,
)
from fedmf.statements import Plan
from fedmf.training import Task


def plan(run: Run) -> Plan:
    """The calibrated mechanism. Builds the task, since the model decides the dimension.

    Raises:
        ConfigError: a mechanism that cannot be built or that the accountant does not cover.
    """
    task = run.task_source.build()
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return plan_run(run, optimizer, task.model.dimension)


def start(run: Run, path: str | Path, device: str = "cpu") -> Session:
    """Plan the run, create its directory, draw its key: a session at round 0.

    Args:
        run: what is carried out.
        path: the run directory; must not exist, or be empty.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: the run cannot be executed, or the place cannot be used; nothing is left there.
    """
    return Session.start(Path(path), run, device)


def resume(run: Run, path: str | Path, device: str = "cpu") -> Session:
    """Open a stopped run of this value where its ledger ends.

    Raises:
        ConfigError: not a run directory, or that of another run.
        LedgerError: a damaged ledger, or another process is running it.
    """
    return Session.resume(Path(path), run, device)


def simulate(
    run: Run,
    path: str | Path,
    device: str = "cpu",
    on_round: OnRound | None = None,
) -> RunResult:
    """Carry the run out in this process, to its horizon: start it, or continue it if it was stopped.

    Args:
        run: what is carried out.
        path: the run directory.
        device: "cpu" or "cuda".
        on_round: called with a `fedmf.runs.RoundRecord` after each committed round, for tracking, saving
            models, or stopping early: the run ends if it returns True.

    Raises:
        ConfigError: the run cannot be executed, or the place holds something else.
        Exception: what ``on_round`` raises; the same call continues the run.
    """
    opened = resume if (Path(path) / LEDGER).is_file() else start
    with opened(run, path, device) as session:
        return carried_out(session, run_in_process, on_round)


def load(path: str | Path, task: Task | None = None, optimizer: ServerOptimizer | None = None) -> Run:
    """The run that a directory holds, rebuilt from its header.

    Args:
        path: its directory.
        task: the task, where it was given as an object.
        optimizer: likewise.

    Raises:
        ConfigError: not a run directory, or an object of the user's own is missing or another one.
    """
    return Run.from_dict(read_header(Path(path)).run, task, optimizer)
