"""Streaming C⁻¹z by drawing again: each row a short list of rounds and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import frozen_vector
from fedmf.factorization.streaming.inverse import StreamingInverse, rows_of
from fedmf.typing import Vector


@dataclass(frozen=True, eq=False)
class SparseRows(StreamingInverse):
    """[C⁻¹z]_t = s_t·Σ_m weights[m]·z_{inputs[m]} over first[t] ≤ m < first[t + 1]; nothing is kept.

    Args:
        first: shape (n + 1,), from 0, increasing.
        inputs: rounds, inputs[m] ≤ t in row t.
        weights: same shape, finite.
        row_scale: s, shape (n,).

    Raises:
        ValueError: the shapes do not fit, a row is empty or reaches past its round.

    >>> rows = SparseRows.of_lists([[0], [1, 0]], [[1.0], [1.0, -0.5]], np.ones(2))
    >>> rows.apply(np.array([2.0, 2.0])), rows.regenerated_vectors, rows.mean_regenerated_vectors
    (array([2., 1.]), 1, 0.5)
    """

    first: NDArray[np.int64]
    inputs: NDArray[np.int64]
    weights: Vector
    row_scale: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_scale", frozen_vector(self.row_scale, "s", "row_scale"))
        object.__setattr__(self, "weights", frozen_vector(self.weights, "w", "weights"))
        for name in ("first", "inputs"):
            values = np.array(getattr(self, name), dtype=np.int64)
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        n, m = self.row_scale.size, self.weights.size
        counts = np.diff(self.first)
        if self.first.shape != (n + 1,) or self.inputs.shape != (m,) or self.first[0] or self.first[-1] != m:
            raise ValueError(
                f"first, inputs (rows) must have shapes ({n + 1},) and ({m},) and cover all weights; "
                f"got {self.first.shape} and {self.inputs.shape}."
            )
        if not (counts > 0).all():
            raise ValueError(f"row t (of C^-1) must not be empty; got t={int(np.argmin(counts > 0))}.")
        late = (self.inputs > np.repeat(np.arange(n), counts)) | (self.inputs < 0)
        if late.any():
            raise ValueError(f"inputs (rounds) must be between 0 and their row; got {self.inputs[late][0]}.")

    @classmethod
    def of_lists(
        cls, inputs: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], row_scale: Vector
    ) -> SparseRows:
        """A list of rounds and one of weights for every row."""
        first = np.concatenate([[0], np.cumsum([len(row) for row in inputs])])
        return cls(first, np.concatenate(inputs), np.concatenate(weights), row_scale)

    @property
    def memory_vectors(self) -> int:
        """0: all past z are drawn again."""
        return 0

    def draws(self) -> NDArray[np.int64]:
        """How many entries the rows have, shape (n,)."""
        return np.diff(self.first)

    def row(self, t: int) -> tuple[list[int], list[float]]:
        """The rounds and weights of row t, without s."""
        part = slice(self.first[t], self.first[t + 1])
        return self.inputs[part].tolist(), self.weights[part].tolist()

    def stamped(self, rounds: int) -> SparseRows:
        """Every block's rows, shifted to it."""
        n = self.rounds
        rows = [self.row(t % n) for t in range(rounds)]
        shifted = [[t // n * n + i for i in row[0]] for t, row in enumerate(rows)]
        return self.of_lists(shifted, [row[1] for row in rows], self.row_scale[np.arange(rounds) % n])

    def apply(self, z: Vector) -> Vector:
        """C⁻¹z for z of shape (m,) or (m, d) with m ≤ n; a reference, not a fast path.

        Raises:
            ValueError: z has more rows than the horizon.
        """
        self._check_rows(z)
        y = np.zeros(z.shape)
        for t in range(len(z)):
            inputs, weights = self.row(t)
            y[t] = np.tensordot(weights, z[inputs], 1)
        return y * rows_of(self.row_scale, z)
