"""The dominating pair of b-min-sep sampling of a banded strategy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.amplification.monte_carlo import NegativeEntriesError, Proposal, Side
from fedmf.accounting.amplification.separated_law import SeparatedLaw
from fedmf.accounting.amplification.separated_proposal import SeparatedAddProposal, SeparatedRemoveProposal
from fedmf.mechanisms.matrix import Factorization
from fedmf.participation import Participation
from fedmf.typing import Matrix


@dataclass(frozen=True, eq=False)
class MinSeparatedPair:
    """P = Σ_π w_π N(Σ_{t∈π} c_t, s²I) over the patterns π of the sampler, against Q = N(0, s²I).

    Args:
        law: of the patterns.

    References:
        Dong, Ganesh (2026), "Privacy amplification for BandMF via b-min-sep subsampling", arXiv:2602.09338.
    """

    law: SeparatedLaw

    @classmethod
    def of(cls, factorization: Factorization, participation: Participation) -> MinSeparatedPair:
        """s = p, the number of bands, and q = 1/(n/k − p + 1): k participations are expected.

        Raises:
            ValueError: C has a negative entry, or p > n/k.
        """
        n, k, p = participation.rounds, participation.max_participations, factorization.bands
        if p * k > n:
            raise ValueError(
                f"p (bands) must be at most n/k={n / k:g} for b-min-sep sampling; got {p}. "
                "Its accountant covers banded strategies only."
            )
        return cls.sampled(factorization, p, 1.0 / (n / k - p + 1.0))

    @classmethod
    def sampled(cls, factorization: Factorization, separation: int, probability: float) -> MinSeparatedPair:
        """The pair of a sampler with any separation s ≥ p and rate q.

        Raises:
            ValueError: C has a negative entry, or p > s.
        """
        n, p = factorization.rounds, factorization.bands
        if p > separation:
            raise ValueError(
                f"p (bands) must be at most b={separation} (the separation) for b-min-sep sampling; got {p}. "
                "Its accountant covers banded strategies only."
            )
        columns = np.zeros((p, n))
        for t in range(0, n, 512):
            block = factorization.columns(np.arange(t, min(t + 512, n)))
            for offset in range(block.shape[1]):
                rows = block[t + offset : t + offset + p, offset]
                columns[: rows.size, t + offset] = rows
        if columns.min() < 0:
            raise NegativeEntriesError(
                f"C (strategy) must have no negative entries for b-min-sep; got {columns.min():.6g}."
            )
        return cls(SeparatedLaw(columns, separation, probability))

    @property
    def size(self) -> int:
        """n."""
        return self.law.rounds

    @property
    def largest_norm(self) -> float:
        """Square root of the largest Σ|c_t|² over separated rounds, by a dynamic program."""
        n, s, squares = self.law.rounds, self.law.separation, self.law.squares
        best = np.zeros(n + s)
        for t in range(n - 1, -1, -1):
            best[t] = max(best[t + 1], squares[t] + best[t + s])
        return math.sqrt(float(best[0]))

    def least_noise(self, epsilon: float, delta: float) -> float:
        """None is known."""
        return 0.0

    def proposal(self, noise: float, epsilon: float, side: Side) -> Proposal:
        """The proposal for a side; see `separated_proposal`."""
        kind = SeparatedRemoveProposal if side == "remove" else SeparatedAddProposal
        return kind.of(self.law, noise, epsilon)

    def draw_without(self, rng: np.random.Generator, count: int) -> Matrix:
        """Products <c_t, y> of draws from Q, shape (n, N)."""
        return self.law.correlations(rng.standard_normal((self.law.rounds, count)))

    def losses(self, state: Matrix, noise: float) -> NDArray[np.float64]:
        """L at draws with <c_t, y> as state, shape (n, N)."""
        half = 0.5 * self.law.squares[:, None] / noise**2
        return self.law.weighted(state / noise - half).log_total
