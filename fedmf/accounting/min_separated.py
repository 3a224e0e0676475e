"""The dominating pair of b-min-sep sampling, and the proposals for its sides.

Proposals are in units of the noise. `min_separated_law` has the law of patterns beneath them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.min_separated_law import SeparatedLaw
from fedmf.accounting.monte_carlo import (
    Draws,
    NegativeEntriesError,
    Proposal,
    Side,
    log_largest_gain,
)
from fedmf.matrices.arrays import Matrix, Vector
from fedmf.matrices.factorization import Factorization

_SHARE_MATCHED = 0.45
_SHARE_STRETCHED = 0.3
_SHARE_SHIFTED = 0.25
_ORDERS = (2, 4, 6, 8, 10, 12)
_PILOT = 256
_STRETCHES = (1.0, 1.35, 1.8, 2.4, 3.2, 4.2)
_ODDS = (1.0, 2.0, 3.5, 6.0)
_BEYOND = 1.1
_BISECTIONS = 20
_FARTHEST = 1024.0


@dataclass(frozen=True, eq=False)
class AttractedPairs:
    """The law of pairs with weights w_π w_π' e^{c<m_π, m_π'>}, means in units of the noise.

    Args:
        law: of one pattern.
        values: log of the sum over the patterns of a pair from round t on, when one user is free
            and the other rests r rounds more, shape (n + s + 1, s).
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
        n = law.rounds
        s = law.separation
        q = law.probability
        attractions = strength * _attractions(law) / noise**2
        values = np.zeros((n + s + 1, s))
        log_q = math.log(q)
        log_rest = -math.inf
        if q < 1.0:
            log_rest = math.log1p(-q)
        waits = np.arange(1, s)
        for t in range(n - 1, -1, -1):
            joined = log_q + attractions[t, s - waits] + values[t + waits, s - waits]
            values[t, 1:] = np.logaddexp(joined, log_rest + values[t + 1, :-1])
            both = 2 * log_q + attractions[t, 0] + values[t + s, 0]
            one = math.log(2) + log_q + log_rest + values[t + 1, s - 1]
            values[t, 0] = np.logaddexp(np.logaddexp(both, one), 2 * log_rest + values[t + 1, 0])
        first, second = np.indices((s, s))
        weights = np.log(np.where(np.arange(s) > 0, q, 1.0)) - math.log1p((s - 1) * q)
        starts = (
            weights[:, None] + weights + values[np.minimum(first, second), np.abs(first - second)]
        )
        return cls(law, values, attractions, starts)

    @property
    def log_normalizer(self) -> float:
        """log Z."""
        return float(np.logaddexp.reduce(self.starts, axis=None))

    def draw(
        self, rng: np.random.Generator, count: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The two patterns of each of count pairs, each of shape (n, count)."""
        n = self.law.rounds
        s = self.law.separation
        q = self.law.probability
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
        """Probability that the free user joins if the other rests `wait` rounds; 0 for none."""
        s = self.law.separation
        waits = np.arange(1, s)
        logs = (
            self.attractions[t, s - waits] + self.values[t + waits, s - waits] - self.values[t, 1:]
        )
        table = np.concatenate([np.zeros(1), q * np.exp(logs)])
        return table[wait]

    def _together(self, t: int, q: float) -> tuple[float, float]:
        """Probabilities, when both are free, that both join and that one given user alone does."""
        s = self.law.separation
        here = self.values[t, 0]
        both = q * q * math.exp(self.attractions[t, 0] + self.values[t + s, 0] - here)
        return both, q * (1.0 - q) * math.exp(self.values[t + 1, s - 1] - here)


def _attractions(law: SeparatedLaw) -> Matrix:
    columns = law.columns
    n = law.rounds
    p = len(columns)
    attractions = np.zeros((n, law.separation + 1))
    for lag in range(min(p, n)):
        attractions[lag:, lag] = np.einsum(
            "jt,jt->t", columns[: p - lag, lag:], columns[lag:, : n - lag]
        )
    return attractions


def matchings(order: int) -> list[tuple[tuple[int, int], ...]]:
    """All pairs of q things, q even, as q − 1 perfect matchings: the schedule of a round robin."""
    last = order - 1
    rounds: list[tuple[tuple[int, int], ...]] = []
    for turn in range(last):
        others = [((turn + i) % last, (turn - i) % last) for i in range(1, order // 2)]
        rounds.append(((turn, last), *others))
    return rounds


@dataclass(frozen=True, eq=False)
class SeparatedRemoveProposal:
    """The mixture for δ of P against Q of three parts, with Q's density N:

    * normals around the sums of q patterns J, with the probability ω(J) of q/2 pairs that attract
      each other q − 1 times as much as two patterns of X^q do (`separated_pairs`), a perfect
      matching of the q patterns drawn out of q − 1 that contain all pairs. Against the reference
      N·κ(J|y), where κ draws patterns independently from the summands of e^L, it has a density of
      at least e^{qL}/Z^{q/2} for every J;
    * P with other odds of joining and means stretched to κm, both chosen by a pilot;
    * one normal around a multiple of the mean of P, so far out that E e^L is a little more than
      e^ε.

    Args:
        law: of the patterns.
        pairs: of two patterns with strength q − 1.
        order: q.
        noise: s.
        epsilon: ε.
        likelier: the second part's law of the patterns.
        stretch: its κ.
        shift: mean of the third part, shape (n,).
    """

    law: SeparatedLaw
    pairs: AttractedPairs
    order: int
    noise: float
    epsilon: float
    likelier: SeparatedLaw
    stretch: float
    shift: Vector

    @classmethod
    def of(cls, law: SeparatedLaw, noise: float, epsilon: float) -> SeparatedRemoveProposal:
        """q with the least bound; κ and the odds with the least second moment in a pilot."""
        shift = _shift(law, noise, epsilon)
        best: SeparatedRemoveProposal | None = None
        for order in _ORDERS:
            pairs = AttractedPairs.of(law, noise, order - 1.0)
            likelier = law.likelier(_ODDS[1])
            proposal = cls(law, pairs, order, noise, epsilon, likelier, _STRETCHES[2], shift)
            if best is not None and proposal.log_bound >= best.log_bound:
                break
            best = proposal
        assert best is not None
        return best._improved()

    def _improved(self) -> SeparatedRemoveProposal:
        """The best second part for the draws of a pilot, which serve all of them."""
        law = self.law
        best = math.inf
        best_proposal = self
        state, losses, others, log_density = self._drawn(np.random.default_rng(0), _PILOT)
        excess = -np.expm1(np.minimum(self.epsilon - losses, 0.0))
        wanted = losses + np.log(np.maximum(excess, 1e-300))
        weights = wanted - log_density
        for stretch in _STRETCHES:
            exponents = self._exponents(state, stretch)
            for odds in _ODDS:
                candidate = replace(self, likelier=law.likelier(odds), stretch=stretch)
                log_mixture = np.logaddexp(others, candidate.likelier.weighted(exponents).log_total)
                second = float(np.logaddexp.reduce(wanted - log_mixture + weights))
                if second < best:
                    best = second
                    best_proposal = candidate
        return best_proposal

    @property
    def log_bound(self) -> float:
        """log M, since (1 − e^{ε−L})·e^{−(q−1)L} is at most (q−1)^{q−1}q^{−q}·e^{−(q−1)ε}."""
        q = self.order
        largest = log_largest_gain(q - 1.0) - (q - 1) * self.epsilon
        return largest + q / 2 * self.pairs.log_normalizer - math.log(_SHARE_MATCHED)

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws with state <c_t, y>, shape (n, N)."""
        state, _, _, log_density = self._drawn(rng, count)
        return Draws(state, log_density)

    def _drawn(self, rng: np.random.Generator, count: int) -> tuple[Matrix, Vector, Vector, Vector]:
        """Draw: <c_t, y>, L, and log densities of all parts but the second, and of the mixture.

        The density of the other parts is over the share of the second.
        """
        law = self.law
        q = self.order
        noise = self.noise
        kinds = rng.choice(3, size=count, p=[_SHARE_MATCHED, _SHARE_STRETCHED, _SHARE_SHIFTED])
        first = np.flatnonzero(kinds == 0)
        second = np.flatnonzero(kinds == 1)
        third = np.flatnonzero(kinds == 2)
        together = self._matched(rng, first.size)
        y = rng.standard_normal((law.rounds, count))
        y[:, first] += sum(together) / noise
        y[:, second] += self.stretch / noise * law.mean_of(self.likelier.patterns(rng, second.size))
        y[:, third] += self.shift[:, None]
        shifted = self.shift @ y - 0.5 * (self.shift @ self.shift)
        state = law.correlations(y)
        posterior = law.weighted(self._exponents(state, 1.0))
        losses = posterior.log_total
        excess = np.zeros(count)
        if q > 2:
            free = np.flatnonzero(kinds > 0)
            excess[first] = self._log_excess(together)
            drawn = [law.mean_of(posterior.draw(rng, free)) for _ in range(q)]
            excess[free] = self._log_excess(drawn)
        matched = q * losses + excess - q / 2 * self.pairs.log_normalizer
        others = np.logaddexp(
            math.log(_SHARE_MATCHED) + matched, math.log(_SHARE_SHIFTED) + shifted
        )
        others -= math.log(_SHARE_STRETCHED)
        stretched = self.likelier.weighted(self._exponents(state, self.stretch)).log_total
        return state, losses, others, np.logaddexp(others, stretched) + math.log(_SHARE_STRETCHED)

    def _matched(self, rng: np.random.Generator, count: int) -> list[Matrix]:
        """Σ_{t∈π} c_t for the q patterns of each J, shape (n, count), paired by the first matching.

        The other matchings are this one turned, and so is J with them; nothing else depends on the
        turn.
        """
        q = self.order
        half = self.order // 2
        sums: list[Matrix] = [np.empty(0)] * q
        patterns, partners = self.pairs.draw(rng, half * count)
        own = self.law.mean_of(patterns)
        others = self.law.mean_of(partners)
        for place, (user, partner) in enumerate(matchings(q)[0]):
            sums[user] = own[:, place * count : (place + 1) * count]
            sums[partner] = others[:, place * count : (place + 1) * count]
        return sums

    def _log_excess(self, sums: list[Matrix]) -> Vector:
        """log of ω(J)·Z^{q/2} over Πw·exp Σ_{a<c} <m_a, m_c>.

        It is at least 0, since an arithmetic mean is at least the geometric one.
        """
        q = self.order
        products: dict[tuple[int, int], Vector] = {}
        for a, c in combinations(range(q), 2):
            products[a, c] = np.einsum("tk,tk->k", sums[a], sums[c]) / self.noise**2
        logs: list[Vector] = []
        for matching in matchings(q):
            matched = np.zeros_like(products[0, 1])
            for pair in matching:
                matched += products[min(pair), max(pair)]
            logs.append((q - 1.0) * matched)
        return np.logaddexp.reduce(logs, axis=0) - math.log(q - 1) - sum(products.values())

    def _exponents(self, state: Matrix, stretch: float) -> Matrix:
        """log of N(κc_t, I) against N(0, I) for each round; state <c_t, y>."""
        half = 0.5 * self.law.squares[:, None] / self.noise**2
        return stretch / self.noise * state - stretch**2 * half


def _shift(law: SeparatedLaw, noise: float, epsilon: float) -> Vector:
    """τ·E m/noise with Σ_π w_π exp<τ·E m, m_π>/noise² a little more than e^ε."""
    mean = law.mean_of(np.ones((law.rounds, 1), dtype=bool)) * law.rate / noise
    attractions = law.correlations(mean) / noise
    low = 0.0
    high = _FARTHEST
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if float(law.weighted(middle * attractions).log_total[0]) >= _BEYOND * epsilon:
            high = middle
        else:
            low = middle
    return high * mean[:, 0]


@dataclass(frozen=True, eq=False)
class SeparatedAddProposal:
    """One Gaussian at −κ·m̄, m̄ the mean of P, for δ of Q against P.

    By Jensen L ≥ <y, m̄> − a/2 with a = E|m|² over P, so where L = −ε − u, u ≥ 0, the weight
    exp(κ<y, m̄> + κ²|m̄|²/2) is at most exp(−κ(ε + u − a/2) + κ²|m̄|²/2), for which κ = (ε −
    a/2)₊/|m̄|² is good, and a contribution at most 1 − e^{−u} times that.

    Args:
        law: of the patterns.
        mean: m̄, shape (n,).
        step: κ.
        log_bound: log of the largest such bound.
    """

    law: SeparatedLaw
    mean: Vector
    step: float
    log_bound: float

    @classmethod
    def of(cls, law: SeparatedLaw, noise: float, epsilon: float) -> SeparatedAddProposal:
        """The proposal in units of the noise."""
        everyone = np.ones((law.rounds, 1), dtype=bool)
        mean = law.mean_of(everyone)[:, 0] * law.rate / noise
        square = float(law.squares.sum()) * law.rate / noise**2
        length = float(mean @ mean)
        gap = max(epsilon - square / 2, 0.0)
        step = gap / length
        log_weight = -step * gap + 0.5 * step**2 * length
        return cls(law, mean, step, log_weight + log_largest_gain(step))

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws with state <c_t, y>, shape (n, N)."""
        y = rng.standard_normal((self.mean.size, count)) - self.step * self.mean[:, None]
        log_density = -self.step * (self.mean @ y) - 0.5 * self.step**2 * (self.mean @ self.mean)
        return Draws(self.law.correlations(y), log_density)


@dataclass(frozen=True, eq=False)
class MinSeparatedPair:
    """P = Σ_π w_π N(Σ_{t∈π} c_t, s²I) over the patterns π of the sampler, against Q = N(0, s²I).

    Args:
        law: of the patterns.

    References:
        Dong, Ganesh (2026), "Privacy amplification for BandMF via b-min-sep subsampling",
        arXiv:2602.09338.
    """

    law: SeparatedLaw

    @classmethod
    def of(
        cls, factorization: Factorization, separation: int, probability: float
    ) -> MinSeparatedPair:
        """The pair of a sampler with any separation s ≥ p and rate q.

        Raises:
            ValueError: C has a negative entry, or p > s.
        """
        n = factorization.rounds
        p = factorization.bands
        if p > separation:
            raise ValueError(
                f"p (bands) must be at most b={separation} (the separation) for b-min-sep sampling;"
                f" got {p}. Its accountant covers banded strategies only."
            )
        columns = np.zeros((p, n))
        for t in range(0, n, 512):
            block = factorization.columns(np.arange(t, min(t + 512, n)))
            for offset in range(block.shape[1]):
                rows = block[t + offset : t + offset + p, offset]
                columns[: rows.size, t + offset] = rows
        if columns.min() < 0:
            raise NegativeEntriesError(
                "C (strategy) must have no negative entries for b-min-sep; got"
                f" {columns.min():.6g}."
            )
        return cls(SeparatedLaw(columns, separation, probability))

    @property
    def size(self) -> int:
        """n."""
        return self.law.rounds

    @property
    def largest_norm(self) -> float:
        """Square root of the largest Σ|c_t|² over separated rounds, by a dynamic program."""
        n = self.law.rounds
        s = self.law.separation
        squares = self.law.squares
        best = np.zeros(n + s)
        for t in range(n - 1, -1, -1):
            best[t] = max(best[t + 1], squares[t] + best[t + s])
        return math.sqrt(float(best[0]))

    def proposal(self, noise: float, epsilon: float, side: Side) -> Proposal:
        """The proposal for a side."""
        if side == "remove":
            return SeparatedRemoveProposal.of(self.law, noise, epsilon)
        return SeparatedAddProposal.of(self.law, noise, epsilon)

    def draw_without(self, rng: np.random.Generator, count: int) -> Matrix:
        """Products <c_t, y> of draws from Q, shape (n, N)."""
        return self.law.correlations(rng.standard_normal((self.law.rounds, count)))

    def losses(self, state: Matrix, noise: float) -> Vector:
        """L at draws with <c_t, y> as state, shape (n, N)."""
        half = 0.5 * self.law.squares[:, None] / noise**2
        return self.law.weighted(state / noise - half).log_total
