"""The same run as a plain loop that brings updates to a `PrivateAggregator`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from support.pair_runs import RecordedPair

import fedmf
from fedmf.runs.run import Run
from fedmf.statements.privacy import UserLevel
from fedmf.training import LocalTrainer

from .subjects import of_parts


def carried_out_aggregated(
    run: Run, path: Path, promised: Sequence[str]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Numbers released by the loop, and facts that it shares with the run."""
    privacy = run.privacy
    task = run.task_source.build()
    assert isinstance(privacy, UserLevel)
    trainer = LocalTrainer(task, run.client)
    initial = task.model.unflatten(task.model.initial())
    opened = fedmf.PrivateAggregator(
        privacy,
        run.cohorts,
        users=list(task.dataset.user_ids),
        mechanism=run.mechanism_config,
        run_dir=path,
        server_optimizer=run.server,
        clipping=run.clipping,
        extra_releases=run.extra_releases,
    ).begin(initial)
    with opened:
        for t in range(run.cohorts.rounds):
            flat = task.model.flatten(
                {name: torch.from_numpy(a) for name, a in opened.model.items()}
            )
            connected = list(task.dataset.user_ids) if run.cohorts.is_order else None
            for user in opened.cohort(t, connected):
                update = trainer.updates(flat, [user], t)[0]  # type: ignore[attr-defined]
                opened.add(user, task.model.unflatten(update))
            opened.release()
        released = {name: torch.from_numpy(array) for name, array in opened.model.items()}
        numbers: dict[str, NDArray[Any]] = {"model": task.model.flatten(released).numpy()}
        numbers |= of_parts(run, opened.metrics)
        statement = opened.statement().to_dict()
    if isinstance(run.server, RecordedPair):
        numbers["second moments"] = run.server.seconds()
    return numbers, {name: statement.get(name) for name in promised}
