"""Workloads of server optimizers against the optimizers themselves, run on one round at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import LearningRateSchedule, iterates, parse_workload
from fedmf.optim import Move, RoundRelease, ServerSGD
from fedmf.participation import Participation

ROUNDS = 30


def response(optimizer: ServerSGD) -> np.ndarray:
    """Entry (t, i): how a unit update in round i has moved θ after round t."""
    updates = torch.eye(ROUNDS, dtype=torch.float64)
    parameters = torch.zeros(ROUNDS, dtype=torch.float64)
    state = optimizer.init(parameters)
    rows = []
    for t in range(ROUNDS):
        parameters, state = optimizer.step(t, parameters, RoundRelease(updates[t], 0.0), state)
        rows.append(parameters.numpy())
    return np.array(rows)


@pytest.mark.parametrize(
    ("momentum", "kind", "warmup"),
    [(0.0, "constant", 0), (0.8, "constant", 7), (0.8, "linear", 0), (0.8, "cosine", 5)],
)
def test_the_last_model_is_exact_and_all_are_without_momentum_or_schedule(
    momentum: float, kind: str, warmup: int
) -> None:
    schedule = LearningRateSchedule(kind, 0.3, ROUNDS, warmup)
    found = 0.3 * iterates(schedule, momentum).materialize()
    expected = response(ServerSGD(Move(schedule), momentum))
    np.testing.assert_allclose(found[-1], expected[-1], rtol=1e-10)
    if momentum == 0 or (kind, warmup) == ("constant", 0):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    else:
        assert not np.allclose(found, expected, rtol=1e-3)


def test_weight_decay_with_a_constant_rate_is_exact() -> None:
    schedule = LearningRateSchedule("constant", 0.3, ROUNDS)
    found = 0.3 * iterates(schedule, 0.8, weight_decay=0.2).materialize()
    expected = response(ServerSGD(Move(schedule, weight_decay=0.2), 0.8))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    "text", ["momentum:0.9", "nesterov:0.9", "prefix*linear", "momentum:0.9*cosine:4"]
)
def test_a_matrix_made_for_the_workload_beats_that_for_prefix_sums(text: str) -> None:
    contract = Participation(ROUNDS, 3, 10)
    work = parse_workload(text, ROUNDS)
    rmse = [
        errors(C, work, sensitivity_of(C, contract)).rmse
        for C in (
            build("banded-toeplitz", contract, target, bands=10).factorization
            for target in (work, None)
        )
    ]
    assert rmse[0] < 0.999 * rmse[1]
