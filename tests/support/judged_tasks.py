"""Tasks whose users judge in ways that are known by hand, and runs that ask them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message
from torch import Tensor

import fedmf
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.runs import PrivateEvaluation, Run, Session
from fedmf.training import Metric, Task
from support.small_runs import answering, client_for, linear_task, small_run

USERS, ROUNDS = 24, 12
Tamper = Callable[[Message, Message], Message]


def constant(index: int) -> Metric:
    """A metric that is 0.5, the middle of its range, whatever the model and the examples are."""

    def terms(outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.full((len(labels),), 0.5, dtype=torch.float64)

    return Metric(f"half{index}", terms, higher_is_better=True)


def judged_task(metrics: int, dimension: int = 400) -> Task:
    """Users whose updates do not depend on the model, and so many constant metrics."""
    task = linear_task(USERS, dimension)
    return dataclasses.replace(task, metrics=tuple(map(constant, range(metrics))))


def judged_run(task: Task | None = None, asked: PrivateEvaluation | None = None, **keys: Any) -> Run:
    """A small run with private evaluation after every second of its 12 rounds, unless told otherwise."""
    return dataclasses.replace(
        small_run(task, **keys), evaluation=asked or PrivateEvaluation(every=2, size=12, share=0.2)
    )


def carry_out(
    path: Path,
    run: Run,
    evaluate: Tamper = lambda _, reply: reply,
    prepare: Callable[[Session], None] = lambda _: None,
) -> dict[int, dict[str, Any]]:
    """Start the run or go on with it, to its horizon; its metrics by released rounds."""
    opened = fedmf.resume(run, path) if path.exists() else fedmf.start(run, path)
    with opened as session:
        prepare(session)
        client = answering(client_for(session), evaluate=evaluate)
        run_on_grid(session, InProcessGrid(client, nodes=run.execution.workers))
        return session.metrics
