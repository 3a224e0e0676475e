"""Clipped updates one by one, for a server that clips each again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

import torch
from torch import Tensor

from fedmf.training.clipping.fixed_point import FixedPointSum
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


class ClippedRows:
    """A block of clipped updates, one row a user.

    Guarantees: a row holds the bits that a `FixedPointSum` of that update alone has as float32. It depends on
    no other row.

    Args:
        users: r, how many rows; those that nothing is put into are zero vectors.
        dimension: d.
        clip_norm: ζ.
        device: where the rows live.

    >>> rows = ClippedRows(users=2, dimension=2, clip_norm=1.0)
    >>> rows.put([1], torch.tensor([[3.0, 4.0]])).tolist(), rows.block.double().numpy().round(6).tolist()
    ([True], [[0.0, 0.0], [0.6, 0.8]])
    """

    def __init__(
        self, users: int, dimension: int, clip_norm: float, device: torch.device | str = "cpu"
    ) -> None:
        self.block = torch.zeros(users, dimension, dtype=torch.float32, device=device)
        self._alone = FixedPointSum(dimension, clip_norm, device)

    takes_programs: Final = False

    def put(self, places: Sequence[int], updates: Tensor, origin: Tensor | None = None) -> Tensor:
        """Clip updates and keep them; returns the mask of those that were finite. The others are zeros.

        Args:
            places: of their users, 0..r−1.
            updates: shape (len(places), d).
            origin: shape (d,), float32; if given, the updates are ``updates − origin``.
        """
        finite = torch.zeros(len(places), dtype=torch.bool)
        for row, place in enumerate(places):
            alone = self._alone.like()
            finite[row] = alone.add_updates(updates[row : row + 1], origin)[0]
            self.block[place] = alone.total().to(torch.float32)
        return finite

    def like(self) -> Self:
        """For a worker of this process: rows of several workers are put into one block."""
        return self

    def merge(self, other: Self) -> None:
        """Nothing to do: it is the same block."""
