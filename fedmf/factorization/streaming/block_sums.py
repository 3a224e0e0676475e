"""Streaming C⁻¹z for the C of a binary tree: log₂ n sums over dyadic blocks of past outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmf.factorization.algebra import frozen_vector
from fedmf.factorization.streaming.inverse import StreamingInverse, rows_of
from fedmf.typing import Array, Vector


def levels(rounds: int) -> int:
    """How many levels of dyadic blocks have one that is complete and followed by a round: ⌈log₂ n⌉."""
    return (rounds - 1).bit_length()


def closed_levels(t: int) -> int:
    """v, the level of the largest dyadic block that ends with round t (0-based): 2^v divides t + 1.

    >>> [closed_levels(t) for t in range(8)]
    [0, 1, 0, 2, 0, 1, 0, 3]
    """
    return (~t & (t + 1)).bit_length() - 1


@dataclass(frozen=True, eq=False)
class BlockSums(StreamingInverse):
    """C⁻¹z where row t of C is constant over each dyadic block of the rounds before t.

    The rounds 0 … t − 1 are the disjoint union of one block of 2^j rounds for every bit j that is set in t;
    D_j is the sum of x over it. Then

        x_t = a_t·z_t − Σ_{j: bit j of t} g_{tj}·D_j,    [C⁻¹z]_t = s_t·x_t,

    and the block that ends with round t, of level v, has D_v = x_t + Σ_{j<v} D_j. At most ⌈log₂ n⌉ sums
    are kept, and a round reads as many as t has bits.

    Args:
        gain: a, shape (m,), positive; m is the period after which everything starts afresh, or n.
        weights: g, shape (m, ⌈log₂ m⌉); zero where the bit is not set.
        row_scale: s, shape (n,).

    Raises:
        ValueError: the shapes do not fit, a value is not finite, or a weight has no block.

    >>> twice = BlockSums([1.0, 0.5], [[0.0], [0.5]], np.ones(2))  # C = [[1, 0], [1, 2]]
    >>> twice.apply(np.array([1.0, 4.0])), twice.memory_vectors
    (array([1. , 1.5]), 1)
    """

    gain: Vector
    weights: Array
    row_scale: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", frozen_vector(self.gain, "a", "gain"))
        object.__setattr__(self, "row_scale", frozen_vector(self.row_scale, "s", "row_scale"))
        object.__setattr__(self, "weights", _block_weights(self.weights, self.gain.size))

    @classmethod
    def of_strategy(cls, matrix: ArrayLike) -> BlockSums:
        """Read a and g from C: a_t = 1/C_tt and g_tj = C_ts/C_tt with s any round of block j before t."""
        C = np.asarray(matrix, dtype=np.float64)
        t = np.arange(len(C))
        diagonal = np.diagonal(C)
        weights = np.zeros((len(C), levels(len(C))))
        for j in range(weights.shape[1]):
            inside = t[t >> j & 1 == 1]
            weights[inside, j] = C[inside, inside >> j + 1 << j + 1] / diagonal[inside]
        return cls(1.0 / diagonal, weights, np.ones(len(C)))

    @property
    def period(self) -> int:
        """m, after so many rounds everything starts afresh."""
        return self.gain.size

    @property
    def memory_vectors(self) -> int:
        """⌈log₂ m⌉, a sum for every level."""
        return self.weights.shape[1]

    def draws(self) -> NDArray[np.int64]:
        """One in every round."""
        return np.ones(self.rounds, dtype=np.int64)

    def stamped(self, rounds: int) -> BlockSums:
        """The same m rounds again and again."""
        if self.rounds % self.period:
            raise ValueError(f"m (period) must divide n={self.rounds} for stamping; got {self.period}.")
        return replace(self, row_scale=self.row_scale[np.arange(rounds) % self.rounds])

    def apply(self, z: Vector) -> Vector:
        """C⁻¹z for z of shape (m,) or (m, d) with m ≤ n; a reference, not a fast path.

        Raises:
            ValueError: z has more rows than the horizon.
        """
        self._check_rows(z)
        x = np.zeros(z.shape)
        sums = np.zeros((self.memory_vectors + 1, *z.shape[1:]))
        for t in range(len(z)):
            local = t % self.period
            x[t] = self.gain[local] * z[t] - self.weights[local] @ sums[:-1]
            v = min(closed_levels(local), self.memory_vectors)
            sums[v] = x[t] + sums[:v].sum(axis=0)
        return x * rows_of(self.row_scale, z)


def _block_weights(values: ArrayLike, period: int) -> Array:
    weights = np.array(values, dtype=np.float64).reshape(period, -1)
    if weights.shape[1] != levels(period):
        raise ValueError(
            f"g (weights) must have {levels(period)} columns, one a level, for m={period} rounds; "
            f"got {weights.shape[1]}."
        )
    if not np.isfinite(weights).all():
        t, j = np.argwhere(~np.isfinite(weights))[0].tolist()
        raise ValueError(f"g (weights) must be finite; got {weights[t, j]} at index ({t}, {j}).")
    absent = (np.arange(period)[:, None] >> np.arange(weights.shape[1]) & 1) == 0
    if weights[absent].any():
        t, j = np.argwhere(absent & (weights != 0))[0].tolist()
        raise ValueError(f"g (weights) must be 0 where t has no block; got {weights[t, j]} at t={t}, j={j}.")
    weights.setflags(write=False)
    return weights
