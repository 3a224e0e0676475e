"""The noise that gives (ε, δ), by roots of Monte Carlo estimates on frozen draws.

`amplified_noise` is a central estimate; `certified_noise` starts from it and returns a noise that
passes an upper confidence limit, which is the one that runs use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.accounting.monte_carlo import (
    Estimate,
    MixturePair,
    Side,
    batches,
    contributions,
    estimate,
    upper_limit,
)

_PILOT = 512
_PILOTS = 40
_MIDDLE = 4096
_TRUST = 0.3
_CLOSE = 0.02
# A side whose noise by few draws is below this share of the other's is not the larger one.
_NEAR = 0.9
_ATTEMPTS = 6
# With no bound below e^20 on what a draw can carry, estimates were seen to miss half of the noise
# and more.
_LARGEST_LOG_BOUND = 20.0


@dataclass(frozen=True)
class Calibrated:
    """A calibrated quantity and how sure it is.

    Args:
        value: s (noise standard deviation per unit clip norm) or ε.
        standard_error: of value, by the delta method: the error of log δ over |d log δ / d value|.
        estimate: of δ at value.
    """

    value: float
    standard_error: float
    estimate: Estimate


def amplified_noise(
    pair: MixturePair,
    epsilon: float,
    delta: float,
    relative_error: float = 0.01,
    max_samples: int = 2**20,
    seed: int = 0,
    start: float | None = None,
) -> Calibrated:
    """The noise s at which the estimate of δ(s, ε) is the target; no guarantee.

    The draws stay the same multiples of s for every s that is tried, so the estimate is a smooth
    function of s.

    Args:
        pair: P and Q.
        epsilon: ε > 0.
        delta: δ in (0, 1).
        relative_error: standard error of δ relative to δ.
        max_samples: per side.
        seed: of the accountant's random numbers.
        start: first noise of the search; by default the noise without amplification, which is an
            upper bound.

    Raises:
        ValueError: ε or δ is out of range, or draws may miss most of δ: ε is large, and the user
            hardly ever joins.
    """
    noise, slope = root_of_both(pair, epsilon, delta, _MIDDLE, seed, start)
    if pair.proposal(noise, epsilon, "remove").log_bound > _LARGEST_LOG_BOUND:
        raise ValueError(
            f"ε (epsilon) must be smaller for this accountant and sampling; got {epsilon!r},"
            f" where its draws may miss most of delta={delta!r}. Use cyclic-poisson or"
            " balls-in-bins, or no sampling."
        )
    final = estimate(pair, noise, epsilon, relative_error, max_samples, seed + 1)
    value = noise * math.exp((math.log(delta) - math.log(final.delta)) / slope)
    return Calibrated(value, value * final.relative_error / abs(slope), final)


def certified_noise(
    pair: MixturePair,
    epsilon: float,
    delta: float,
    failure: float | None = None,
    samples: int = 2**18,
    seed: int = 0,
) -> tuple[float, float]:
    """Noise s such that, except with probability β over the accountant's draws, δ(s, ε) ≤ δ − β.

    A run that draws s this way and adds noise s is (ε, δ)-private, the accountant's randomness
    included. No normal approximation is involved.

    Args:
        pair: P and Q.
        epsilon: ε > 0.
        delta: δ, β included.
        failure: β; δ/100 by default.
        samples: per side and attempt; more of them bring s closer to the exact one.
        seed: of the accountant's random numbers. Anyone who chose the seed could choose a lucky
            one.

    Returns:
        s and the upper confidence limit of δ(s, ε) that it passed with.

    Raises:
        ValueError: β is not below δ.
        RuntimeError: six attempts, each with a larger s, did not pass; more samples are needed.
    """
    if failure is None:
        failure = 0.01 * delta
    if not 0 < failure < delta:
        raise ValueError(
            f"beta (failure probability) must be between 0 and delta={delta!r}; got {failure!r}."
        )
    target = delta - failure
    rough = amplified_noise(pair, epsilon, target, 0.02, 2**17, seed)
    slope = rough.estimate.relative_error * rough.value / rough.standard_error
    noise = rough.value
    ceiling = pair.largest_norm * gaussian_sigma(epsilon, target)
    for attempt in range(_ATTEMPTS):
        fresh = seed + 1000 * (attempt + 1)
        limit = upper_limit(pair, noise, epsilon, failure / _ATTEMPTS, samples, fresh)
        if limit <= target:
            return noise, limit
        # The limit exceeds the estimate by what the samples cannot resolve, which falls more
        # slowly.
        aim = 1.1 * 1.5**attempt
        noise *= math.exp((aim * math.log(limit / target) + 0.02) / slope)
        if noise >= ceiling:
            # No better than the noise without amplification, which needs no draws.
            return ceiling, target
    raise RuntimeError(
        f"delta (failure probability) {target!r} could not be reached with these samples; ask for"
        " more."
    )


def root_of_both(
    pair: MixturePair, epsilon: float, delta: float, draws: int, seed: int, start: float | None
) -> tuple[float, float]:
    """The larger root of both sides in s, and d log δ / d log s there."""
    if start is None:
        start = pair.largest_norm * gaussian_sigma(epsilon, delta)
    root, slope = _solve(pair, start, epsilon, delta, "remove", draws, seed)
    if pair.proposal(root, epsilon, "add").log_bound > math.log(delta):
        other, _ = _step(pair, root, epsilon, delta, "add", _PILOT, seed)
        if other > _NEAR * root:
            other, _ = _step(pair, root, epsilon, delta, "add", draws, seed)
        if other > root:
            return _solve(pair, root, epsilon, delta, "add", draws, seed)
    return root, slope


def _solve(
    pair: MixturePair, start: float, epsilon: float, delta: float, side: Side, draws: int, seed: int
) -> tuple[float, float]:
    """The root in s and d log δ / d log s there; the proposal follows s."""
    noise = start
    for _ in range(_PILOTS):
        moved, _ = _step(pair, noise, epsilon, delta, side, _PILOT, seed)
        close = abs(math.log(moved / noise)) < _CLOSE
        noise = moved
        if close:
            break
    return _step(pair, noise, epsilon, delta, side, draws, seed)


def _step(
    pair: MixturePair, noise: float, epsilon: float, delta: float, side: Side, count: int, seed: int
) -> tuple[float, float]:
    """A root within a factor e^±0.3 of s with the proposal made for s, and the slope there."""
    proposal = pair.proposal(noise, epsilon, side)
    rng = np.random.default_rng([seed, count])
    frozen = [proposal.draw(rng, size) for size in batches(pair, count)]

    def gap(log_noise: float) -> float:
        s = math.exp(log_noise)
        values = [contributions(pair, draws, s, epsilon, side) for draws in frozen]
        estimate = float(np.concatenate(values).mean())
        return math.log(max(estimate, 1e-300)) - math.log(delta)

    low = math.log(noise) - _TRUST
    high = math.log(noise) + _TRUST
    root, slope = _secant(gap, math.log(noise), low, high)
    return math.exp(root), slope


def _secant(
    gap: Callable[[float], float], start: float, low: float, high: float
) -> tuple[float, float]:
    """A root of a decreasing function near start, clipped to [low, high], and the slope."""
    x = start
    y = gap(start)
    step = min(max(0.02 * y, low - x), high - x)
    if step == 0.0:
        step = 0.01
    slope = -1.0
    for _ in range(6):
        new = min(max(x + step, low), high)
        value = gap(new)
        if new == x:
            break
        slope = min((value - y) / (new - x), -1e-3)
        x = new
        y = value
        if abs(y) < 1e-3 or (x == low and y < 0) or (x == high and y > 0):
            break
        step = -y / slope
    return x, slope
