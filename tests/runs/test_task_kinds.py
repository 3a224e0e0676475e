"""Whole runs of every kind of task, and of broken ones, which leave nothing behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from support.training_cases import KINDS, task_of_kind

import fedmf

ROUNDS = 12


def run_of_task(task: fedmf.Task, engine: str = "auto") -> fedmf.Run:
    users = task.dataset.users
    return fedmf.Run(
        task,
        fedmf.CyclicCohorts(rounds=ROUNDS, users_per_round=max(1, users // 2)),
        fedmf.UserLevel(clip_norm=1.0, epsilon=200.0, noise_seed=0),
        "identity",
        client=fedmf.LocalSGD(engine=engine, learning_rate=0.1, epochs=2),  # type: ignore[arg-type]
    )


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the loop says of modules that torch.func cannot batch is not of interest here."""
    logging.getLogger("fedmf").setLevel(logging.ERROR)
    yield
    logging.getLogger("fedmf").setLevel(logging.NOTSET)


@pytest.mark.weekly
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_is_trained_with_the_default_engine(
    kind: str, tmp_path: Path, pictures: None
) -> None:
    task = task_of_kind(kind, [5, 9, 3, 7, 8, 4])
    run = run_of_task(task)
    result = fedmf.simulate(run, tmp_path / "run")
    assert result.metrics[ROUNDS]["loss"] < result.metrics[0]["loss"]
    names = [metric.name for metric in task.metrics]
    table = pd.read_parquet(tmp_path / "run/metrics.parquet")
    assert list(table.columns) == ["round", "loss", *names, "epsilon"]
    assert table[["loss", *names]].notna().all(axis=None)
    assert result.statement.to_dict()["rounds_released"] == ROUNDS
    assert (tmp_path / "run/learning-curve.png").stat().st_size > 5000
    again = fedmf.recorded_run(tmp_path / "run", task=task)
    assert again.difference(run) is None
    grouped = fedmf.simulate(
        replace(run, client=replace(run.client, engine="loop")), tmp_path / "loop"
    )
    torch.testing.assert_close(grouped.parameters, result.parameters, rtol=1e-3, atol=1e-4)
