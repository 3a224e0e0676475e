"""Stamping: a smaller factorization repeated along the diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import check_leading, column_factors
from fedmf.factorization.matrices.dense import LARGEST_DENSE, Dense
from fedmf.factorization.matrices.strategy_matrix import Factorization
from fedmf.factorization.streaming import StreamingInverse
from fedmf.typing import Vector

# For workloads other than prefix sums the rows of A are multiplied with the dense inverse of one block.
_LARGEST_BLOCK = 2048


@dataclass(frozen=True, eq=False)
class Stamped(Factorization):
    """C = diag(C₀, C₀, …), the last block cut at the horizon: the noise starts afresh every m rounds.

    With m ≤ b a user is in a block at most once, so that columns of one user are orthogonal and the
    sensitivity is that of the best sum of squared columns.

    Args:
        base: C₀ of m rounds.
        rounds: n ≥ 1.

    Raises:
        ValueError: n is not a positive integer.

    >>> from fedmf.factorization import Toeplitz
    >>> Stamped(Toeplitz([1.0, 0.5], 2), 3).materialize()
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0. , 1. ]])
    """

    base: Factorization
    rounds: int

    def __post_init__(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise ValueError(f"n (rounds) must be an integer of at least 1; got {self.rounds!r}.")
        if self.rounds < self.base.rounds:
            object.__setattr__(self, "base", self.base.leading(self.rounds))

    @property
    def bands(self) -> int:
        """p of one block."""
        return self.base.bands

    def columns(self, indices: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float64]:
        """The columns of C with these 0-based indices, shape (n, m)."""
        chosen, size = np.asarray(indices, dtype=np.int64), self.base.rounds
        inner = self.base.columns(chosen % size)
        rows = np.arange(self.rounds)[:, None]
        local = rows - chosen // size * size
        inside = (local >= 0) & (local < size)
        return np.where(inside, np.take_along_axis(inner, np.clip(local, 0, size - 1), axis=0), 0.0)

    def column_sum(self, indices: Sequence[int] | NDArray[np.integer]) -> Vector:
        """Σ_j C_{:,j} over distinct 0-based indices j, block by block."""
        chosen, size = np.asarray(indices, dtype=np.int64), self.base.rounds
        total = np.zeros(-(-self.rounds // size) * size)
        for block in np.unique(chosen // size):
            local = chosen[chosen // size == block] - block * size
            total[block * size : (block + 1) * size] = self.base.column_sum(local)
        return total[: self.rounds]

    def gram_diagonal(self, gap: int) -> Vector:
        """[CᵀC]_{i,i+gap}: that of a block, and 0 between blocks, shape (n − gap,)."""
        whole, last = divmod(self.rounds, self.base.rounds)
        parts = [np.zeros(0)]
        if whole:
            parts.append(np.tile(_padded_gram(self.base, gap), whole))
        if last:
            parts.append(_padded_gram(self.base.leading(last), gap))
        return np.concatenate(parts)[: self.rounds - gap]

    def recurrence(self) -> StreamingInverse:
        """The base's, which forgets what came before the block."""
        return self.base.recurrence().stamped(self.rounds)

    def noise_row_variances(self) -> Vector:
        """Those of a block, repeated."""
        return self.base.noise_row_variances()[np.arange(self.rounds) % self.base.rounds]

    def query_variances(self, workload: Vector) -> Vector:
        """‖(A C⁻¹)_{t,:}‖² = Σ_d v_d(u) for t = Im + u and d = 0 … I, with v_d(u) = ‖(a_{dm+u−i})_i C₀⁻¹‖².

        Raises:
            ValueError: A is not of prefix sums and m exceeds 2048.
        """
        size = self.base.rounds
        blocks = -(-self.rounds // size)
        variances = self.base.query_variances(workload[:size])
        if (workload == 1.0).all():
            earlier = np.full((blocks, size), variances[-1])
        else:
            earlier = self._earlier_blocks(workload, blocks)
        earlier[0] = variances
        return np.cumsum(earlier, axis=0).reshape(-1)[: self.rounds]

    def _earlier_blocks(self, workload: Vector, blocks: int) -> NDArray[np.float64]:
        """v_d(u) for d ≥ 1, shape (blocks, m); row 0 is left zero."""
        size = self.base.rounds
        if size > _LARGEST_BLOCK and blocks > 1:
            raise ValueError(
                f"m (rounds of a stamped block) must be at most {_LARGEST_BLOCK} for this workload; "
                f"got {size}. Use more stamps."
            )
        variances = np.zeros((blocks, size))
        inverse = np.linalg.solve(self.base.materialize(), np.eye(size)) if blocks > 1 else np.eye(size)
        a = np.pad(workload, (0, blocks * size - workload.size))
        lag = np.subtract.outer(np.arange(size), np.arange(size))
        for block in range(1, blocks):
            variances[block] = np.square(a[block * size + lag] @ inverse).sum(axis=1)
        return variances

    def leading(self, rounds: int) -> Factorization:
        """The same blocks to the horizon T."""
        check_leading(rounds, self.rounds)
        return Stamped(self.base, rounds)

    def columns_divided_by(self, factors: Vector) -> Factorization:
        """The base divided where s is the same in every block, as column norms are with m | n; else dense.

        Raises:
            ValueError: s differs from block to block and n exceeds 4096.
        """
        s, size = column_factors(factors, self.rounds), self.base.rounds
        if np.array_equal(s, np.resize(s[:size], self.rounds)):
            return Stamped(self.base.columns_divided_by(s[:size]), self.rounds)
        if self.rounds > LARGEST_DENSE:
            raise ValueError(
                f"n (rounds) must be at most {LARGEST_DENSE} for column scales that differ between stamped "
                f"blocks of m={size}; got {self.rounds}. Use a number of stamps that divides n."
            )
        return Dense(self.materialize()).columns_divided_by(s)

    def to_dict(self) -> dict[str, Any]:
        """{"type": "stamped", "base", "rounds"}."""
        return {"type": "stamped", "base": self.base.to_dict(), "rounds": self.rounds}


def _padded_gram(block: Factorization, gap: int) -> Vector:
    if gap >= block.rounds:
        return np.zeros(block.rounds)
    return np.pad(block.gram_diagonal(gap), (0, gap))
