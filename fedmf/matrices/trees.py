"""Tree aggregation as lower-triangular strategy matrices, known by how they stream."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.factorization import Dense
from fedmf.matrices.series import column_factors
from fedmf.matrices.streaming_inverse import BlockSums, SparseRows


class BlockTree(Dense, kind="block-tree"):
    """The C of a binary tree, given by the ⌈log₂ n⌉ sums over dyadic blocks that stream it.

    Args:
        sums: a_t = 1/C_tt and g_tj = C_ts/C_tt for s in block j before t; without a period.

    >>> BlockTree(BlockSums([1.0, 0.5], [[0.0], [0.5]], np.ones(2))).materialize()
    array([[1., 0.],
           [1., 2.]])
    """

    sums: BlockSums
    stored = ("gain", "weights", "row_scale")

    def __init__(self, sums: BlockSums) -> None:
        C = np.diag(1.0 / sums.gain)
        for j in range(sums.memory_vectors):
            entries = sums.weights[:, j] / sums.gain
            # Rounds of the right half of a block of 2^{j+1} have the left half before them.
            for start in range(0, sums.period - (1 << j), 2 << j):
                middle = start + (1 << j)
                end = middle + (1 << j)
                C[middle:end, start:middle] = entries[middle:end, None]
        super().__init__(C / sums.row_scale)
        object.__setattr__(self, "sums", sums)
        for name in self.stored:
            object.__setattr__(self, name, getattr(sums, name))

    @cached_property
    def inverse(self) -> Array:
        """C⁻¹, shape (n, n), streamed from unit vectors z_t."""
        inverse = self.sums.materialize()
        inverse.setflags(write=False)
        return inverse

    def streaming_inverse(self) -> BlockSums:
        """The sums over blocks: ⌈log₂ n⌉ are stored, and one z a round is drawn."""
        return self.sums

    def columns_divided_by(self, factors: Vector) -> BlockTree:
        """The tree whose C⁻¹ has rows multiplied by s."""
        return BlockTree(self.sums.rows_scaled(column_factors(factors, self.rounds)))

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> BlockTree:
        """The tree of recorded sums."""
        return cls(BlockSums(**values))


class KaryTree(Dense, kind="kary-tree"):
    """The unweighted tree with a children a node, its columns divided by s.

    Args:
        arity: a.
        factors: s, shape (n,), positive.
    """

    arity: int
    factors: Vector
    stored = ("arity", "factors")

    def __init__(self, arity: int, factors: ArrayLike) -> None:
        s = np.array(factors, dtype=np.float64)
        s = column_factors(s, s.size)
        C = np.zeros((s.size, s.size))
        ones = 1.0 / s
        for t, width in enumerate(block_widths(arity, s.size).tolist()):
            C[t, t + 1 - width : t + 1] = ones[t + 1 - width : t + 1]
        super().__init__(C)
        object.__setattr__(self, "arity", arity)
        object.__setattr__(self, "factors", s)

    @cached_property
    def inverse(self) -> Array:
        """C⁻¹, shape (n, n), of few entries."""
        rows = self.streaming_inverse()
        inverse = np.zeros((self.rounds, self.rounds))
        inverse[np.repeat(np.arange(self.rounds), np.diff(rows.first)), rows.inputs] = rows.weights
        inverse *= self.factors[:, None]
        inverse.setflags(write=False)
        return inverse

    def streaming_inverse(self) -> SparseRows:
        """z_t less the draws of the sub-blocks in the rest of its block.

        A row draws fewer than 2 z on average.
        """
        a = self.arity
        inputs: list[list[int]] = []
        weights: list[list[float]] = []
        for t, width in enumerate(block_widths(a, self.rounds).tolist()):
            row = [t]
            size = 1
            while size < width:
                # Blocks of a^j rounds end with round t + 1 − a^{j+1} + k·a^j, counted from 1, for
                # k = 1 … a − 1.
                row.extend(range(t - a * size + size, t, size))
                size *= a
            inputs.append(row)
            weights.append([1.0] + [-1.0] * (len(row) - 1))
        return SparseRows.of_lists(inputs, weights, self.factors)

    def columns_divided_by(self, factors: Vector) -> KaryTree:
        """The tree with s multiplied by these factors."""
        return KaryTree(self.arity, self.factors * column_factors(factors, self.rounds))

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> KaryTree:
        """The tree of a recorded arity and s."""
        return cls(**values)


def block_widths(arity: int, rounds: int) -> NDArray[np.int64]:
    """a^v, the largest power of a that divides t + 1, for t = 0 … n − 1."""
    last = np.arange(1, rounds + 1)
    width = np.ones(rounds, dtype=np.int64)
    power = arity
    while power <= rounds:
        width[last % power == 0] = power
        power *= arity
    return width
