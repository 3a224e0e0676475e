"""Server SGD against torch.optim.SGD."""

from __future__ import annotations

import torch

from fedmf.mechanisms.workload import LearningRateSchedule
from fedmf.optim import Move, RoundRelease, ServerSGD

ROUNDS = 100
DIMENSION = 17
# float32 rounding over 100 steps; both add in the same order up to sign.
TOLERANCE = 1e-5


def by_torch(
    schedule: LearningRateSchedule,
    momentum: float,
    start: torch.Tensor,
    updates: torch.Tensor,
) -> list[torch.Tensor]:
    """The path of torch.optim.SGD on the gradient −u."""
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=momentum)
    path = []
    for t in range(ROUNDS):
        optimizer.param_groups[0]["lr"] = schedule(t)
        parameter.grad = -updates[t]
        optimizer.step()
        path.append(parameter.detach().clone())
    return path


def test_it_is_sgd_on_the_negated_update() -> None:
    for momentum in (0.0, 0.5, 0.9):
        for kind in ["constant", "linear", "cosine"]:
            generator = torch.Generator().manual_seed(3)
            updates = torch.randn(ROUNDS, DIMENSION, generator=generator)
            parameters = torch.randn(DIMENSION, generator=generator)
            schedule = LearningRateSchedule(kind, peak=0.3, rounds=ROUNDS, warmup=7)
            optimizer = ServerSGD(Move(schedule), momentum)
            expected = by_torch(schedule, momentum, parameters, updates)
            state = optimizer.init(parameters)
            for t in range(ROUNDS):
                parameters, state = optimizer.step(
                    t, parameters, RoundRelease(updates[t], 0.0), state
                )
                torch.testing.assert_close(parameters, expected[t], rtol=TOLERANCE, atol=TOLERANCE)
