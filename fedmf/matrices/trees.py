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
    """The C of a binary tree, of which all is known by how it streams: ⌈log₂ n⌉ sums over dyadic
    blocks.

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
                C[middle : middle + (1 << j), start:middle] = entries[
                    middle : middle + (1 << j), None
                ]
        super().__init__(C / sums.row_scale)
        for name, value in (("sums", sums), *((name, getattr(sums, name)) for name in self.stored)):
            object.__setattr__(self, name, value)

    @cached_property
    def inverse(self) -> Array:
        """C⁻¹, shape (n, n): what streams when every z_t is a unit vector of its own."""
        inverse = self.sums.materialize()
        inverse.setflags(write=False)
        return inverse

    def streaming_inverse(self) -> BlockSums:
        """Sums over blocks: ⌈log₂ n⌉ stored, one normal a round."""
        return self.sums

    def columns_divided_by(self, factors: Vector) -> BlockTree:
        """The same sums with the rows of C⁻¹ multiplied by s."""
        return BlockTree(self.sums.rows_scaled(column_factors(factors, self.rounds)))

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> BlockTree:
        """The tree of these sums."""
        return cls(BlockSums(**values))


class KaryTree(Dense, kind="kary-tree"):
    """The unweighted tree with a children a node, its columns divided by s; see `kary_tree`.

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
        """z_t less the draws of the sub-blocks in the rest of its block: below 2 draws on
        average.
        """
        a = self.arity
        inputs = []
        for t, width in enumerate(block_widths(a, self.rounds).tolist()):
            # Blocks of a^j rounds end with round t + 1 − a^{j+1} + k·a^j, counted from 1, for k = 1
            # … a − 1.
            sizes = [a**j for j in range(20) if a**j < width]
            inputs.append([t, *(t - a * size + k * size for size in sizes for k in range(1, a))])
        return SparseRows.of_lists(
            inputs, [[1.0] + [-1.0] * (len(row) - 1) for row in inputs], self.factors
        )

    def columns_divided_by(self, factors: Vector) -> KaryTree:
        """The same tree with another s."""
        return KaryTree(self.arity, self.factors * column_factors(factors, self.rounds))

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> KaryTree:
        """The tree of this arity with these factors."""
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
