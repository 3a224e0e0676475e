"""Compiled programs that train users and add their clipped updates: each user once, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmf.training.barrier.description import described, pass_interrupt
from fedmf.training.barrier.group import Group
from fedmf.training.blocks import COUNTED, NO_CLASS, NOT_FINITE, UNBOUNDED, Examples

#: Of users that were not trained yet.
UNTOUCHED: Final = -1
#: What became of a user that does not count: where, and why.
REASONS: Final = {
    NOT_FINITE: ("update", "holds NaN or infinity"),
    NO_CLASS: ("training", "IndexError: a label is no class of the model"),
    UNBOUNDED: ("update", "is above the clip norm after clipping: a bug of fedmf, please report it"),
}

#: Trains users one after another, given their examples, what became of each (set as they are dealt with), ζ,
#: what an update of norm ζ is scaled to, and what `clip_row` adds it to.
Compute = Callable[[Examples, NDArray[np.int64], float, float, Any], None]


class Counting(Protocol):
    """A sum of clipped updates that lets programs clip users into it, as `FixedPointSum` does."""

    def add_computed(self, users: int, compute: Callable[[float, float, Any], None]) -> None:
        """Let a program clip users' updates into the sum."""
        ...

    def add_nothing(self, users: int) -> None:
        """Count users whose contribution is the zero vector."""
        ...


def add_users(total: Counting, group: Group, compute: Compute) -> Iterator[tuple[int, tuple[str, str]]]:
    """Train a group's users and add the integers of their clipped updates, each once or not at all.

    What fails before anything is added, such as an allocation, is tried again, in halves to one user.

    Args:
        total: changed.
        group: of users with class numbers as labels.
        compute: trains them.

    Yields:
        Users (0 is the first of the group) that add nothing, with where and why.
    """
    outcome = np.full(len(group), UNTOUCHED)
    try:
        total.add_computed(len(group), partial(compute, examples_of(group), outcome))
    except BaseException as error:
        pass_interrupt(error)
        if (outcome != UNTOUCHED).any():
            raise
        yield from _again(total, group, compute, described(error))
        return
    for user in np.flatnonzero(outcome != COUNTED).tolist():
        yield user, REASONS[int(outcome[user])]


def _again(
    total: Counting, group: Group, compute: Compute, reason: str
) -> Iterator[tuple[int, tuple[str, str]]]:
    if len(group) == 1:
        total.add_nothing(1)
        yield 0, ("training", reason)
        return
    for half, first in zip(group.halves(), (0, len(group) // 2), strict=True):
        for user, why in add_users(total, half, compute):
            yield first + user, why


def examples_of(group: Group) -> Examples:
    """A group's examples, each as one row of numbers."""
    assert isinstance(group.features, Tensor)
    absent = np.zeros(len(group), dtype=np.bool_)
    absent[sorted(group.absent)] = True
    places = np.arange(len(group.labels)) if group.places is None else group.places
    return Examples(
        group.features.reshape(len(group.features), -1).numpy(),
        group.labels.numpy(),
        places,
        group.edges.astype(np.int64),
        group.steps.rows,
        group.steps.weights,
        group.steps.active.astype(np.int64),
        absent,
    )
