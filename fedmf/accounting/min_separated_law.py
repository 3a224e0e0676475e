"""The law of the patterns of one user under b-min-sep sampling, and sums over all patterns.

A free user is sampled with probability q and then rests for s − 1 rounds. The process starts in its
stationary state, so that every round has the same expected number of users. s = 1 is Poisson
sampling, q = 1 is Balls-in-Bins with s bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Matrix, Vector

_BLOCK = 64
# Beyond e^±600 the sums are computed as logarithms.
_LARGEST_EXPONENT = 600.0


@dataclass(frozen=True, eq=False)
class SeparatedLaw:
    """The law of a user's pattern π, which adds the sum of its columns c_t to C·G.

    Args:
        columns: band form of C: entry (j, t) is C_{t+j,t}, 0 beyond the horizon; shape (p, n),
            non-negative.
        separation: s ≥ p, so that the columns of a pattern have disjoint rows.
        probability: q in (0, 1].

    References:
        Dong, Ganesh (2026), "Privacy amplification for BandMF via b-min-sep subsampling",
        arXiv:2602.09338.
    """

    columns: Matrix
    separation: int
    probability: float

    @property
    def rounds(self) -> int:
        """n."""
        return self.columns.shape[1]

    @property
    def rate(self) -> float:
        """Probability that a user is in a round."""
        return self.probability / self._mass

    def likelier(self, odds: float) -> SeparatedLaw:
        """The law with the odds of joining, q : 1 − q, multiplied; columns stay."""
        q = self.probability
        return replace(self, probability=odds * q / (1.0 + (odds - 1.0) * q))

    @property
    def _mass(self) -> float:
        return 1.0 + (self.separation - 1) * self.probability

    @cached_property
    def squares(self) -> Vector:
        """|c_t|², shape (n,)."""
        return (self.columns**2).sum(axis=0)

    @cached_property
    def _blocks(self) -> list[tuple[int, Matrix]]:
        """Dense pieces of C: first round t and the rows t, … of the columns t, …, t + block − 1."""
        p, n = self.columns.shape
        width = max(p, _BLOCK)
        blocks = []
        for start in range(0, n, width):
            count = min(width, n - start)
            block = np.zeros((min(count + p - 1, n - start), count))
            for j in range(min(p, len(block))):
                places = np.arange(min(count, len(block) - j))
                block[places + j, places] = self.columns[j, start + places]
            blocks.append((start, block))
        return blocks

    def correlations(self, y: Matrix) -> Matrix:
        """<c_t, y> for every round t; y and the result have shape (n, N)."""
        correlations = np.empty_like(y)
        for start, block in self._blocks:
            correlations[start : start + block.shape[1]] = block.T @ y[start : start + len(block)]
        return correlations

    def mean_of(self, pattern: NDArray[np.bool_]) -> Matrix:
        """Σ_{t∈π} c_t; patterns and the result have shape (n, N)."""
        means = np.zeros(pattern.shape)
        for start, block in self._blocks:
            joined = pattern[start : start + block.shape[1]].astype(float)
            means[start : start + len(block)] += block @ joined
        return means

    def patterns(self, rng: np.random.Generator, count: int) -> NDArray[np.bool_]:
        """Patterns of the sampler, shape (n, count)."""
        n = self.rounds
        s = self.separation
        q = self.probability
        # Stationary: free with odds 1, blocked for j = 1 … s − 1 rounds with odds q each.
        free_from = np.zeros(count, dtype=np.int64)
        busy = rng.random(count) < (s - 1) * q / self._mass
        free_from[busy] = rng.integers(1, max(s, 2), size=int(busy.sum()))
        joined = np.zeros((n, count), dtype=bool)
        users = np.arange(count)
        while users.size:
            rounds = free_from[users] + rng.geometric(q, size=users.size) - 1
            inside = rounds < n
            users = users[inside]
            rounds = rounds[inside]
            joined[rounds, users] = True
            free_from[users] = rounds + s
        return joined

    def weighted(self, exponents: Matrix) -> WeightedPatterns:
        """The patterns with weights w_π Π_{t∈π} exp(e_t), for each column of e, shape (n, N).

        f_t is the sum over the patterns from round t on of a user who is free in round t:
        f_t = (1 − q) f_{t+1} + q e^{e_t} f_{t+s}, f_t = 1 for t ≥ n.
        """
        n = self.rounds
        s = self.separation
        q = self.probability
        turns = -(-n // s)
        high = float(exponents.max())
        low = float(exponents.min())
        smallest = -turns * low if q == 1.0 else -n * math.log1p(-q)
        if max(turns * high, smallest) >= _LARGEST_EXPONENT:
            return WeightedPatterns(self, self._logarithms(exponents))
        sums = np.ones((n + s, exponents.shape[1]))
        np.exp(exponents, out=sums[:n])
        for t in range(n - 1, -1, -1):
            sums[t] *= q * sums[t + s]
            if q < 1.0:
                sums[t] += (1.0 - q) * sums[t + 1]
        return WeightedPatterns(self, np.log(sums))

    def _logarithms(self, exponents: Matrix) -> Matrix:
        n = self.rounds
        s = self.separation
        q = self.probability
        logs = np.zeros((n + s, exponents.shape[1]))
        for t in range(n - 1, -1, -1):
            logs[t] = math.log(q) + exponents[t] + logs[t + s]
            if q < 1.0:
                logs[t] = np.logaddexp(math.log1p(-q) + logs[t + 1], logs[t])
        return logs


@dataclass(frozen=True, eq=False)
class WeightedPatterns:
    """Sums over all patterns with given weights, and patterns drawn by them, for N sets of weights.

    Args:
        law: of the unweighted patterns.
        logs: log f_t, shape (n + s, N).
    """

    law: SeparatedLaw
    logs: Matrix

    @cached_property
    def _starts(self) -> Matrix:
        """Logarithms of the sums by the first round in which the user is free, shape (s, N)."""
        s = self.law.separation
        q = self.law.probability
        weights = np.full((s, 1), math.log(q))
        weights[0] = 0.0
        return weights + self.logs[:s] - math.log1p((s - 1) * q)

    @cached_property
    def log_total(self) -> Vector:
        """log Σ_π w_π Π_{t∈π} exp(e_t), shape (N,)."""
        peak = self._starts.max(axis=0)
        return np.log(np.exp(self._starts - peak).sum(axis=0)) + peak

    def draw(self, rng: np.random.Generator, sets: NDArray[np.intp]) -> NDArray[np.bool_]:
        """One pattern by each of the named sets of weights, shape (n, number of sets)."""
        n = self.law.rounds
        s = self.law.separation
        cumulative = np.cumsum(np.exp(self._starts[:, sets] - self.log_total[sets]), axis=0)
        start = np.count_nonzero(cumulative <= rng.random(sets.size) * cumulative[-1], axis=0)
        free_from = np.minimum(start, s - 1)
        joined = np.zeros((n, sets.size), dtype=bool)
        users = np.arange(sets.size)
        while users.size:
            rounds = self._next_join(rng, sets[users], free_from[users])
            inside = rounds < n
            users = users[inside]
            rounds = rounds[inside]
            joined[rounds, users] = True
            free_from[users] = rounds + s
            users = users[free_from[users] < n]
        return joined

    def _next_join(
        self, rng: np.random.Generator, sets: NDArray[np.intp], free_from: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """The round of the next join, n if there is none, for users free from a round before n on.

        P(no join in t, …, i) = (1 − q)^{i+1−t} f_{i+1}/f_t falls with i: inverted by bisection.
        """
        n = self.law.rounds
        q = self.law.probability
        if q == 1.0:
            return free_from
        step = math.log1p(-q)
        level = np.log(rng.random(sets.size)) + self.logs[free_from, sets] + step * free_from
        low = free_from.copy()
        high = np.full(sets.size, n)
        while (low < high).any():
            middle = (low + high) // 2
            passed = self.logs[np.minimum(middle + 1, n), sets] + step * (middle + 1) <= level
            high = np.where(passed, middle, high)
            low = np.where(passed, low, np.minimum(middle + 1, high))
        return low
