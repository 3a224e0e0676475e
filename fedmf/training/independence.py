"""A user's update depends on that user alone: train A, hostile users B, then A again, and A beside every B.

If ‖clip(x)‖ ≤ ζ bounds what a user adds, this is the other half of sensitivity: what a user adds must be the
same whoever is trained before it, after it or beside it. No type says so of a module or a loss: they may keep
numbers of one user in an attribute, a buffer, a generator or a closure and use them for the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from fedmf.data import Features, InMemoryDataset, TensorStructure, named
from fedmf.training.barrier import UserFailure
from fedmf.training.clipping import FixedPointSum
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.task import Task

#: Examples in a step of made-up users at most.
_WIDTH: Final = 8
#: On a GPU kernels may add in another order each time: the norm of a difference over that of A's update.
_ROUNDING: Final = 2.0**-8

Fill = Callable[[Tensor, TensorStructure], None]


class Adding(Protocol):
    """What trains users and adds up their clipped updates."""

    def add_updates(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, total: FixedPointSum
    ) -> list[UserFailure]:
        """See `LocalTrainer.add_updates`."""
        ...


def _numbers(value: float) -> Fill:
    """Every other number is this one, in turn with its negative."""

    def fill(values: Tensor, structure: TensorStructure) -> None:
        flat = values.view(-1)
        if structure.bound is None:
            flat[::2], flat[::4] = value, -value
        else:
            flat[::2] = structure.bound - 1

    return fill


def _same(place: int) -> Fill:
    """One whole number everywhere; numbers of another size."""

    def fill(values: Tensor, structure: TensorStructure) -> None:
        if structure.bound is None:
            values *= 100.0
        else:
            values.fill_(place % structure.bound)

    return fill


def _nothing(values: Tensor, structure: TensorStructure) -> None:
    del values, structure


#: What hostile users hold, all of it valid by the declared structure but for numbers that are not finite; and
#: how many times A's examples they have.
HOSTILE: Final[dict[str, tuple[Fill, int]]] = {
    "ordinary": (_nothing, 1),
    "first number": (_same(0), 1),
    "last number": (_same(-1), 1),
    "huge": (_numbers(3e38), 1),
    "infinite": (_numbers(float("inf")), 1),
    "not a number": (_numbers(float("nan")), 1),
    "many rows": (_same(1), 3),
    "no rows": (_nothing, 0),
}


def hostile_users(task: Task, examples: int) -> Task:
    """The task with users "A", of so many made-up examples, and those of `HOSTILE`."""
    structure, generator = task.structure, torch.Generator().manual_seed(0)
    sizes = [examples, *(times * examples for _, times in HOSTILE.values())]
    edges = np.cumsum([0, *sizes])
    features, labels = structure.sample(generator, (int(edges[-1]),))
    for (fill, _), first, last in zip(HOSTILE.values(), edges[1:-1], edges[2:], strict=True):
        for part, drawn in ((structure.features, features), (structure.labels, labels)):
            for name, values in named(drawn).items():
                fill(values[first:last], part.named[name])
    dataset = InMemoryDataset(
        features=features,
        labels=labels,
        owned=tuple(np.arange(first, last) for first, last in pairwise(edges)),
        user_ids=("A", *HOSTILE),
        test_features=_first(features),
        test_labels=labels[:1],
    )
    return replace(task, dataset=dataset.to(task.device))


def _first(features: Features) -> Features:
    return features[:1] if isinstance(features, Tensor) else {name: v[:1] for name, v in features.items()}


def dependence(
    make: Callable[[Task, LocalSGD], Adding], task: Task, local: LocalSGD, beside: bool = True
) -> str:
    """Train made-up user A, hostile users, A again, and A first and last in a cohort with all of them.

    Args:
        make: gives what trains the users of a task by local SGD, in this thread.
        task: model, loss and structure of examples; its users are not looked at.
        local: local SGD; one epoch of small batches is tried.
        beside: whether cohorts are tried as well; they show nothing where users are trained one by one.

    Returns:
        What is wrong, as the end of a sentence; empty if A's integers are the same each time: on a processor
        every bit, on a GPU but for rounding.

    Guarantees:
        The generators of Python, NumPy and torch are where they were.
    """
    width = min(local.batch_size, _WIDTH)
    made, others = hostile_users(task, width + 1 if beside else 2), tuple(HOSTILE)
    with kept_generators(task.device):
        trainer = make(made, replace(local, epochs=1, batch_size=width))
        origin = made.model.initial().to(task.device)

        def summed(users: Sequence[str]) -> tuple[Tensor, list[UserFailure]]:
            total = FixedPointSum(origin.numel(), 1.0, task.device)
            failures = trainer.add_updates(origin, users, 0, total)
            return total.fixed_point, [failure for failure in failures if failure.user == "A"]

        alone, failed = summed(["A"])
        if failed:
            return f"the update of a made-up user failed: {failed[0].reason}"
        if not alone.any():
            return "the update of a made-up user is zero, which shows nothing"
        hostile, _ = summed(others)
        if not _equal(summed(["A"])[0], alone):
            return "a made-up user's update was another one after other users than before"
        for users in ([*others, "A"], ["A", *others]) if beside else ():
            if not _equal(summed(users)[0] - hostile, alone):
                return "a made-up user's update was another one beside other users than alone"
    return ""


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.device.type == "cpu":
        return torch.equal(one, other)
    difference = (one - other).to(torch.float64).norm()
    return bool(difference <= _ROUNDING * other.to(torch.float64).norm())


def drawn(device: torch.device) -> dict[str, Any]:
    """Where the global random generators are, by their names."""
    name, key, *place = np.random.get_state()  # noqa: NPY002 - code of others may use it
    states: dict[str, Any] = {
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "Python's random": random.getstate(),
        "NumPy's generator": (name, np.asarray(key).tobytes(), *place),
    }
    if device.type == "cuda":
        states["torch's generator of the GPU"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return states


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Global random generators are afterwards where they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - code of others may use it
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
