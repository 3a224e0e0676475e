"""A partition by name, with what its kind needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.data.partitions import (
    Partition,
    partition_by_dirichlet_sizes,
    partition_by_label,
    partition_by_power_law,
    partition_by_shards,
    partition_evenly,
)

__all__ = ["PARTITIONS", "PartitionPlan"]


@dataclass(frozen=True)
class PartitionPlan:
    """How examples are spread over users.

    Args:
        users: U.
        kind: one of `PARTITIONS`.
        dirichlet_alpha: α of "dirichlet" and "dirichlet-sizes".
        size_exponent: a of "power-law".
        shards_per_user: of "shards".

    >>> labels = np.repeat(np.arange(4), 10)
    >>> parts = PartitionPlan(users=4, kind="shards", shards_per_user=1).split(
    ...     labels, np.random.default_rng(0))
    >>> sorted(set(labels[part].tolist()).pop() for part in parts)
    [0, 1, 2, 3]
    """

    users: int
    kind: str = "iid"
    dirichlet_alpha: float = 0.5
    size_exponent: float = 2.0
    shards_per_user: int = 2

    def __post_init__(self) -> None:
        if self.kind not in PARTITIONS:
            raise ValueError(f"partition must be one of {', '.join(PARTITIONS)}; got {self.kind!r}.")

    def split(self, labels: NDArray[np.int64], rng: np.random.Generator) -> Partition:
        """Spread the examples with these labels over the users; each user owns at least one.

        Raises:
            ValueError: more users than examples, or an impossible parameter.
        """
        return PARTITIONS[self.kind](self, labels, rng)


#: By name, as in configurations.
PARTITIONS: Final[dict[str, Callable[[PartitionPlan, NDArray[np.int64], np.random.Generator], Partition]]] = {
    "iid": lambda plan, labels, rng: partition_evenly(labels.size, plan.users, rng),
    "dirichlet": lambda plan, labels, rng: partition_by_label(labels, plan.users, plan.dirichlet_alpha, rng),
    "dirichlet-sizes": lambda plan, labels, rng: partition_by_dirichlet_sizes(
        labels.size, plan.users, plan.dirichlet_alpha, rng
    ),
    "power-law": lambda plan, labels, rng: partition_by_power_law(
        labels.size, plan.users, plan.size_exponent, rng
    ),
    "shards": lambda plan, labels, rng: partition_by_shards(labels, plan.users, plan.shards_per_user, rng),
}
