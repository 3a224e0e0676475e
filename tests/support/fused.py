"""Chains that users are trained on in one compiled call, and their updates in float64."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmf.data import InMemoryDataset
from fedmf.models import with_lora
from fedmf.training import LocalSGD, Task, classification
from fedmf.training.barrier import Failures, Group
from fedmf.training.clipping import FRACTION_BITS, FixedPointSum
from fedmf.training.fused import FusedProgram
from fedmf.training.local import LocalTrainer

#: Of the largest entry: chains of float32 sums, against float64.
TOLERANCE = 2e-5
SCALE = 2.0**FRACTION_BITS
RULES = {
    "one step": LocalSGD(epochs=1, batch_size=50, learning_rate=0.05),
    "last batch alone": LocalSGD(epochs=2, batch_size=4, learning_rate=0.05),
    "momentum": LocalSGD(epochs=2, batch_size=5, learning_rate=0.02, momentum=0.9),
    "proximal": LocalSGD(epochs=3, batch_size=6, learning_rate=0.02, momentum=0.5, proximal=0.4),
}


def adapted(
    module: nn.Module, rank: int, targets: tuple[str, ...] = (), heads: tuple[str, ...] = ()
) -> nn.Module:
    """With low-rank adapters that have been trained: B is not zero."""
    with_lora(module, rank, 5.0, targets, heads)
    for name, p in module.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(p, std=0.3)
    return module


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


CHAINS = {
    "as in benchmarks": (
        (1, 12, 12),
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(288, 24), nn.ReLU(), nn.Linear(24, 5)),
        ),
    ),
    "odd sides, no padding": (
        (3, 17, 15),
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 5, 3, bias=False), nn.ReLU(), nn.Conv2d(5, 20, 3), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(20 * 6 * 5, 5)),
        ),
    ),
    "larger kernels": (
        (2, 15, 18),
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 7, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(7, 34, 5, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(34 * 5 * 7, 19, bias=False), nn.ReLU(), nn.Linear(19, 5)),
        ),
    ),
    "many channels": (
        (18, 8, 8),
        lambda: nn.Sequential(
            *(nn.Conv2d(18, 40, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(40, 3, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5)),
        ),
    ),
    "dense layers only": (
        (5, 9),
        lambda: nn.Sequential(
            *(nn.Flatten(), nn.Linear(45, 70), nn.ReLU(), nn.Linear(70, 33, bias=False), nn.ReLU()),
            nn.Linear(33, 5),
        ),
    ),
    "one dense layer": ((18,), lambda: nn.Sequential(nn.Linear(18, 5))),
    "low-rank head": (
        (6, 7),
        lambda: adapted(
            nn.Sequential(nn.Flatten(), nn.Linear(42, 70), nn.ReLU(), nn.Linear(70, 5)), 8, ("3",)
        ),
    ),
    "low rank everywhere": (
        (5, 9),
        lambda: adapted(
            nn.Sequential(
                *(nn.Flatten(), nn.Linear(45, 70), nn.ReLU(), nn.Linear(70, 33, bias=False), nn.ReLU()),
                nn.Linear(33, 5),
            ),
            3,
        ),
    ),
    "low rank on a convolution": (
        (2, 10, 9),
        lambda: adapted(
            nn.Sequential(
                *(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
                *(nn.Linear(60, 21), nn.ReLU(), nn.Linear(21, 5)),
            ),
            17,
            ("4",),
            ("0", "6"),
        ),
    ),
    "frozen below, between and above": (
        (19,),
        lambda: nn.Sequential(
            *(frozen(nn.Linear(19, 34)), nn.ReLU(), frozen(nn.Linear(34, 35, bias=False)), nn.ReLU()),
            *(nn.Linear(35, 40), nn.ReLU(), frozen(nn.Linear(40, 20)), nn.ReLU(), nn.Linear(20, 18)),
            *(nn.ReLU(), frozen(nn.Linear(18, 5))),
        ),
    ),
}


def task_of(sizes: list[int], chain: str, seed: int = 0) -> Task:
    shape, module = CHAINS[chain]
    generator = torch.Generator().manual_seed(seed)
    examples = sum(sizes)
    features = torch.randn(examples, *shape, generator=generator)
    labels = torch.randint(5, (examples,), generator=generator)
    owned = tuple(np.split(np.arange(examples), np.cumsum(sizes)[:-1]))
    ids = tuple(f"user {u}" for u in range(len(sizes)))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = module()
    return classification(InMemoryDataset(features, labels, owned, ids, features[:2], labels[:2], 5), made)


def groups(task: Task, local: LocalSGD, most: int | None = None) -> list[Group]:
    trainer = LocalTrainer(task, replace(local, engine="loop"), most)
    return list(trainer._groups(task.dataset.user_ids, 3, Failures()))


def program(task: Task, local: LocalSGD) -> FusedProgram:
    found = FusedProgram.of(task, local)
    assert found is not None
    return found


def integers(task: Task, local: LocalSGD, clip_norm: float, most: int | None = 8) -> NDArray[np.int64]:
    """The sum over all users."""
    total, received = FixedPointSum(task.model.dimension, clip_norm), program(task, local)
    for group in groups(task, local, most):
        assert list(received.received(task.model.initial()).add_to(total, group)) == []
    assert total.users == task.dataset.users
    return total.fixed_point.numpy()


def reference(task: Task, local: LocalSGD, user: int) -> Tensor:
    """One user's update by autograd and torch.optim in float64, in the order that the engines use."""
    (group,) = LocalTrainer(task, replace(local, engine="loop"))._groups(
        [task.dataset.user_ids[user]], 3, Failures()
    )
    module = copy.deepcopy(task.model.module).double()
    trained = [p for p in module.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    optimizer = torch.optim.SGD(trained, lr=local.learning_rate, momentum=local.momentum)
    for rows, weights in zip(group.steps.rows[:, 0], group.steps.weights[:, 0], strict=True):
        real = torch.from_numpy(rows[weights > 0])
        assert isinstance(group.features, Tensor)
        loss = nn.functional.cross_entropy(module(group.features[real].double()), group.labels[real])
        for p, origin in zip(trained, start, strict=True):
            loss = loss + local.proximal / 2 * (p - origin).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = [(p - origin).reshape(-1) for p, origin in zip(trained, start, strict=True)]
    return torch.cat(moved).detach()
