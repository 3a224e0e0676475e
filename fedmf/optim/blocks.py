"""Blocks of a flat vector that share one second moment: coordinates, output channels, tensors, the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from fedmf.moments import BlockEnergies, DiagonalMoment, SecondMoment

BlockKind = Literal["coordinate", "channel", "tensor", "model"]


@dataclass(frozen=True)
class Blocks:
    """Consecutive disjoint blocks that cover a flat vector, kept as runs of blocks of one size.

    Args:
        runs: (how many blocks, how many coordinates in each), in order.

    Raises:
        ValueError: no run, or one that is empty.

    Guarantees:
        Keeps nothing of the length of the vector; a vectorised reduction a run, on the vector's device.

    >>> blocks = Blocks.of([(2, 3), (2,)], "channel")
    >>> blocks.runs, blocks.sizes
    (((2, 3), (1, 2)), [3, 3, 2])
    >>> blocks.energies(torch.ones(8))
    tensor([3., 3., 2.])
    """

    runs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.runs or min(min(run) for run in self.runs) < 1:
            raise ValueError(f"blocks (runs) must be pairs of positive integers; got {self.runs}.")

    @classmethod
    def of(cls, shapes: Sequence[Sequence[int]], which: str) -> Self:
        """The blocks of a model.

        Args:
            shapes: of its tensors, in the order of the flat vector.
            which: "coordinate" (one block each), "channel" (one for each first index of a tensor of two or
                more dimensions, one for a vector), "tensor", or "model" (one for all).

        Raises:
            ValueError: an unknown kind of block, or no parameters.
        """
        counts = [math.prod(shape) for shape in shapes]
        if which == "coordinate":
            return cls(((sum(counts), 1),))
        if which == "model":
            return cls(((1, sum(counts)),))
        if which == "tensor":
            return cls(tuple((1, count) for count in counts))
        if which == "channel":
            heads = [shape[0] if len(shape) > 1 else 1 for shape in shapes]
            return cls(tuple((head, count // head) for head, count in zip(heads, counts, strict=True)))
        raise ValueError(f"blocks must be one of {', '.join(get_args(BlockKind))}; got {which!r}.")

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Self:
        """Chosen blocks."""
        return cls(tuple((1, size) for size in sizes))

    @property
    def dimension(self) -> int:
        """d, the length of the vector."""
        return sum(count * size for count, size in self.runs)

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return sum(count for count, _ in self.runs)

    @property
    def sizes(self) -> list[int]:
        """|B| of each block."""
        return [size for count, size in self.runs for _ in range(count)]

    def second_moment(self) -> SecondMoment:
        """What a mechanism must release for these blocks: squares, or sums of squares."""
        if all(size == 1 for _, size in self.runs):
            return DiagonalMoment(self.dimension)
        return BlockEnergies(self.sizes)

    def energies(self, x: Tensor) -> Tensor:
        """Σ_{j∈B} x_j² of every block, shape (count,)."""
        parts = x.split([count * size for count, size in self.runs])
        return torch.cat(
            [
                part.square() if size == 1 else part.view(count, size).square().sum(1)
                for part, (count, size) in zip(parts, self.runs, strict=True)
            ]
        )

    def means(self, totals: Tensor) -> Tensor:
        """Block totals divided by block sizes, shape (count,)."""
        parts = totals.split([count for count, _ in self.runs])
        return torch.cat([part / size for part, (_, size) in zip(parts, self.runs, strict=True)])

    def spread(self, values: Tensor) -> Tensor:
        """One value a block to one a coordinate, shape (d,)."""
        parts = values.split([count for count, _ in self.runs])
        return torch.cat(
            [
                part if size == 1 else part[:, None].expand(count, size).reshape(-1)
                for part, (count, size) in zip(parts, self.runs, strict=True)
            ]
        )

    def weighted_mean(self, values: Tensor) -> Tensor:
        """Mean over coordinates of `spread(values)`, a scalar tensor."""
        parts = values.split([count for count, _ in self.runs])
        total = sum(
            (part.sum() * size for part, (_, size) in zip(parts, self.runs, strict=True)),
            values.new_zeros(()),
        )
        return total / self.dimension
