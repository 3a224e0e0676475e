"""Micro-batches: how many examples one pass holds; updates stay those of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from support.named_features import exact_update, masked_task
from support.training_cases import Plain, cohort
from torch import Tensor, nn

from fedmf.models import mlp
from fedmf.training import LocalSGD, LocalTrainer, Task, classification_task

SIZES = [5, 9, 4, 1, 8, 3, 17]
ENGINES = ("auto", "vmap", "loop")
every_engine = pytest.mark.parametrize("engine", ENGINES)
TASKS: dict[str, Callable[[], Task]] = {
    "chain": lambda: classification_task(cohort(SIZES), mlp(6, (7,), 4, seed=2)),
    "general": lambda: classification_task(cohort(SIZES), Plain(mlp(6, (7,), 4, seed=2))),
    "named": lambda: masked_task(SIZES),
}
every_task = pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
# float32 sums in another order, and against 64 bits.
TOLERANCE = 2e-5


def updates_of(task: Task, local: LocalSGD, group_size: int | None = None) -> Tensor:
    return LocalTrainer(task, local, group_size).updates(
        task.model.initial(), task.dataset.user_ids, 2
    )


@every_engine
@every_task
@pytest.mark.parametrize("momentum", [0.5])
def test_micro_batches_have_the_gradient_of_the_batch(
    make: Callable[[], Task], engine: str, momentum: float
) -> None:
    task = make()
    local = LocalSGD(2, 8, 0.3, momentum, engine=engine)  # type: ignore[arg-type]
    exact = torch.stack([exact_update(task, user, 2, local) for user in task.dataset.user_ids])
    for most in (1, 3, 8, 100):
        updates = updates_of(task, replace(local, micro_batch=most))
        torch.testing.assert_close(updates.double(), exact, rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(updates_of(task, replace(local, micro_batch=8)), updates_of(task, local))


class Watched(nn.Module):
    """Notes how many examples come in a pass, for all copies."""

    widths: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, features: Tensor) -> Tensor:
        self.widths.append(len(features))
        return self.inner(features)


def test_no_pass_holds_more_than_a_micro_batch() -> None:
    module = Watched()
    task = classification_task(cohort(SIZES), module)
    trainer = LocalTrainer(task, LocalSGD(1, 16, 0.1, engine="loop", micro_batch=5))
    module.widths.clear()
    trainer.updates(task.model.initial(), task.dataset.user_ids, 0)
    assert (min(module.widths), max(module.widths)) == (1, 5)  # never a pass of none
    assert sum(module.widths) == sum(SIZES)
