"""The noise of Balls-in-Bins that a theorem asks for: the least of several deterministic bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from scipy.special import ndtr

from fedmf.accounting.deterministic.independent import EqualBins
from fedmf.accounting.deterministic.overlaps import BinOverlaps
from fedmf.accounting.gaussian import certified_sigma

# Relative steps of the search for the noise, and how far below the best one a further bound must come.
_STEP, _WORTH = 1e-3, 4e-3

Side = Callable[[float], float]


@dataclass(frozen=True)
class DeterministicNoise:
    """A noise level with a proof, and which theorem gave it.

    Args:
        value: s, standard deviation per unit clip norm.
        delta: an upper bound on δ(s, ε), both sides; at most the δ asked for.
        theorem: "equal bins" or "no amplification" (see docs/theory/amplification.md).
    """

    value: float
    delta: float
    theorem: str


def deterministic_delta(overlaps: BinOverlaps, noise: float, epsilon: float, delta: float) -> float:
    """An upper bound on δ(s, ε) of Balls-in-Bins under zero-out adjacency, without sampling.

    Args:
        overlaps: of the mechanism.
        noise: s > 0, standard deviation per unit clip norm.
        epsilon: ε > 0.
        delta: what is hoped for; once a bound of a side is at most this, no better one is looked for.
    """
    sides = (_removes(overlaps, epsilon, delta), _adds(overlaps, epsilon))
    return max(_first_below(delta, bounds, noise) for bounds in sides)


def deterministic_noise(
    overlaps: BinOverlaps, epsilon: float, delta: float, most: float = math.inf
) -> DeterministicNoise | None:
    """The least noise for which a theorem gives (ε, δ) under zero-out adjacency; no random numbers.

    Args:
        overlaps: of the mechanism.
        epsilon: ε > 0.
        delta: δ in (0, 1).
        most: a noise above which the answer is of no use.

    Returns:
        The noise, or None if no theorem gives one of at most `most`.

    Guarantees:
        Balls-in-Bins with this noise is (ε, δ)-private for an observer of all releases, adaptive updates of
        any dimension and strategies of any signs included.
    """
    plain = math.sqrt(overlaps.circular[0]) * certified_sigma(epsilon, delta)
    best, reached, theorem = plain, delta, "no amplification"
    if most < plain:
        best, theorem = most / (1.0 - _WORTH), ""
    for remove in _removes(overlaps, epsilon, delta):
        if remove((1.0 - _WORTH) * best) <= delta:
            best, reached = _least(remove, (1.0 - _WORTH) * best, delta)
            theorem = "equal bins"
    if theorem == "":
        return None
    if theorem == "no amplification":
        return DeterministicNoise(plain, delta, theorem)

    def add(noise: float) -> float:
        return _first_below(delta, _adds(overlaps, epsilon), noise)

    if (other := add(best)) > delta:
        if most < plain and add(most) > delta:
            return None
        if add(plain) > delta:
            return DeterministicNoise(plain, delta, "no amplification")
        best, other = _least(add, min(most, plain), delta)
    return DeterministicNoise(best, max(reached, other), theorem)


def _least(bound: Side, high: float, delta: float) -> tuple[float, float]:
    """A noise near the least whose bound is at most δ, and that bound; `high` is known to pass."""
    reached, low, step = bound(high), high, 4 * _STEP
    while True:
        low = high * (1.0 - step)
        if (value := bound(low)) > delta:
            break
        high, reached, step = low, value, min(2.0 * step, 0.3)
    while high > (1.0 + _STEP) * low:
        middle = math.sqrt(low * high)
        if (value := bound(middle)) <= delta:
            high, reached = middle, value
        else:
            low = middle
    return high, reached


def _first_below(delta: float, bounds: Iterable[Side], noise: float) -> float:
    """The first bound that is at most δ, else the least."""
    least = 1.0
    for bound in bounds:
        least = min(least, bound(noise))
        if least <= delta:
            break
    return least


def _strides(bins: int) -> list[int]:
    return [q for q in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128) if q <= bins]


def _equal_bins(overlaps: BinOverlaps, stride: int, noise: float) -> EqualBins:
    """Every q-th bin: X is the mean over q shifts of such means, and δ is convex in X."""
    whole, common = float(overlaps.circular[0]), overlaps.largest_beyond(stride)
    common = min(common, whole)
    return EqualBins(overlaps.bins // stride, (whole - common) / noise**2, common / noise**2)


def _removes(overlaps: BinOverlaps, epsilon: float, delta: float) -> Iterator[Side]:
    for stride in _strides(overlaps.bins):
        yield lambda noise, q=stride: _equal_bins(overlaps, q, noise).remove(epsilon, delta)


def _adds(overlaps: BinOverlaps, epsilon: float) -> Iterator[Side]:
    yield lambda noise: _add_by_jensen(overlaps, noise, epsilon)
    for stride in _strides(overlaps.bins):
        yield lambda noise, q=stride: _equal_bins(overlaps, q, noise).add(epsilon)


def _add_by_jensen(overlaps: BinOverlaps, noise: float, epsilon: float) -> float:
    """δ_add from X ≥ e^{mean of the log-likelihoods}, which is log-normal."""
    whole, mean = float(overlaps.circular[0]) / noise**2, float(overlaps.circular.mean()) / noise**2
    spread, drift = math.sqrt(mean), epsilon - whole / 2
    if spread == 0.0:
        return max(-math.expm1(drift), 0.0)
    z = -drift / spread
    value = float(ndtr(z)) - math.exp(drift + mean / 2) * float(ndtr(z - spread))
    return min(max(value, 0.0) * (1.0 + 1e-9) + 1e-15, 1.0)
