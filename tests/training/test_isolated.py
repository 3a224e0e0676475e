"""Processes of their own: whatever ends or holds up a user's process costs that user alone."""

import functools
from collections.abc import Collection

import pytest
import torch
from support.isolated_tasks import ALL, VICTIM, hostile
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
from fedmf.training import isolated as isolated_training

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


def test_without_failures_the_sum_has_the_same_bits_on_two_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        apart, failures = summed(isolated("well"), USERS)
        together, _ = summed(LocalTrainer(hostile(source("well")), LOCAL), USERS)
    finally:
        torch.set_num_threads(before)
    assert failures == []
    assert not isolated("well").confined  # who learns of a model in another process is not known
    assert apart.users == len(USERS)
    assert torch.equal(apart.fixed_point, together.fixed_point)


def check_costs(total: FixedPointSum, victims: Collection[int]) -> None:
    """The sum over five users is that of all but the victims."""
    assert total.users == 5
    others = [f"u{u:03d}" for u in range(5) if u not in victims]
    expected, _ = summed(LocalTrainer(hostile(source("well")), LOCAL), others)
    assert torch.equal(total.fixed_point, expected.fixed_point)


def test_a_users_process_costs_that_user_alone() -> None:
    total, failures = summed(isolated("all"), [f"u{u:03d}" for u in range(5)])
    reasons = {"killed": "code -9", "exits": "code 3", "raises": "cannot be decoded"}
    stages = {"raises": "loading"}
    assert [(failure.user, failure.stage) for failure in failures] == [
        (f"u{u:03d}", stages.get(how, "isolation")) for u, how in ALL.items()
    ]
    for failure, how in zip(failures, ALL.values(), strict=True):
        assert reasons[how] in failure.reason
    check_costs(total, ALL)


def test_a_user_who_takes_too_long_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine the others may take as long as they like."""
    answer = isolated_training._Helper.answer

    def patient(self, user, job):
        self._seconds = 1.0 if user == f"u{VICTIM:03d}" else None
        return answer(self, user, job)

    monkeypatch.setattr(isolated_training._Helper, "answer", patient)
    total, (failure,) = summed(isolated("sleeps", seconds=1.0), [f"u{u:03d}" for u in range(5)])
    assert (failure.user, failure.stage) == (f"u{VICTIM:03d}", "isolation")
    assert failure.reason == "took longer than 1 s"
    check_costs(total, [VICTIM])


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
