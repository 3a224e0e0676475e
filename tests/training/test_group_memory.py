"""How many users fit a device: what is planned for them is what training and clipping them takes."""

from __future__ import annotations

import pytest
import torch
from support.training_cases import Plain, cohort
from torch import nn

from fedmf.models.architectures import mlp
from fedmf.training import FixedPointSum, LocalSGD, LocalTrainer
from fedmf.training.grouping import MEMORY_SHARE, HeldBytes
from fedmf.training.kinds import classification

CPU = torch.device("cpu")
LOCALS = {
    "plain": LocalSGD(epochs=2, batch_size=8),
    "momentum and FedProx": LocalSGD(epochs=1, batch_size=8, momentum=0.9, proximal=0.1),
    "torch.func": LocalSGD(batch_size=8, engine="vectorised"),
    "micro-batches": LocalSGD(batch_size=8, micro_batch=2),
    "bfloat16": LocalSGD(batch_size=8, precision="bfloat16"),
}


def trainer_of(name: str, examples: int, users: int, group_size: int | None = None) -> LocalTrainer:
    module: nn.Module = mlp(6, (64, 32), 4, seed=0)
    if name == "torch.func":
        module = Plain(module)
    task = classification(cohort([examples] * users), module)
    trainer = LocalTrainer(task, LOCALS[name], group_size)
    trainer._programs, trainer._grouping._exact = [], False  # as on a GPU
    return trainer


@pytest.mark.parametrize("name", LOCALS)
def test_a_group_takes_what_was_planned_for_it(name: str) -> None:
    """Forward, backward, momentum, clip and sum of real groups, allocation by allocation."""
    users, examples = 12, 24
    trainer = trainer_of(name, examples, users, group_size=users)
    group, user = trainer._grouping._measured(8)
    planned = group + users * (user + examples * trainer.task.structure.example_bytes)
    origin, total = trainer.task.model.initial(), FixedPointSum(trainer.task.model.dimension, 1.0)
    with HeldBytes(CPU) as held:
        assert trainer.add_updates(origin, trainer.task.dataset.user_ids, 0, total) == []
    assert 0.7 * planned < held.most <= planned
    assert user > 4 * trainer.task.model.dimension


def test_groups_are_as_large_as_memory_allows() -> None:
    grouping = trainer_of("plain", 8, 4)._grouping
    (group, user), free = grouping._measured(8), 2**22
    user += 8 * grouping._task.structure.example_bytes
    most = grouping.fitting(free, 8, 8)
    assert most > 4
    assert group + most * user <= MEMORY_SHARE * free < group + (most + 1) * user
    assert grouping.fitting(free, 64, 8) < most
    assert grouping.fitting(free, 8, 10**4) < most
    assert grouping.fitting(2 * free, 8, 8) > most
    assert grouping.fitting(0, 8, 8) == 1
    grouping._workers.count = 4
    assert group + 4 * grouping.fitting(free, 8, 8) * user <= MEMORY_SHARE * free


def test_a_plan_moves_no_generator_and_no_model() -> None:
    trainer = trainer_of("plain", 8, 4)
    before, state = trainer.task.model.initial().clone(), torch.random.get_rng_state()
    trainer._grouping._measured(8)
    assert torch.equal(trainer.task.model.initial(), before)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_held_bytes_are_those_alive_at_once() -> None:
    """Views, in-place operations and what was there before take nothing; what is gone is given back."""
    outside = torch.zeros(1000)
    with HeldBytes(CPU) as held:
        outside.add_(1.0)
        view = outside[10:].view(-1)
        assert held.most == 0
        double = view * 2.0
        assert (held.now, held.most) == (3960, 3960)
        double = double + 1.0
        assert (held.now, held.most) == (3960, 7920)
        with torch.enable_grad():
            leaf = double.clone().requires_grad_()
            (leaf * leaf).sum().backward()
        assert leaf.grad is not None
        assert 3 * 3960 <= held.now <= 3 * 3960 + 4
        del double, leaf
        assert held.now <= 4
