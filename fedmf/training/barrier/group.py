"""Users that are trained together, ready to go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.structure import Features, each, named
from fedmf.training.batches import StepRows


@dataclass(frozen=True, eq=False)
class Group:
    """Users of one width of batches with their examples.

    Args:
        positions: the users' places in the cohort, shape (users,).
        width: examples in a step, padding included.
        edges: user u owns the examples edges[u] … edges[u + 1] − 1, shape (users + 1,).
        features: of all examples.
        labels: of all examples.
        steps: which examples each step takes.
        seeds: of the random numbers that the model draws for each user, see `draw_seed`; shape (users,).
        absent: users (0 is the first of the group) that stay where they start: they failed.
    """

    positions: NDArray[np.int64]
    width: int
    edges: NDArray[np.int64]
    features: Features
    labels: Tensor
    steps: StepRows
    seeds: NDArray[np.uint64]
    absent: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return self.positions.size

    def taken(self, rows: Tensor) -> tuple[Features, Tensor]:
        """Features and labels of these examples."""
        return each(lambda values: values[rows], self.features), self.labels[rows]

    def part(self, first: int, last: int) -> Group:
        """Some of the users; the examples are those of all."""
        active = np.clip(self.steps.active - first, 0, last - first)
        taking = np.flatnonzero(active)
        steps = StepRows(
            self.steps.rows[taking, first:last], self.steps.weights[taking, first:last], active[taking]
        )
        absent = frozenset(user - first for user in self.absent if first <= user < last)
        edges = self.edges[first : last + 1]
        positions, seeds = self.positions[first:last], self.seeds[first:last]
        return replace(self, positions=positions, edges=edges, steps=steps, seeds=seeds, absent=absent)

    def halves(self) -> tuple[Group, Group]:
        """The first and the second half of the users."""
        middle = len(self) // 2
        return self.part(0, middle), self.part(middle, len(self))

    def without(self, users: Iterable[int]) -> Group:
        """The same with zeros for these users' examples: no shape changes, nor anybody else's bits."""
        features, labels = each(lambda values: values.clone(), self.features), self.labels.clone()
        failed = frozenset(users)
        for user in failed:
            owned = slice(int(self.edges[user]), int(self.edges[user + 1]))
            for values in (*named(features).values(), labels):
                values[owned] = 0
        return replace(self, features=features, labels=labels, absent=self.absent | failed)
