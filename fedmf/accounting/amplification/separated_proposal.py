"""What to draw from, for the two sides of the b-min-sep pair, in units of the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.amplification.monte_carlo import Draws, log_largest_gain
from fedmf.accounting.amplification.separated_law import SeparatedLaw, WeightedPatterns
from fedmf.accounting.amplification.separated_pairs import AttractedPairs
from fedmf.typing import Matrix, Vector

__all__ = ["SeparatedAddProposal", "SeparatedRemoveProposal"]

_SHARE_PAIRS, _SHARE_GROWN = 0.15, 0.45
_LONGEST = 64
_PILOT = 256
_STRETCHES = (1.0, 1.35, 1.8, 2.4, 3.2, 4.2)
_ODDS = (1.0, 2.0, 3.5, 6.0)
# Grown draws cost several times as much as the others.
_GOOD_ENOUGH = 50.0
_FEWEST = 15.0


@dataclass(frozen=True, eq=False)
class SeparatedRemoveProposal:
    """The mixture for δ of P against Q of three parts, with Q's density N:

    * N·e^{2L}/Z₂, normals around the sums of two patterns (`separated_pairs`); it bounds the weights;
    * P with other odds of joining and means stretched to κm, both chosen by a pilot;
    * where that is not good enough, normals around sums of as many patterns as it takes, drawn one after the
      other, each attracted by those before. As for Balls-in-Bins it has a density e^{|J|·L}/Ω(J) in y and the
      sequence J of patterns, against the reference N·κ(J|y) where κ draws patterns independently from the
      summands of e^L.

    Args:
        law: of the patterns.
        pairs: of two patterns.
        noise: s.
        epsilon: ε.
        likelier: the second part's law of the patterns.
        stretch: its κ.
        grown: share of the third part.
    """

    law: SeparatedLaw
    pairs: AttractedPairs
    noise: float
    epsilon: float
    likelier: SeparatedLaw
    stretch: float
    grown: float

    @classmethod
    def of(cls, law: SeparatedLaw, noise: float, epsilon: float) -> SeparatedRemoveProposal:
        """κ and the odds with the smallest second moment in a pilot, whose draws serve all of them."""
        pairs = AttractedPairs.of(law, noise)
        first = cls(law, pairs, noise, epsilon, law.likelier(_ODDS[1]), _STRETCHES[2], 0.0)
        proposal, effective, score = first._improved()
        if effective < _FEWEST:
            proposal, _, score = replace(first, stretch=_STRETCHES[-1], grown=_SHARE_GROWN)._improved()
        # Where even the largest κ is too small, the score is not to be believed.
        enough = score < _GOOD_ENOUGH and proposal.stretch < _STRETCHES[-1]
        return replace(proposal, grown=0.0 if enough else _SHARE_GROWN)

    def _improved(self) -> tuple[SeparatedRemoveProposal, float, float]:
        """The best without a third part, how many of its draws count, and E(contribution²)/δ² of the best."""
        law, best, best_proposal = self.law, math.inf, self
        draws = self.draw(np.random.default_rng(0), _PILOT)
        losses = law.weighted(self._exponents(draws.state, 1.0)).log_total
        excess = -np.expm1(np.minimum(self.epsilon - losses, 0.0))
        wanted = losses + np.log(np.maximum(excess, 1e-300))
        weights = wanted - draws.log_density
        mean = float(np.logaddexp.reduce(weights)) - math.log(_PILOT)
        effective = math.exp(2 * (mean + math.log(_PILOT)) - float(np.logaddexp.reduce(2 * weights)))
        for stretch in _STRETCHES:
            exponents = self._exponents(draws.state, stretch)
            for odds in _ODDS:
                candidate = replace(self, likelier=law.likelier(odds), stretch=stretch, grown=0.0)
                log_density = candidate._cheap(losses, candidate.likelier.weighted(exponents).log_total)
                second = float(np.logaddexp.reduce(wanted - log_density + weights)) - math.log(_PILOT)
                if second < best:
                    best, best_proposal = second, candidate
        hits = min(effective, float((excess > 0).sum()))
        return best_proposal, hits, math.exp(min(best - 2 * mean, 700.0))

    @property
    def log_bound(self) -> float:
        """As (1 − e^{ε−L})·e^{−L} ≤ e^{−ε}/4, a contribution is at most Z₂e^{−ε}/(4·share of the pairs)."""
        return self.pairs.log_normalizer - self.epsilon - math.log(4.0 * _SHARE_PAIRS)

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws with state <c_t, y>, shape (n, N)."""
        law = self.law
        shares = [_SHARE_PAIRS, 1.0 - _SHARE_PAIRS - self.grown, self.grown]
        kinds = rng.choice(3, size=count, p=shares)
        paired, stretched, grown = (np.flatnonzero(kinds == kind) for kind in range(3))
        shift = np.empty((law.rounds, count))
        first, second = self.pairs.draw(rng, paired.size)
        shift[:, paired] = law.mean_of(first) + law.mean_of(second)
        shift[:, stretched] = self.stretch * law.mean_of(self.likelier.patterns(rng, stretched.size))
        length, log_omega = np.empty(count), np.empty(count)
        shift[:, grown], length[grown], log_omega[grown] = self._grow(rng, None, grown)
        state = law.correlations(shift / self.noise + rng.standard_normal(shift.shape))
        posterior = law.weighted(self._exponents(state, 1.0))
        losses = posterior.log_total
        log_density = self._cheap(
            losses, self.likelier.weighted(self._exponents(state, self.stretch)).log_total
        )
        if self.grown > 0:
            others = np.flatnonzero(kinds != 2)
            _, length[others], log_omega[others] = self._grow(rng, posterior, others)
            log_density = np.logaddexp(log_density, math.log(self.grown) + length * losses - log_omega)
        return Draws(state, log_density)

    def _exponents(self, state: Matrix, stretch: float) -> Matrix:
        """log of N(κc_t, I) against N(0, I) for each round; state <c_t, y>."""
        half = 0.5 * self.law.squares[:, None] / self.noise**2
        return stretch / self.noise * state - stretch**2 * half

    def _cheap(self, losses: Vector, stretched: Vector) -> Vector:
        """log of the first two parts against N."""
        return np.logaddexp(
            math.log(_SHARE_PAIRS) + 2 * losses - self.pairs.log_normalizer,
            math.log(1.0 - _SHARE_PAIRS - self.grown) + stretched,
        )

    def _grow(
        self, rng: np.random.Generator, posterior: WeightedPatterns | None, sets: NDArray[np.intp]
    ) -> tuple[Matrix, Vector, Vector]:
        """A sequence J for each of the sets: (Σ_J m, |J|, log Ω(J)).

        Ω(J) is the product of μ(K) = Σ_π w_π exp<Σ_K m, m_π> over J's own prefixes K. A sequence ends once
        log μ(J) ≥ ε, or at 64. Without a posterior each next pattern has probability proportional to
        w_π exp<Σ_K m, m_π>; with one it is drawn from the posterior's sets, whatever K is.
        """
        law = self.law
        new = law.patterns(rng, sets.size) if posterior is None else posterior.draw(rng, sets)
        total, length, log_omega = law.mean_of(new), np.ones(sets.size), np.zeros(sets.size)
        active = np.arange(sets.size)
        while active.size and length[active[0]] < _LONGEST:
            attracted = law.weighted(law.correlations(total[:, active]) / self.noise**2)
            going = attracted.log_total < self.epsilon
            active, positions = active[going], np.flatnonzero(going)
            log_omega[active] += attracted.log_total[positions]
            new = attracted.draw(rng, positions) if posterior is None else posterior.draw(rng, sets[active])
            total[:, active] += law.mean_of(new)
            length[active] += 1
        return total, length, log_omega


@dataclass(frozen=True, eq=False)
class SeparatedAddProposal:
    """One Gaussian at −κ·m̄, m̄ the mean of P, for δ of Q against P.

    By Jensen L ≥ <y, m̄> − a/2 with a = E|m|² over P, so where L = −ε − u, u ≥ 0, the weight
    exp(κ<y, m̄> + κ²|m̄|²/2) is at most exp(−κ(ε + u − a/2) + κ²|m̄|²/2), for which κ = (ε − a/2)₊/|m̄|² is good,
    and a contribution at most 1 − e^{−u} times that.

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
        length, gap = float(mean @ mean), max(epsilon - square / 2, 0.0)
        step = gap / length
        log_weight = -step * gap + 0.5 * step**2 * length
        return cls(law, mean, step, log_weight + log_largest_gain(step))

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws with state <c_t, y>, shape (n, N)."""
        y = rng.standard_normal((self.mean.size, count)) - self.step * self.mean[:, None]
        log_density = -self.step * (self.mean @ y) - 0.5 * self.step**2 * (self.mean @ self.mean)
        return Draws(self.law.correlations(y), log_density)
