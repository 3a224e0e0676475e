"""What sums of updates have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

from torch import Tensor

from fedmf.training.clipping.merge import Into


class UpdateSum(Protocol):
    """What takes in updates as they are made, such as `FixedPointSum`."""

    def add_updates(self, updates: Tensor, origin: Tensor | None = None) -> Tensor:
        """Add the updates ``rows − origin``, shape (users, d); returns the mask of those that count."""
        ...

    @property
    def takes_programs(self) -> bool:
        """Whether `add_computed` may be used; otherwise users come through `add_updates` alone."""
        ...

    def add_computed(self, users: int, compute: Callable[[float, float, Into], None]) -> None:
        """Let a program train users and clip each into the sum: see `FixedPointSum.add_computed`."""
        ...

    def add_nothing(self, users: int) -> None:
        """Count users whose contribution is the zero vector."""
        ...

    def like(self) -> Self:
        """An empty one of the same kind."""
        ...

    def merge(self, other: Self) -> None:
        """Add what another one has taken in."""
        ...
