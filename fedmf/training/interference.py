"""A check that a user's update depends on that user alone.

If ‖clip(x)‖ ≤ ζ bounds what a user adds, this is the other half of sensitivity: what a user adds
must be the same whichever users are trained before it, after it or with it. No type guarantees it
of a module or loss: they may keep numbers of one user in an attribute, a buffer, a generator or a
closure and use them for the next. So `interference` trains a made-up user A, hostile users, and A
again, alone and together with them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.data.structure import TensorStructure, each, named
from fedmf.training.engines import tried_batch
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.rng import kept_generators
from fedmf.training.task import Task
from fedmf.training.user_failures import UserFailure

#: Largest difference on a GPU, where kernels may add in another order each time, as a share of the
#: norm of A's update.
_ROUNDING: Final = 2.0**-8

#: Changes a hostile user's made-up values, given how they are declared.
Fill = Callable[[Tensor, TensorStructure], None]


class SumTrainer(Protocol):
    """Trains users and adds up their clipped updates, as a `LocalTrainer` does."""

    def add_updates(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, total: ClippedSum
    ) -> list[UserFailure]:
        """Train users from θ_t and add their updates to a sum; return the failures."""
        ...


def _alternate(number: float, values: Tensor, structure: TensorStructure) -> None:
    """Make every other number ±``number``, and every other integer the largest."""
    flat = values.view(-1)
    if structure.bound is None:
        flat[::2] = number
        flat[::4] = -number
    else:
        flat[::2] = structure.bound - 1


def _make_one_huge(values: Tensor, structure: TensorStructure) -> None:
    """Make a single number huge."""
    if structure.bound is None:
        values.view(-1)[values.numel() // 2] = 3e38


def _repeat(integer: int, values: Tensor, structure: TensorStructure) -> None:
    """Make all integers the same one, counted from the end if negative, and numbers larger."""
    integers = structure.integers
    if integers:
        values.fill_(integers[integer % len(integers)])
    else:
        values *= 100.0


def _leave(values: Tensor, structure: TensorStructure) -> None:
    """Change nothing."""
    del values, structure


#: How the values of each hostile user are changed, and how many times A's examples it has. All of
#: them are valid by the declared structure but for numbers that are not finite.
HOSTILE: Final[dict[str, tuple[Fill, int]]] = {
    "ordinary": (_leave, 1),
    "first number": (partial(_repeat, 0), 1),
    "last number": (partial(_repeat, -1), 1),
    "one huge": (_make_one_huge, 1),
    "huge": (partial(_alternate, 3e38), 1),
    "infinite": (partial(_alternate, math.inf), 1),
    "not a number": (partial(_alternate, math.nan), 1),
    "many rows": (partial(_repeat, 1), 2),
    "no rows": (_leave, 0),
}


def hostile_users(
    task: Task, examples: int, kinds: Mapping[str, tuple[Fill, int]] = HOSTILE
) -> Task:
    """A task with made-up users: "A", and one hostile user of each kind, which has its name.

    Args:
        task: model, loss and structure of examples. The loss is copied, so that what it keeps of
            these users stays in the copy.
        examples: how many A has.
        kinds: the hostile users, as `HOSTILE`.
    """
    sizes = [examples]
    for _, times in kinds.values():
        sizes.append(times * examples)
    edges = np.cumsum([0, *sizes]).tolist()
    features, labels = task.structure.sample(torch.Generator().manual_seed(0), (edges[-1],))
    for (fill, _), first, last in zip(kinds.values(), edges[1:], edges[2:], strict=False):
        for name, structure in named(task.structure.features).items():
            fill(named(features)[name][first:last], structure)
        fill(labels[first:last], task.structure.labels)
    dataset = InMemoryDataset(
        features=features,
        labels=labels,
        owned=tuple(np.split(np.arange(edges[-1]), edges[1:-1])),
        user_ids=("A", *kinds),
        test_features=each(lambda values: values[:1], features),
        test_labels=labels[:1],
    )
    return replace(task, dataset=dataset.to(task.device), loss=copy.deepcopy(task.loss))


def clipped_integers(
    trainer: SumTrainer, task: Task, users: Sequence[str], parameters: Tensor | None = None
) -> tuple[Tensor, dict[str, str]]:
    """The sum of users' clipped updates for ζ = 1 in integers, and why users failed.

    Args:
        trainer: trains the task's users.
        task: the task.
        users: the users to train.
        parameters: θ_t; None for the model's initial ones.
    """
    if parameters is None:
        parameters = task.model.initial().to(task.device)
    total = ClippedSum(parameters.numel(), 1.0, task.device)
    failures = trainer.add_updates(parameters, users, 0, total)
    return total.fixed_point, {failure.user: failure.reason for failure in failures}


def interference(
    make_trainer: Callable[[Task, LocalSGD], SumTrainer],
    task: Task,
    local: LocalSGD,
    grouped: bool = True,
) -> str:
    """Train made-up user A before, after, first and last among hostile users.

    Args:
        make_trainer: makes a trainer of a task's users by local SGD, in this thread, which has
            trained no user yet.
        task: model, loss and structure of examples; its users' examples are not read.
        local: local SGD; one epoch is tried.
        grouped: whether users may be trained in groups. A is then first in a cohort as well as
            last, and has a full batch of examples; both show nothing on path "loop".

    Returns:
        The fault, as the end of a sentence; empty if A's integers are the same each time: on a
        processor every bit, on a GPU but for rounding.

    Guarantees:
        The generators of Python, NumPy and torch are as before.
    """
    batch = tried_batch(local)
    short = replace(local, epochs=1, batch_size=batch)
    others = list(HOSTILE)
    examples = 2
    orders = [[*others, "A"]]
    if grouped:
        examples = batch + 1
        orders.append(["A", *others])
    with kept_generators(task.device):
        first_task = hostile_users(task, examples)
        first = make_trainer(first_task, short)
        alone, reasons = clipped_integers(first, first_task, ["A"])
        if "A" in reasons:
            return f"the update of a made-up user failed: {reasons['A']}"
        if not alone.any():
            return "the update of a made-up user is zero, which shows nothing"
        # Another trainer has the hostile users first: a model may keep the first user's numbers.
        second_task = hostile_users(task, examples)
        second = make_trainer(second_task, short)
        hostile, _ = clipped_integers(second, second_task, others)
        after, _ = clipped_integers(second, second_task, ["A"])
        updates = [after]
        for users in orders:
            together, _ = clipped_integers(first, first_task, users)
            updates.append(together - hostile)
        again, _ = clipped_integers(first, first_task, ["A"])
        updates.append(again)
    if all(_equal(update, alone) for update in updates):
        return ""
    return "a made-up user's update differed after or together with other users"


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether integers are equal; on a GPU but for rounding, as kernels may add in any order."""
    if one.device.type == "cpu":
        return torch.equal(one, other)
    difference = (one - other).to(torch.float64).norm()
    return bool(difference <= _ROUNDING * other.to(torch.float64).norm())
