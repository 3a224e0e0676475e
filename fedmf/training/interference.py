"""A user's update depends on that user alone: train A, hostile users B, then A again, and A
together with every B.

If ‖clip(x)‖ ≤ ζ bounds what a user adds, this is the other half of sensitivity: what a user adds
must be the same whichever users are trained before it, after it or with it. No type guarantees it
of a module or loss: they may keep numbers of one user in an attribute, a buffer, a generator or a
closure and use them for the next.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
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

#: On a GPU kernels may add in another order each time: the norm of a difference over that of A's
#: update.
_ROUNDING: Final = 2.0**-8

Fill = Callable[[Tensor, TensorStructure], None]


class Adding(Protocol):
    """What trains users and adds up their clipped updates."""

    def add_updates(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, total: ClippedSum
    ) -> list[UserFailure]:
        """See `LocalTrainer.add_updates`."""
        ...


def _numbers(value: float) -> Fill:
    """Every other number is this one, in turn with its negative."""

    def fill(values: Tensor, structure: TensorStructure) -> None:
        flat = values.view(-1)
        if structure.bound is None:
            flat[::2] = value
            flat[::4] = -value
        else:
            flat[::2] = structure.bound - 1

    return fill


def _one(values: Tensor, structure: TensorStructure) -> None:
    """A single number is huge."""
    if structure.bound is None:
        values.view(-1)[values.numel() // 2] = 3e38


def _same(place: int) -> Fill:
    """One integer everywhere; numbers of another size."""

    def fill(values: Tensor, structure: TensorStructure) -> None:
        if structure.bound is None:
            values *= 100.0
        else:
            values.fill_(place % structure.bound)

    return fill


def _nothing(values: Tensor, structure: TensorStructure) -> None:
    del values, structure


#: What hostile users hold, all of it valid by the declared structure but for numbers that are not
#: finite; and how many times A's examples they have.
HOSTILE: Final[dict[str, tuple[Fill, int]]] = {
    "ordinary": (_nothing, 1),
    "first number": (_same(0), 1),
    "last number": (_same(-1), 1),
    "one huge": (_one, 1),
    "huge": (_numbers(3e38), 1),
    "infinite": (_numbers(float("inf")), 1),
    "not a number": (_numbers(float("nan")), 1),
    "many rows": (_same(1), 2),
    "no rows": (_nothing, 0),
}


def hostile_users(
    task: Task, examples: int, kinds: Mapping[str, tuple[Fill, int]] = HOSTILE
) -> Task:
    """The task with users "A", of so many made-up examples, and one of each kind, called as it is.

    The loss is a copy, so that what it keeps of these users is left here.
    """
    structure = task.structure
    generator = torch.Generator().manual_seed(0)
    sizes = [examples, *(times * examples for _, times in kinds.values())]
    edges = np.cumsum([0, *sizes])
    features, labels = structure.sample(generator, (int(edges[-1]),))
    for (fill, _), (first, last) in zip(kinds.values(), pairwise(edges[1:]), strict=True):
        for part, drawn in ((structure.features, features), (structure.labels, labels)):
            for name, values in named(drawn).items():
                fill(values[first:last], named(part)[name])
    dataset = InMemoryDataset(
        features=features,
        labels=labels,
        owned=tuple(np.arange(first, last) for first, last in pairwise(edges)),
        user_ids=("A", *kinds),
        test_features=each(lambda values: values[:1], features),
        test_labels=labels[:1],
    )
    return replace(task, dataset=dataset.to(task.device), loss=copy.deepcopy(task.loss))


def integers(
    trainer: Adding, task: Task, users: Sequence[str], parameters: Tensor | None = None
) -> tuple[Tensor, dict[str, str]]:
    """The sum of users' clipped updates in units of 2⁻⁴⁰, ζ = 1, and why users failed.

    Args:
        trainer: of the task's users.
        task: which.
        users: whom to train.
        parameters: θ_t; None for the model's own.
    """
    origin = task.model.initial().to(task.device) if parameters is None else parameters
    total = ClippedSum(origin.numel(), 1.0, task.device)
    failures = trainer.add_updates(origin, users, 0, total)
    return total.fixed_point, {failure.user: failure.reason for failure in failures}


def interference(
    make: Callable[[Task, LocalSGD], Adding], task: Task, local: LocalSGD, beside: bool = True
) -> str:
    """Train made-up user A before, after, first and last among hostile users.

    Args:
        make: gives what trains the users of a task by local SGD, in this thread, and has trained
            nobody yet.
        task: model, loss and structure of examples; its users are not looked at.
        local: local SGD; one epoch is tried.
        beside: whether cohorts are tried as well; they show nothing where users are trained one by
            one.

    Returns:
        The fault, as the end of a sentence; empty if A's integers are the same each time: on a
        processor every bit, on a GPU but for rounding.

    Guarantees:
        The generators of Python, NumPy and torch are where they were.
    """
    batch = tried_batch(local)
    others = tuple(HOSTILE)
    examples = batch + 1 if beside else 2
    short = replace(local, epochs=1, batch_size=batch)
    with kept_generators(task.device):
        made = hostile_users(task, examples)
        trainer = make(made, short)
        alone, failed = integers(trainer, made, ["A"])
        if "A" in failed:
            return f"the update of a made-up user failed: {failed['A']}"
        if not alone.any():
            return "the update of a made-up user is zero, which shows nothing"
        later = hostile_users(task, examples)
        trainer_later = make(later, short)
        hostile, _ = integers(trainer_later, later, others)
        cohorts = ([*others, "A"], ["A", *others]) if beside else ([*others, "A"],)
        again = [
            integers(trainer_later, later, ["A"])[0],  # where the first user may have been kept
            *(integers(trainer, made, users)[0] - hostile for users in cohorts),
            integers(trainer, made, ["A"])[0],
        ]
    if all(same(other, alone) for other in again):
        return ""
    return "a made-up user's update was another one after or together with other users"


def same(one: Tensor, other: Tensor) -> bool:
    """Whether integers are equal; on a GPU, where kernels may add in any order, but for
    rounding.
    """
    if one.device.type == "cpu":
        return torch.equal(one, other)
    difference = (one - other).to(torch.float64).norm()
    return bool(difference <= _ROUNDING * other.to(torch.float64).norm())
