"""Two users of b-min-sep sampling that attract each other: Z = E exp(c<m_π, m_π'>) and pairs drawn by it.

π, π' are independent patterns. While both users rest nothing happens, so a state is the round t in which at
least one of them is free and the r rounds that the other still rests. A join in round t of a user whose
partner joined in round t − l, l < p, contributes e^{c<c_t, c_{t−l}>}; each such pair of rounds is met once,
at the later one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.amplification.separated_law import SeparatedLaw
from fedmf.typing import Matrix


@dataclass(frozen=True, eq=False)
class AttractedPairs:
    """The law of pairs with weights w_π w_π' e^{c<m_π, m_π'>}, means in units of the noise.

    Args:
        law: of one pattern.
        values: log of the sum over what a pair can do from round t on when one user is free and the other
            rests r rounds more, shape (n + s + 1, s).
        attractions: c<c_t, c_{t−l}>/noise² at (t, l), 0 for l ≥ p and t < l, shape (n, s + 1).
        starts: log weights of (rounds blocked, rounds blocked) before round 0, shape (s, s).
    """

    law: SeparatedLaw
    values: Matrix
    attractions: Matrix
    starts: Matrix

    @classmethod
    def of(cls, law: SeparatedLaw, noise: float, strength: float = 1.0) -> AttractedPairs:
        """The law of pairs when the noise is s; `strength` is c ≥ 0."""
        n, s, q = law.rounds, law.separation, law.probability
        attractions = strength * _attractions(law) / noise**2
        values = np.zeros((n + s + 1, s))
        log_q, log_rest = math.log(q), math.log1p(-q) if q < 1.0 else -math.inf
        waits = np.arange(1, s)
        for t in range(n - 1, -1, -1):
            joined = log_q + attractions[t, s - waits] + values[t + waits, s - waits]
            values[t, 1:] = np.logaddexp(joined, log_rest + values[t + 1, :-1])
            both = 2 * log_q + attractions[t, 0] + values[t + s, 0]
            one = math.log(2) + log_q + log_rest + values[t + 1, s - 1]
            values[t, 0] = np.logaddexp(np.logaddexp(both, one), 2 * log_rest + values[t + 1, 0])
        first, second = np.indices((s, s))
        weights = np.log(np.where(np.arange(s) > 0, q, 1.0)) - math.log1p((s - 1) * q)
        starts = weights[:, None] + weights + values[np.minimum(first, second), np.abs(first - second)]
        return cls(law, values, attractions, starts)

    @property
    def log_normalizer(self) -> float:
        """log Z."""
        return float(np.logaddexp.reduce(self.starts, axis=None))

    def draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The two patterns of each of count pairs, each of shape (n, count)."""
        n, s, q = self.law.rounds, self.law.separation, self.law.probability
        cumulative = np.cumsum(np.exp(self.starts - self.log_normalizer))
        places = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], "right")
        free_from = np.stack(np.divmod(np.minimum(places, s * s - 1), s))
        patterns = np.zeros((2, n, count), dtype=bool)
        for t in range(n):
            waits = np.maximum(free_from - t, 0)
            uniform = rng.random(count)
            wait = waits.max(axis=0)
            alone = (waits.min(axis=0) == 0) & (wait > 0)
            chance = self._joins(t, wait, q)
            # While one rests: the free one joins. Both free: both, the first, the second or none.
            joins = alone & (uniform < chance) & (waits == 0)
            together = wait == 0
            if together.any():
                both, one = self._together(t, q)
                joins[0] |= together & (uniform < both + one)
                joins[1] |= together & (
                    (uniform < both) | ((uniform >= both + one) & (uniform < both + 2 * one))
                )
            patterns[:, t] = joins
            free_from[joins] = t + s
        return patterns[0], patterns[1]

    def _joins(self, t: int, wait: NDArray[np.int64], q: float) -> Matrix:
        """Probability that the free user joins when the other rests `wait` rounds; 0 where both are free."""
        s = self.law.separation
        waits = np.arange(1, s)
        logs = self.attractions[t, s - waits] + self.values[t + waits, s - waits] - self.values[t, 1:]
        table = np.concatenate([np.zeros(1), q * np.exp(logs)])
        return table[wait]

    def _together(self, t: int, q: float) -> tuple[float, float]:
        """Probabilities, when both are free, that both join and that one given user alone does."""
        s, here = self.law.separation, self.values[t, 0]
        both = q * q * math.exp(self.attractions[t, 0] + self.values[t + s, 0] - here)
        return both, q * (1.0 - q) * math.exp(self.values[t + 1, s - 1] - here)


def _attractions(law: SeparatedLaw) -> Matrix:
    columns, n = law.columns, law.rounds
    p = len(columns)
    attractions = np.zeros((n, law.separation + 1))
    for lag in range(min(p, n)):
        attractions[lag:, lag] = np.einsum("jt,jt->t", columns[: p - lag, lag:], columns[lag:, : n - lag])
    return attractions
