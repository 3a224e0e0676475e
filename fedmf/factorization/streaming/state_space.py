"""Streaming the inverse of a buffered linear Toeplitz matrix: m decaying sums of past outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import frozen_vector
from fedmf.factorization.streaming.inverse import StreamingInverse, rows_of
from fedmf.typing import Vector


@dataclass(frozen=True, eq=False)
class StateSpace(StreamingInverse):
    """C⁻¹z for C = LTT(1, Σ_i ω_i, Σ_i ω_i θ_i, …) from m sums of past outputs.

    y_t = z_t − Σ_i ω_i S_i(t),  S_i(t + 1) = θ_i S_i(t) + y_t,  S_i(0) = 0,  and [C⁻¹z]_t = s_t·y_t. This is
    C y = z solved forward: with positive ω no term is larger than what it is a part of, so decays may lie as
    close to 1 and to each other as they like.

    Args:
        decays: θ, shape (m,), |θ_i| ≤ 1.
        output_weights: ω, shape (m,).
        row_scale: s, shape (n,).
        period: all S_i return to 0 before every round that is a multiple of it; None means never.

    Raises:
        ValueError: a vector is not finite or empty, m differs, a decay exceeds 1 or the period is not
            positive.

    >>> StateSpace([0.5], [0.25], np.ones(4)).apply(np.array([1.0, 0.0, 0.0, 0.0]))
    array([ 1.      , -0.25    , -0.0625  , -0.015625])
    """

    decays: Vector
    output_weights: Vector
    row_scale: Vector
    period: int | None = None

    def __post_init__(self) -> None:
        for name, symbol in (("decays", "theta"), ("output_weights", "omega"), ("row_scale", "s")):
            object.__setattr__(self, name, frozen_vector(getattr(self, name), symbol, name))
        if self.decays.size != self.output_weights.size:
            raise ValueError(
                f"omega (output_weights) must have m={self.decays.size} entries like theta; "
                f"got {self.output_weights.size}."
            )
        if not (np.abs(self.decays) <= 1).all():
            at = int(np.flatnonzero(np.abs(self.decays) > 1)[0])
            raise ValueError(
                f"theta (decays) must be at most 1 in size; got {self.decays[at]} at index {at}."
            )
        if self.period is not None and self.period < 1:
            raise ValueError(f"m (period) must be at least 1; got {self.period}.")

    @property
    def memory_vectors(self) -> int:
        """m, the number of sums."""
        return self.decays.size

    def draws(self) -> NDArray[np.int64]:
        """One in every round."""
        return np.ones(self.rounds, dtype=np.int64)

    def restarts(self, t: int) -> bool:
        """Whether all sums are 0 before round t."""
        return t == 0 if self.period is None else t % self.period == 0

    def stamped(self, rounds: int) -> StateSpace:
        """Sums that return to 0 at every block."""
        local = np.arange(rounds) % self.rounds
        period = self.rounds if self.period is None else self.period
        if self.rounds % period:
            raise ValueError(f"m (period) must divide n={self.rounds} for stamping; got {period}.")
        return replace(self, row_scale=self.row_scale[local], period=period)

    def apply(self, z: Vector) -> Vector:
        """C⁻¹z for z of shape (m,) or (m, d) with m ≤ n; a reference, not a fast path.

        Raises:
            ValueError: z has more rows than the horizon.
        """
        self._check_rows(z)
        y = np.zeros(z.shape)
        sums = np.zeros((self.decays.size, *z.shape[1:]))
        decays = self.decays.reshape(-1, *[1] * (z.ndim - 1))
        for t in range(len(z)):
            if self.restarts(t):
                sums[:] = 0.0
            y[t] = z[t] - np.tensordot(self.output_weights, sums, 1)
            sums = decays * sums + y[t]
        return y * rows_of(self.row_scale, z)
