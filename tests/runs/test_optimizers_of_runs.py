"""The server optimizer, the workloads and the weight λ that a configuration names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import linear_task, run_small, small_run

import fedmf
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import parse_workload


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "prefix"),
        ({"workload": "window:3"}, "window:3"),
        ({"workload": "auto"}, "momentum:0.9"),
        ({"workload": "auto", "server_momentum": 0.0, "server_schedule": "cosine"}, "prefix*cosine"),
        ({"workload": "auto", "server_weight_decay": 0.5}, "momentum:0.9:0.95"),
        ({"workload": "auto", "server_optimizer": "adam", "server_beta1": 0.5}, "momentum:0.5"),
    ],
)
def test_the_matrix_is_made_for_the_workload(keys: dict[str, object], expected: str) -> None:
    run = small_run(mechanism="banded-toeplitz", **keys)
    assert run.workload.name == expected
    part = run.participation
    wanted = build("banded-toeplitz", part, parse_workload(expected, 12)).factorization
    plan = fedmf.plan(run)
    np.testing.assert_allclose(plan.mechanism.factorization.materialize(), wanted.materialize(), rtol=1e-9)


@pytest.mark.parametrize("name", ["sgd", "fedyogi", "jme-adam"])
def test_runs_end_with_the_promised_epsilon(name: str, tmp_path: Path) -> None:
    keys = {"server_epsilon": 0.01} if name.startswith("fed") else {}
    run = small_run(linear_task(24, 40), server_optimizer=name, mechanism="bsr", bands=4, **keys)
    final = run_small(tmp_path / "run", run)
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["epsilon_spent"] <= statement["epsilon"] <= 8.0 * (1 + 1e-6)
    assert torch.isfinite(torch.as_tensor(final)).all()
    assert torch.as_tensor(final).any()
