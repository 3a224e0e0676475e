"""Processes of their own: whatever ends or holds up a user's process costs that user alone."""

import functools
import time

import pytest
import torch
from support.isolated_tasks import VICTIM, hostile
from torch import nn

from fedmf.runs import FunctionTask
from fedmf.training import (
    FixedPointSum,
    IsolatedTrainer,
    LocalSGD,
    LocalTrainer,
    Task,
    Trainer,
    UserFailure,
    UserLimits,
)

LOCAL = LocalSGD(1, 4, 0.3)
USERS = [f"u{u:03d}" for u in (0, 1, 2, 3, 2, 4)]


def source(behaviour: str) -> FunctionTask:
    return FunctionTask(function="support.isolated_tasks:hostile", users=6, options=behaviour)


def isolated(behaviour: str, seconds: float | None = None) -> IsolatedTrainer:
    made = source(behaviour)
    return IsolatedTrainer(hostile(made), made.build, LOCAL, UserLimits(seconds=seconds))


def summed(trainer: Trainer, users: list[str]) -> tuple[FixedPointSum, list[UserFailure]]:
    total = FixedPointSum(trainer.task.model.dimension, 0.5)
    return total, trainer.add_updates(trainer.task.model.initial(), users, 1, total)


@pytest.mark.parametrize("threads", [1, 2])
def test_without_failures_the_sum_has_the_same_bits(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        apart, failures = summed(isolated("well"), USERS)
        together, _ = summed(LocalTrainer(hostile(source("well")), LOCAL), USERS)
    finally:
        torch.set_num_threads(before)
    assert failures == []
    assert apart.users == len(USERS)
    assert torch.equal(apart.fixed_point, together.fixed_point)


@pytest.mark.parametrize(
    ("behaviour", "stage", "reason"),
    [
        ("killed", "isolation", "code -9"),
        ("exits", "isolation", "code 3"),
        ("sleeps", "isolation", "longer than 8 s"),
        ("raises", "loading", "cannot be decoded"),
    ],
)
def test_a_users_process_costs_that_user_alone(behaviour: str, stage: str, reason: str) -> None:
    begun = time.monotonic()
    total, failures = summed(isolated(behaviour, seconds=8.0), [f"u{u:03d}" for u in range(5)])
    assert [(failure.user, failure.stage) for failure in failures] == [(f"u{VICTIM:03d}", stage)]
    assert reason in failures[0].reason
    assert total.users == 5
    others, _ = summed(
        LocalTrainer(hostile(source("well")), LOCAL), [f"u{u:03d}" for u in range(5) if u != VICTIM]
    )
    assert torch.equal(total.fixed_point, others.fixed_point)
    assert time.monotonic() - begun < 45


def test_an_unknown_user_is_no_failure() -> None:
    with pytest.raises(KeyError):
        summed(isolated("well"), ["nobody"])


def _broken() -> Task:
    raise ValueError("no such file")


@pytest.mark.parametrize(
    ("build", "reason"),
    [(_broken, "ValueError: no such file"), (functools.partial(nn.Linear, 1, 1), "AttributeError")],
)
def test_a_task_that_cannot_be_built_there_is_named(build: object, reason: str) -> None:
    trainer = IsolatedTrainer(hostile(source("well")), build, LOCAL)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=f"isolated training cannot begin: .*{reason}"):
        summed(trainer, USERS)


def test_judgements_have_the_same_bits_and_a_killed_user_a_row_of_zeros() -> None:
    theta = hostile(source("well")).model.initial() + 0.5
    together, _ = LocalTrainer(hostile(source("well")), LOCAL).judge(theta, USERS, 2.0)
    apart, none = isolated("well").judge(theta, USERS, 2.0)
    assert none == []
    assert torch.equal(apart, together)
    killed, failures = isolated("killed").judge(theta, USERS, 2.0)
    victims = [place for place, user in enumerate(USERS) if user == "u002"]
    expected = [("u002", "isolation")] * len(victims)
    assert [(failure.user, failure.stage) for failure in failures] == expected
    assert not killed[victims].any()
    others = [place for place in range(len(USERS)) if place not in victims]
    assert torch.equal(killed[others], together[others])
