"""δ(ε) of a pair (P, Q) of a Gaussian mixture against one Gaussian, by importance sampling.

Certified limits: of the mean of bounded weights by betting, and for a convex loss by Ehrhard's
inequality.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Literal, Protocol

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri

from fedmf.accounting.rounding import least_accepted
from fedmf.matrices.arrays import Vector

#: "remove": δ of P against Q, the user's data taken away; "add": δ of Q against P.
Side = Literal["remove", "add"]
SIDES: tuple[Side, Side] = ("remove", "add")
# The other side is not sampled where its analytic bound is below this share of the first.
_NEGLIGIBLE: Final = 1e-4
_CHUNK_ENTRIES: Final = 2**20
# Where a draw is small the error is checked more often than the cache requires.
_CHUNK_DRAWS: Final = 2**13
# Weighted draws come first for "add" where what they cannot resolve is below this share of the
# other side.
_RESOLVED: Final = 0.25
# The share of the draws that choose a bet, or the two quantiles of a convex loss, and candidates
# for those.
_PILOT: Final = 0.1
_LOW = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_HIGH = (0.3, 0.5, 0.7, 0.9)
_ROUNDING: Final = 1e-9


class NegativeEntriesError(ValueError):
    """A strategy matrix with negative entries, for which no dominating pair is known."""


@dataclass(frozen=True)
class Draws:
    """Draws y from a proposal R, in coordinates in which the noise has variance 1.

    Args:
        state: whatever the pair needs to compute losses at y.
        log_density: log (dR/dN(0, I)) at each draw, shape (N,).
    """

    state: Any
    log_density: Vector


class Proposal(Protocol):
    """A distribution R to draw from instead of P or Q."""

    @property
    def log_bound(self) -> float:
        """log M: at the noise and ε that R was made for no contribution exceeds M."""
        ...

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Independent draws from R."""
        ...


class MixturePair(Protocol):
    """P = Σ_i ω_i N(m_i, s²I) against Q = N(0, s²I), given by its privacy loss L = log dP/dQ."""

    @property
    def size(self) -> int:
        """Numbers that one draw occupies while it is processed."""
        ...

    @property
    def largest_norm(self) -> float:
        """max_i |m_i|: δ is at most the δ of a Gaussian release of this sensitivity."""
        ...

    def proposal(self, noise: float, epsilon: float, side: Side) -> Proposal:
        """A proposal for the noise s > 0 and ε ≥ 0."""
        ...

    def draw_without(self, rng: np.random.Generator, count: int) -> Any:
        """The state of draws from Q: outputs without the user."""
        ...

    def losses(self, state: Any, noise: float) -> Vector:
        """L at each draw when the noise is s; the draws stay the same multiples of s."""
        ...


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo estimate of δ.

    Args:
        delta: the estimate; unbiased for one side.
        standard_error: its standard deviation, estimated.
        samples: draws used for the side that is reported.
        side: the side with the larger δ.
    """

    delta: float
    standard_error: float
    samples: int
    side: Side

    @property
    def relative_error(self) -> float:
        """Standard error over estimate."""
        if not self.delta > 0:
            return math.inf
        return self.standard_error / self.delta


def contributions(
    pair: MixturePair, draws: Draws, noise: float, epsilon: float, side: Side
) -> Vector:
    """Per draw its unbiased estimate of δ.

    Remove: (1 − e^{ε−L})₊·dP/dR with dP/dR = e^L·dQ/dR. Add: (1 − e^{ε+L})₊·dQ/dR.
    """
    losses = pair.losses(draws.state, noise)
    if side == "remove":
        excess = -np.expm1(np.minimum(epsilon - losses, 0.0))
        log_weight = losses - draws.log_density
    else:
        excess = -np.expm1(np.minimum(epsilon + losses, 0.0))
        log_weight = 0.0 - draws.log_density
    values = np.zeros_like(losses)
    inside = excess > 0
    values[inside] = excess[inside] * np.exp(np.broadcast_to(log_weight, losses.shape)[inside])
    return values


def log_largest_gain(step: float) -> float:
    """log of the maximum over u ≥ 0 of (1 − e^{−u})·e^{−τu} = τ^τ/(1 + τ)^{1+τ}."""
    if not step > 0:
        return 0.0
    return step * math.log(step) - (1.0 + step) * math.log1p(step)


def batches(pair: MixturePair, samples: int) -> Iterator[int]:
    """Sizes of chunks that fit the cache."""
    size = min(max(16, _CHUNK_ENTRIES // max(1, pair.size)), _CHUNK_DRAWS)
    while samples > 0:
        yield min(size, samples)
        samples -= size


def estimate(
    pair: MixturePair,
    noise: float,
    epsilon: float,
    relative_error: float = 0.01,
    max_samples: int = 2**20,
    seed: int = 0,
) -> Estimate:
    """δ at noise s and ε: the larger of both sides.

    Draws until the estimated standard error is small enough, or max_samples are used. The smaller
    side's error is measured against the larger side.

    Args:
        pair: P and Q.
        noise: s > 0, standard deviation per unit clip norm.
        epsilon: ε ≥ 0.
        relative_error: of δ, one standard deviation.
        max_samples: per side.
        seed: of the accountant's random numbers; they protect nothing and may be public.
    """

    def estimated(proposal: Proposal, side: Side, least: float) -> Estimate:
        rng = np.random.default_rng([seed, SIDES.index(side)])
        return _one_side(
            pair, proposal, noise, epsilon, side, relative_error, least, max_samples, rng
        )

    removed = estimated(pair.proposal(noise, epsilon, "remove"), "remove", 0.0)
    proposal = pair.proposal(noise, epsilon, "add")
    if math.exp(min(proposal.log_bound, 0.0)) < _NEGLIGIBLE * removed.delta:
        return removed
    added = estimated(proposal, "add", removed.delta)
    if added.delta > removed.delta:
        return added
    return removed


def _one_side(
    pair: MixturePair,
    proposal: Proposal,
    noise: float,
    epsilon: float,
    side: Side,
    relative_error: float,
    least: float,
    max_samples: int,
    rng: np.random.Generator,
) -> Estimate:
    """Draw until the standard error is below relative_error·max(estimate, least)."""
    count = 0
    total = 0.0
    squares = 0.0
    for size in batches(pair, max_samples):
        values = contributions(pair, proposal.draw(rng, size), noise, epsilon, side)
        count += size
        total += float(values.sum())
        squares += float((values**2).sum())
        # Few draws would judge their own error too kindly.
        if count >= 4096 and squares < (relative_error * max(total, least * count)) ** 2:
            break
    mean = total / count
    variance = max(squares / count - mean**2, 0.0)
    return Estimate(mean, math.sqrt(variance / count), count, side)


def upper_limit(
    pair: MixturePair, noise: float, epsilon: float, failure: float, samples: int, seed: int
) -> float:
    """A number that is below δ(s, ε) with probability at most β; no normal approximation.

    Each side gets half of β. A side with a small enough analytic bound is not sampled. For "add"
    there are two limits, with a quarter of β each: from weighted draws, and from a convex loss
    (`convex_add_limit`); the one that can be of more use comes first, and the other where that
    exceeds the first side's limit. The seed must not have been used to choose s or ε.
    """
    removed = _limit_of_side(pair, noise, epsilon, "remove", failure / 2, samples, seed)
    proposal = pair.proposal(noise, epsilon, "add")
    if proposal.log_bound < math.log(max(removed, 1e-300)):
        return min(removed, 1.0)

    def weighted() -> float:
        return _limit_of_side(pair, noise, epsilon, "add", failure / 4, samples, seed)

    def convex() -> float:
        rng = np.random.default_rng([seed, 2])
        sizes = batches(pair, samples)
        losses = [pair.losses(pair.draw_without(rng, size), noise) for size in sizes]
        return convex_add_limit(np.concatenate(losses), epsilon, failure / 4)

    limits = [convex, weighted]
    unresolved = math.exp(min(proposal.log_bound, 0.0)) * -math.log(failure) / samples
    if unresolved < _RESOLVED * removed:
        limits = [weighted, convex]
    added = 1.0
    for limit in limits:
        added = min(added, limit())
        if added <= removed:
            break
    return min(max(removed, added), 1.0)


def _limit_of_side(
    pair: MixturePair,
    noise: float,
    epsilon: float,
    side: Side,
    failure: float,
    samples: int,
    seed: int,
) -> float:
    """The limit of the mean of weighted draws, which lie in [0, M]."""
    proposal = pair.proposal(noise, epsilon, side)
    rng = np.random.default_rng([seed, SIDES.index(side)])
    values: list[Vector] = []
    for size in batches(pair, samples):
        draws = proposal.draw(rng, size)
        values.append(contributions(pair, draws, noise, epsilon, side))
    # The bound holds in exact arithmetic; exponentials of sums are rounded.
    bound = math.exp(proposal.log_bound) * (1.0 + 1e-9)
    return mean_upper_limit(np.concatenate(values), bound, failure)


def mean_upper_limit(values: Vector, bound: float, failure: float) -> float:
    """A number that is below the mean with probability at most `failure`.

    With any λ in [0, 1/bound] fixed before the values are seen, Π_i (1 + λ(m − x_i)) has
    expectation at most 1 if the mean is m or more, and increases with m. So the m at which it
    reaches 1/failure is a limit, by Markov's inequality. λ is chosen from the first tenth of the
    values, the product is over the others.

    Args:
        values: independent draws of one distribution on [0, bound], shape (N,), N ≥ 20.
        bound: M > 0.
        failure: β in (0, 1).

    Returns:
        The limit, at most `bound`.

    Raises:
        ValueError: fewer than 20 values, one outside [0, bound], or β outside (0, 1).

    Guarantees:
        Valid for every N and every distribution on [0, bound]. It exceeds the sample mean by about
        M·log(1/β)/N + √(2·variance·log(1/β)/N).

    References:
        Waudby-Smith, Ramdas (2024), "Estimating means of bounded random variables by betting",
        section 4.

    >>> values = np.random.default_rng(0).random(1000)
    >>> 0.5 < mean_upper_limit(values, 1.0, 1e-6) < 0.58
    True
    """
    if values.size < 20:
        raise ValueError(f"values (draws) must be at least 20; got {values.size}.")
    if not 0 < failure < 1:
        raise ValueError(
            f"beta (failure probability) must lie strictly between 0 and 1; got {failure!r}."
        )
    if not (values.min() >= 0 and values.max() <= bound):
        raise ValueError(
            f"values (draws) must lie in [0, {bound!r}]; got {values.min()!r} to {values.max()!r}."
        )
    pilot = max(10, int(_PILOT * values.size))
    scaled = values / bound
    bet = _bet(scaled[:pilot], values.size - pilot, failure)
    rest = scaled[pilot:]
    target = -math.log(failure)

    def log_wealth(mean: float) -> float:
        return float(np.log1p(bet * (mean - rest)).sum())

    if log_wealth(1.0) < target:
        return bound
    return least_accepted(lambda mean: log_wealth(mean) >= target) * bound


def _bet(pilot: Vector, count: int, failure: float) -> float:
    """λ < 1 that is best for normal draws with the pilot's moments, a little pessimistic."""
    spread = float(pilot.var()) + float(pilot.mean()) / pilot.size + 1.0 / pilot.size**2
    return min(math.sqrt(2.0 * -math.log(failure) / (count * spread)), 0.98)


def convex_add_limit(losses: Vector, epsilon: float, failure: float) -> float:
    """A number that is below E(1 − e^{ε+L})₊ with probability at most `failure`, for a convex L.

    For a convex function L of standard normals, H(x) = Φ⁻¹(P(L ≤ x)) is concave (Ehrhard's
    inequality). So the line through (x₁, h₁) and (x₂, h₂) with h₁ ≥ H(x₁), h₂ ≤ H(x₂) lies above H
    on x ≤ x₁, and E(1 − e^{ε+L})₊ = ∫_{x ≤ −ε} e^{ε+x} P(L ≤ x) dx is at most its value for a
    normal L with a distribution function that is this line's. x₁ and x₂ are quantiles of the first
    tenth of the draws, h₁ and h₂ come from limits of Clopper and Pearson for the others, with half
    of the failure probability each.

    Args:
        losses: L at independent standard normals, shape (N,), N ≥ 200.
        epsilon: ε ≥ 0.
        failure: β in (0, 1).

    Raises:
        ValueError: fewer than 200 draws, or β outside (0, 1).

    References:
        Ehrhard (1983), "Symétrisation dans l'espace de Gauss". Borell (2003), "The Ehrhard
        inequality".

    >>> losses = 0.1 * np.random.default_rng(0).standard_normal(20_000) - 0.005
    >>> 4.44e-5 < convex_add_limit(losses, 0.3, 1e-6) < 1e-4  # it is 4.435e-5
    True
    """
    if losses.size < 200:
        raise ValueError(f"losses (draws) must be at least 200; got {losses.size}.")
    if not 0 < failure < 1:
        raise ValueError(
            f"beta (failure probability) must lie strictly between 0 and 1; got {failure!r}."
        )
    pilot, rest = np.split(losses, [max(100, int(_PILOT * losses.size))])
    points = (0.0, 0.0)
    least = math.inf
    for low, high in product(_LOW, _HIGH):
        x_1 = max(float(np.quantile(pilot, low)), -epsilon)
        x_2 = float(np.quantile(pilot, high))
        # The limit if the others were distributed as the pilot is; it only chooses the points.
        counts = float((pilot <= x_1).mean()) * rest.size, float((pilot <= x_2).mean()) * rest.size
        limit = _by_line((x_1, x_2), counts, rest.size, epsilon, failure)
        if limit < least:
            least = limit
            points = (x_1, x_2)
    counts = float((rest <= points[0]).sum()), float((rest <= points[1]).sum())
    return _by_line(points, counts, rest.size, epsilon, failure)


def _by_line(
    points: tuple[float, float],
    counts: tuple[float, float],
    size: int,
    epsilon: float,
    failure: float,
) -> float:
    """The bound from how many of the draws were at most x₁ and at most x₂."""
    low, high = points
    few, many = counts
    if not (low < high and few < size and many > 0):
        return 1.0
    above = float(ndtri(betaincinv(few + 1.0, size - few, 1.0 - failure / 2)))
    below = float(ndtri(betaincinv(many, size - many + 1.0, failure / 2)))
    slope = (below - above) / (high - low)
    if slope <= 0.0:
        return 1.0
    return _normal_add(low - above / slope, 1.0 / slope, epsilon)


def _normal_add(mean: float, spread: float, epsilon: float) -> float:
    """E(1 − e^{ε+L})₊ for a normal L, rounded up."""
    z = -(epsilon + mean) / spread
    tilted = math.exp(min(epsilon + mean + spread**2 / 2, 700.0)) * float(ndtr(z - spread))
    # The difference of nearly equal numbers, with an error relative to them.
    return min(max(float(ndtr(z)) - tilted, 0.0) + _ROUNDING * float(ndtr(z)), 1.0)
