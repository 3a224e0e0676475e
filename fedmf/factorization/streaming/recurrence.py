"""Streaming C⁻¹z by a recurrence on past inputs and past outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmf.factorization.algebra import (
    frozen_vector,
)
from fedmf.factorization.streaming.inverse import StreamingInverse, rows_of
from fedmf.typing import Vector


@dataclass(frozen=True, eq=False)
class Recurrence(StreamingInverse):
    """C⁻¹z by a recurrence on past inputs and past outputs.

    y_t = Σ_{j<q} f_j z_{t−j} − Σ_{j=1..r} g_j y_{t−j} and [C⁻¹z]_t = s_t·y_t for t = 0 … n−1, with
    z_{<0} = y_{<0} = 0. Past z can be drawn again from a keyed source; past y must be kept. Where f or g has
    one row per round, round t uses row t.

    Args:
        feedforward: f, shape (q,) or (n, q), q ≥ 1.
        feedback: g, shape (r,) or (n, r), r ≥ 0.
        row_scale: s, shape (n,).

    Raises:
        ValueError: a coefficient is not finite, f or s is empty, or a matrix does not have n rows.

    >>> Recurrence([1.0, -0.5], [], [1.0, 1.0, 1.0]).apply(np.array([1.0, 1.0, 1.0]))
    array([1. , 0.5, 0.5])
    >>> Recurrence([[1.0, 0.0], [1.0, -0.5], [1.0, 2.0]], [], [1.0, 1.0, 1.0]).apply(np.ones(3))
    array([1. , 0.5, 3. ])
    """

    feedforward: Vector
    feedback: Vector
    row_scale: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_scale", frozen_vector(self.row_scale, "s", "row_scale"))
        n = self.row_scale.size
        object.__setattr__(self, "feedforward", _coefficients(self.feedforward, "f", "feedforward", n))
        feedback = np.array(self.feedback, dtype=np.float64)
        feedback = _coefficients(feedback, "g", "feedback", n) if feedback.size else np.zeros(0)
        object.__setattr__(self, "feedback", feedback)

    @property
    def memory_vectors(self) -> int:
        """How many past outputs y must be kept: r."""
        return self.feedback.shape[-1]

    def draws(self) -> NDArray[np.int64]:
        """How many of z_t, z_{t−1}, … have a coefficient that is not zero, shape (n,); at least one."""
        t, used = np.arange(self.rounds), self.feedforward != 0
        if used.ndim == 2:
            counted = used & (np.arange(used.shape[1]) <= t[:, None])
            return np.maximum(counted.sum(axis=1), 1)
        return np.maximum(np.cumsum(used)[np.minimum(t, used.size - 1)], 1)

    def stamped(self, rounds: int) -> Recurrence:
        """A row of coefficients per round, those that reach before the block being zero."""
        local = np.arange(rounds) % self.rounds
        forward = _rows(self.feedforward, local)
        forward = np.where(np.arange(forward.shape[1]) <= local[:, None], forward, 0.0)
        back = np.zeros(0)
        if self.feedback.size:
            lags = np.arange(1, self.memory_vectors + 1)
            back = np.where(lags <= local[:, None], _rows(self.feedback, local), 0.0)
        return Recurrence(forward, back, self.row_scale[local])

    def apply(self, z: Vector) -> Vector:
        """C⁻¹z for z of shape (m,) or (m, d) with m ≤ n, by the recurrence; a reference, not a fast path.

        Raises:
            ValueError: z has more rows than the horizon.
        """
        self._check_rows(z)
        y = np.zeros(z.shape)
        for t in range(len(z)):
            f = _of_round(self.feedforward, t)[: t + 1]
            y[t] = np.tensordot(f, z[t::-1][: f.size], 1)
            if t and self.feedback.size:
                g = _of_round(self.feedback, t)[:t]
                y[t] -= np.tensordot(g, y[t - 1 :: -1][: g.size], 1)
        return y * rows_of(self.row_scale, z)


def _rows(coefficients: NDArray[np.float64], local: NDArray[np.int64]) -> NDArray[np.float64]:
    if coefficients.ndim == 2:
        return coefficients[local]
    return np.broadcast_to(coefficients, (local.size, coefficients.size))


def _of_round(coefficients: NDArray[np.float64], t: int) -> Vector:
    return coefficients[t] if coefficients.ndim == 2 else coefficients


def _coefficients(values: ArrayLike, symbol: str, meaning: str, rounds: int) -> NDArray[np.float64]:
    """A read-only copy of finite coefficients, the same in all rounds (a vector) or a row for each."""
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2:
        return frozen_vector(matrix, symbol, meaning)
    if matrix.shape[0] != rounds or not matrix.size:
        raise ValueError(
            f"{symbol} ({meaning}) must be a vector or have n={rounds} non-empty rows; got {matrix.shape}."
        )
    if not np.isfinite(matrix).all():
        t, j = np.argwhere(~np.isfinite(matrix))[0].tolist()
        raise ValueError(f"{symbol} ({meaning}) must be finite; got {matrix[t, j]} at index ({t}, {j}).")
    matrix.setflags(write=False)
    return matrix
