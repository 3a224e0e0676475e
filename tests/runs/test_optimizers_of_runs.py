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
from fedmf.mechanisms.workload import LearningRateSchedule, parse_workload
from fedmf.optim import (
    Blocks,
    Move,
    ReleasedEnergies,
    ServerAdagrad,
    ServerAdam,
    ServerSGD,
    ServerYogi,
    SquaredRelease,
)

SHAPES = [(4, 3), (4,)]
TENSORS = Blocks.of(SHAPES, "tensor")
PLAIN = Move(LearningRateSchedule("constant", 0.1, 12))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ServerSGD(PLAIN, 0.9)),
        (
            {
                "server_weight_decay": 0.5,
                "server_update_clip": 2.0,
                "server_schedule": "linear",
                "server_warmup": 3,
            },
            ServerSGD(Move(LearningRateSchedule("linear", 0.1, 12, 3), 0.5, 2.0), 0.9),
        ),
        (
            {"server_optimizer": "fedadagrad", "server_epsilon": 0.01, "server_beta1": 0.5},
            ServerAdagrad(PLAIN, SquaredRelease(TENSORS, debias=False), 0.5, 0.01),
        ),
        (
            {"server_optimizer": "fedyogi", "server_epsilon": 0.01, "server_beta2": 0.9},
            ServerYogi(PLAIN, SquaredRelease(TENSORS, debias=False), 0.9, 0.01, beta2=0.9),
        ),
        (
            {"server_optimizer": "adam", "second_moment_blocks": "coordinate"},
            ServerAdam(PLAIN, SquaredRelease(Blocks.of(SHAPES, "coordinate"), debias=False)),
        ),
        (
            {"server_optimizer": "adam-debiased", "server_beta1": 0.0, "server_beta2": 0.5},
            ServerAdam(PLAIN, SquaredRelease(TENSORS), 0.0, 0.5),
        ),
        (
            {"server_optimizer": "jme-adam", "server_epsilon": 0.1, "server_relative_epsilon": 0.5},
            ServerAdam(PLAIN, ReleasedEnergies(TENSORS), epsilon=0.1, relative_epsilon=0.5),
        ),
        (
            {
                "server_optimizer": "jme-adam",
                "second_moment": "squared-mean",
                "second_moment_blocks": "model",
            },
            ServerAdam(PLAIN, ReleasedEnergies(Blocks.of(SHAPES, "model"), "squared-mean")),
        ),
    ],
)
def test_keys_name_a_rule(keys: dict[str, object], expected: object) -> None:
    assert small_run(**keys).optimizer_source.build(SHAPES, 12) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "prefix"),
        ({"workload": "window:3"}, "window:3"),
        ({"workload": "auto"}, "momentum:0.9"),
        ({"workload": "auto", "server_momentum": 0.0, "server_schedule": "cosine"}, "prefix*cosine"),
        ({"workload": "auto", "server_nesterov": True}, "nesterov:0.9"),
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


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "exponential:0.99"),
        ({"server_beta2": 0.5}, "exponential:0.5"),
        ({"server_beta2": 0.0}, "window:1"),
        ({"second_workload": "prefix"}, "prefix"),
    ],
)
def test_the_second_workload_follows_beta2(keys: dict[str, object], expected: str) -> None:
    assert small_run(server_optimizer="jme-adam", **keys).second_workload.name == expected


@pytest.mark.parametrize("name", ["sgd", "fedadagrad", "fedyogi", "adam", "adam-debiased", "jme-adam"])
def test_runs_end_with_the_promised_epsilon(name: str, tmp_path: Path) -> None:
    keys = {"server_epsilon": 0.01} if name.startswith("fed") else {}
    run = small_run(linear_task(24, 40), server_optimizer=name, mechanism="bsr", bands=4, **keys)
    final = run_small(tmp_path / "run", run)
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["epsilon_spent"] <= statement["epsilon"] <= 8.0 * (1 + 1e-6)
    assert torch.isfinite(torch.as_tensor(final)).all()
    assert torch.as_tensor(final).any()
