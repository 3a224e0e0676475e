"""b-min-sep sampling: a user who was not sampled in the last s − 1 rounds is sampled with probability q.

The process starts in its stationary state, so that every round has the same expected number of users. s = 1
is Poisson sampling, q = 1 is Balls-in-Bins with s bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.amplification.monte_carlo import Draws, Proposal, Side
from fedmf.factorization.base import Factorization
from fedmf.participation import Participation

__all__ = ["MinSeparated"]

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
_PLAIN_SHARE = 0.2
_PILOT = 256


@dataclass(frozen=True, eq=False)
class MinSeparated:
    """P = Σ_π w_π N(Σ_{t∈π} c_t, s²I) over the patterns π of the sampler, against Q = N(0, s²I).

    Args:
        columns: band form of C: entry (j, t) is C_{t+j,t}, 0 beyond the horizon; shape (p, n), non-negative.
        separation: s ≥ p, so that the columns of a pattern have disjoint rows.
        probability: q in (0, 1].

    References:
        Dong, Ganesh (2026), "Privacy amplification for BandMF via b-min-sep subsampling", arXiv:2602.09338.
    """

    columns: Matrix
    separation: int
    probability: float

    @classmethod
    def of(cls, factorization: Factorization, participation: Participation) -> MinSeparated:
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
    def sampled(cls, factorization: Factorization, separation: int, probability: float) -> MinSeparated:
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
            raise ValueError(
                f"C (strategy) must have no negative entries for b-min-sep; got {columns.min():.6g}."
            )
        return cls(columns, separation, probability)

    @property
    def size(self) -> int:
        """n."""
        return self.columns.shape[1]

    @property
    def largest_norm(self) -> float:
        """Square root of the largest Σ|c_t|² over separated rounds, by a dynamic program."""
        n, best = self.size, np.zeros(self.size + self.separation)
        squares = (self.columns**2).sum(axis=0)
        for t in range(n - 1, -1, -1):
            best[t] = max(best[t + 1], squares[t] + best[t + self.separation])
        return math.sqrt(float(best[0]))

    def proposal(self, noise: float, epsilon: float, side: Side) -> Proposal:
        """The proposal for a side."""
        return _Tilted.of(self, noise, epsilon) if side == "remove" else _Shifted.of(self, noise, epsilon)

    def correlations(self, y: Matrix) -> Matrix:
        """<c_t, y> for every round t; y and the result have shape (n, N)."""
        found = np.zeros_like(y)
        n = self.size
        for j, band in enumerate(self.columns):
            found[: n - j] += band[: n - j, None] * y[j:]
        return found

    def mean_of(self, pattern: NDArray[np.bool_]) -> Matrix:
        """Σ_{t∈π} c_t; patterns and the result have shape (n, N)."""
        found, n = np.zeros(pattern.shape), self.size
        for j, band in enumerate(self.columns):
            found[j:] += band[: n - j, None] * pattern[: n - j]
        return found

    def patterns(self, rng: np.random.Generator, count: int, probability: float) -> NDArray[np.bool_]:
        """Patterns of the sampler with this q, shape (n, count)."""
        n, s, q = self.size, self.separation, probability
        # State 0: free; state j: the next round that is open is j. Stationary: 1 : q : … : q.
        blocked = np.zeros(count, dtype=np.int64)
        busy = rng.random(count) < (s - 1) * q / (1.0 + (s - 1) * q)
        if s > 1:
            blocked[busy] = rng.integers(1, s, size=int(busy.sum()))
        joined = np.zeros((n, count), dtype=bool)
        for t in range(n):
            joined[t] = (blocked <= t) & (rng.random(count) < q)
            blocked[joined[t]] = t + s
        return joined

    def log_ratio(self, exponents: Matrix, probability: float) -> Vector:
        """log Σ_π w_π Π_{t∈π} exp(e_t) by a recursion over the rounds backwards, e of shape (n, N)."""
        n, s, q = self.size, self.separation, probability
        # f_t is the sum over what a user who is free in round t can do from then on.
        later = np.zeros((s, exponents.shape[1]))
        for t in range(n - 1, -1, -1):
            joined = math.log(q) + exponents[t] + later[t % s]
            free = later[(t + 1) % s]
            later[t % s] = joined if q == 1.0 else np.logaddexp(math.log1p(-q) + free, joined)
        weights = np.full(s, q)
        weights[0] = 1.0
        peak = later.max(axis=0)
        total = (weights[:, None] * np.exp(later - peak)).sum(axis=0)
        return np.log(total) + peak - math.log1p((s - 1) * q)

    def losses(self, state: Matrix, noise: float) -> Vector:
        """L at draws with <c_t, y> as state, shape (N, n)."""
        half = 0.5 * (self.columns**2).sum(axis=0)[:, None] / noise**2
        return self.log_ratio(state.T / noise - half, self.probability)


@dataclass(frozen=True, eq=False)
class _Tilted:
    """0.8 of the pair's own mixture with another q and means (1 + κ)m, 0.2 of P itself.

    dR/dQ ≥ 0.2·e^L, so no contribution exceeds 5.
    """

    pair: MinSeparated
    noise: float
    probability: float
    stretch: float

    @classmethod
    def of(cls, pair: MinSeparated, noise: float, epsilon: float) -> _Tilted:
        """κ and q by the smallest second moment of a pilot."""
        best, found = math.inf, cls(pair, noise, pair.probability, 1.0)
        for stretch in (1.25, 1.5, 2.0, 2.75):
            for odds in (1.0, 1.5, 2.25, 3.5):
                raised = odds * pair.probability / (1.0 + (odds - 1.0) * pair.probability)
                candidate = cls(pair, noise, raised, stretch)
                draws = candidate.draw(np.random.default_rng(0), _PILOT)
                losses = pair.losses(draws.state, noise)
                values = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
                values = values * np.exp(losses - draws.log_density)
                if values.sum() > 0 and (score := float((values**2).mean() / values.mean() ** 2)) < best:
                    best, found = score, candidate
        return found

    @property
    def log_bound(self) -> float:
        """log 5."""
        return -math.log(_PLAIN_SHARE)

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws with state <c_t, y>, shape (N, n)."""
        pair = self.pair
        plain = int(rng.binomial(count, _PLAIN_SHARE))
        mean = np.concatenate([
            pair.mean_of(pair.patterns(rng, plain, pair.probability)),
            self.stretch * pair.mean_of(pair.patterns(rng, count - plain, self.probability)),
        ], axis=1)  # fmt: skip
        y = mean / self.noise + rng.standard_normal(mean.shape)
        state = pair.correlations(y)
        half = 0.5 * (pair.columns**2).sum(axis=0)[:, None] / self.noise**2
        scaled, k = state / self.noise, self.stretch
        stretched = pair.log_ratio(k * scaled - k * k * half, self.probability)
        own = pair.log_ratio(scaled - half, pair.probability)
        log_density = np.logaddexp(math.log(_PLAIN_SHARE) + own, math.log(1.0 - _PLAIN_SHARE) + stretched)
        order = rng.permutation(count)
        return Draws(state.T[order], log_density[order])


@dataclass(frozen=True, eq=False)
class _Shifted:
    """One Gaussian at −κ·m̄, m̄ the mean of P, for δ of Q against P.

    By Jensen L ≥ <y, m̄> − a/2 with a = E|m|² over P, so where L ≤ −ε the weight exp(κ<y, m̄> + κ²|m̄|²/2) is
    at most exp(−κ(ε − a/2) + κ²|m̄|²/2), which κ = (ε − a/2)₊/|m̄|² minimises.
    """

    pair: MinSeparated
    noise: float
    mean: Vector
    step: float
    log_bound: float

    @classmethod
    def of(cls, pair: MinSeparated, noise: float, epsilon: float) -> _Shifted:
        """The proposal in units of the noise."""
        s, q = pair.separation, pair.probability
        rate = q / (1.0 + (s - 1) * q)
        mean = pair.mean_of(np.ones((pair.size, 1), dtype=bool))[:, 0] * rate / noise
        square = float((pair.columns**2).sum()) * rate / noise**2
        length, gap = float(mean @ mean), max(epsilon - square / 2, 0.0)
        step = gap / length
        return cls(pair, noise, mean, step, -step * gap + 0.5 * step**2 * length)

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws with state <c_t, y>, shape (N, n)."""
        y = rng.standard_normal((self.mean.size, count)) - self.step * self.mean[:, None]
        log_density = -self.step * (self.mean @ y) - 0.5 * self.step**2 * (self.mean @ self.mean)
        return Draws(self.pair.correlations(y).T, log_density)
