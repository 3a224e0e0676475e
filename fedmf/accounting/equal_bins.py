"""Upper bounds on δ of Balls-in-Bins without random numbers, from bins that all overlap equally.

docs/theory/amplification.md proves that a mechanism of any signs is at least as private as jointly
Gaussian log-likelihoods with the overlaps of its bins, and these as the mean over shifts of every
q-th of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from fedmf.accounting.balls_in_bins import bin_columns
from fedmf.accounting.gaussian import certified_sigma
from fedmf.accounting.rounding import least_near
from fedmf.matrices.arrays import Matrix, Vector
from fedmf.matrices.factorization import Factorization
from fedmf.participation import Participation

# Sums of at most some 10⁵ products are rounded by far less than this share.
_OVERLAP_ROUNDING: Final = 1e-11
# Precision of the search for the noise, and the relative gain for which a further bound is tried.
_PRECISION = 1e-4
_WORTH = 4e-3
_STRIDES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
# Points of a grid, a power of two; grids from 0 to a multiple of e^ε, where P/Q decides.
_POINTS: Final = 2**18
_REMOVE_MULTIPLE = 16.0
_ADD_MULTIPLE = 40.0
# Share of δ that summands beyond the grid may cost.
_CUT_SHARE: Final = 1e-3
# The unit roundoff times six a butterfly, twice: a bound on the error of a transform relative to
# its norm.
_FFT_ROUNDING: Final = 12 * 2.0**-53
_RELATIVE_ROUNDING: Final = 1e-9

#: A bound on δ of one side for a given noise.
Bound = Callable[[float], float]


@dataclass(frozen=True, eq=False)
class BinOverlaps:
    """Bounds g_d on ⟨μ_i, μ_j⟩ for bins at circular distance d, where μ_i = Σ_l |C_{:,i+lb}|.

    By the theorem of docs/theory/amplification.md any mechanism with these overlaps is at least as
    private under Balls-in-Bins as b jointly Gaussian log-likelihoods with covariance g_{|i−j|}/s²,
    whatever the signs of C.

    Args:
        circular: g_0 … g_{b−1} with g_d = g_{b−d}, per unit clip norm. The circulant matrix of g
            must be positive semidefinite.

    Raises:
        ValueError: g is not symmetric or not positive semidefinite, or has a negative entry.
    """

    circular: Vector

    def __post_init__(self) -> None:
        g = self.circular
        if g.ndim != 1 or len(g) == 0 or not np.isfinite(g).all() or g.min() < 0:
            raise ValueError(
                "g (overlaps) must be non-negative and finite, one for each distance; got"
                f" {g.shape}."
            )
        if not np.array_equal(g[1:], g[:0:-1]):
            raise ValueError("g (overlaps) must be symmetric: g_d = g_{b−d}.")
        if np.fft.fft(g).real.min() < -_OVERLAP_ROUNDING * len(g) * g[0]:
            raise ValueError("g (overlaps) must be positive semidefinite as a circulant matrix.")
        g.setflags(write=False)

    @classmethod
    def of(cls, factorization: Factorization, participation: Participation) -> BinOverlaps:
        """The overlaps of C when b bins are visited in turn for all n rounds.

        Raises:
            ValueError: k < ⌈n/b⌉ (a user in the first bin joins so many rounds), or b exceeds 4096.
        """
        means = np.zeros(
            (min(participation.min_separation, participation.rounds), participation.rounds)
        )
        for _, columns in bin_columns(factorization, participation):
            means[: columns.shape[1]] += np.abs(columns).T
        return cls.of_gram(means @ means.T)

    @classmethod
    def of_gram(cls, gram: Matrix) -> BinOverlaps:
        """Circular bounds on the entries of a Gram matrix.

        g_0 is raised until the circulant matrix is semidefinite.
        """
        b = len(gram)
        bins = np.arange(b)
        largest = np.empty(b)
        for d in range(b):
            largest[d] = gram[bins, (bins + d) % b].max()
        g = np.maximum(np.maximum(largest, largest[-bins % b]), 0.0) * (1.0 + _OVERLAP_ROUNDING)
        g[0] += max(0.0, -float(np.fft.fft(g).real.min())) * (1.0 + _OVERLAP_ROUNDING)
        return cls(g)

    @property
    def bins(self) -> int:
        """b."""
        return len(self.circular)

    def largest_beyond(self, distance: int) -> float:
        """max g_d over bins at least so far apart; 0 where there are none."""
        away = self.circular[distance : self.bins - distance + 1]
        return float(away.max(initial=0.0))


@dataclass(frozen=True)
class EqualBins:
    """N bins with log-likelihoods of variance v + c and covariance c (in units of the noise).

    X = e^{√c ξ − c/2}·Y with Y = (1/N) Σ_j e^{a_j}, a_j independent N(−v/2, v). Y is put on a grid
    by splitting each summand between its two neighbors so that its mean stays; this is larger in
    the convex order, so both δ_remove = E(X − e^ε)₊ and δ_add = E(1 − e^ε X)₊ can only grow.

    Args:
        bins: N ≥ 1.
        own: v ≥ 0, the variance that a bin shares with no other.
        common: c ≥ 0, the variance that all bins share.
    """

    bins: int
    own: float
    common: float

    def remove(self, epsilon: float, delta: float) -> float:
        """An upper bound on δ_remove(ε), good for values near δ; at most 1.

        With y·p_N(y) = (N x p₁(x)) ⊛ p_{N−1}, so that only numbers of the size of probabilities
        occur.
        """
        threshold = math.exp(epsilon)
        v = self.own
        N = self.bins
        if v == 0.0:
            return float(_share_above(np.ones(1), threshold, self.common)[0])
        normal = -float(ndtri(_CUT_SHARE * delta / 2))
        reach = math.exp(min(v / 2 + math.sqrt(v) * normal, 300.0)) / N
        top = max(min(_REMOVE_MULTIPLE * threshold, reach), threshold)
        step = 3.0 * top / _POINTS
        last = math.log(N * step * int(top / step))
        beyond = _above(last, v / 2, v) + (N - 1) * _above(last, -v / 2, v)
        atoms = _split(v, N, step, top)
        values = step * np.arange(_POINTS, dtype=np.float64)
        biased = N * values * atoms
        others = np.fft.rfft(atoms) ** (N - 1)
        weights = np.fft.irfft(np.fft.rfft(biased) * others, _POINTS)
        payoffs = np.zeros(_POINTS)
        payoffs[1:] = _share_above(values[1:], threshold, self.common)
        total = float(np.maximum(weights, 0.0) @ payoffs)
        # Sums of N − 1 others beyond 2·top would come out at the wrong end of the grid.
        used = int(top / step) + 2
        wrapped = 1.0
        for rate in np.geomspace(0.5, 60.0, 40) / top:
            moment = math.log(float(atoms[:used] @ np.exp(rate * values[:used])))
            chernoff = math.exp(min((N - 1) * moment - rate * (2.0 * top - 2.0 * step), 0.0))
            wrapped = min(wrapped, chernoff)
        bound = (total + beyond + wrapped) * (1.0 + _RELATIVE_ROUNDING) + _noise_of_transforms(N)
        return min(bound, 1.0)

    def add(self, epsilon: float) -> float:
        """An upper bound on δ_add(ε); at most 1.

        Summands beyond the grid count as its end, sums beyond as small ones: both can only add.
        """
        threshold = math.exp(-epsilon)
        v = self.own
        N = self.bins
        if v == 0.0:
            return float(_share_below(np.ones(1), threshold, self.common)[0])
        top = _ADD_MULTIPLE / 4.0
        step = 4.0 * top / _POINTS
        atoms = _split(v, N, step, top)
        atoms[int(top / step)] += max(1.0 - float(atoms.sum()), 0.0)
        weights = np.fft.irfft(np.fft.rfft(atoms) ** N, _POINTS)
        payoffs = np.ones(_POINTS)
        values = step * np.arange(_POINTS, dtype=np.float64)
        payoffs[1:] = _share_below(values[1:], threshold, self.common)
        total = float(np.maximum(weights, 0.0) @ payoffs)
        return min(total * (1.0 + _RELATIVE_ROUNDING) + _noise_of_transforms(N), 1.0)


def _noise_of_transforms(N: int) -> float:
    """A bound on the error of a sum of payoffs in [0, 1] by rounding in the transforms."""
    return N * _FFT_ROUNDING * math.log2(_POINTS) * math.sqrt(_POINTS)


def _above(log_value: float, mean: float, variance: float) -> float:
    return float(ndtr((mean - log_value) / math.sqrt(variance)))


def _split(v: float, N: int, step: float, top: float) -> Vector:
    """The law of e^a/N on the grid up to `top`, split so that the mean stays."""
    edges = step * np.arange(int(top / step) + 1)
    with np.errstate(divide="ignore"):
        logs = np.log(N * edges)
    masses = _between((logs + v / 2) / math.sqrt(v))
    means = _between((logs - v / 2) / math.sqrt(v)) / N
    upper = np.clip(means / step - np.arange(len(masses)) * masses, 0.0, masses)
    atoms = np.zeros(_POINTS)
    atoms[: len(masses)] += masses - upper
    atoms[1 : len(masses) + 1] += upper
    return atoms


def _between(z: Vector) -> Vector:
    """Φ(z_{k+1}) − Φ(z_k), from the nearer tail."""
    return np.where(z[:-1] > 0, ndtr(-z[:-1]) - ndtr(-z[1:]), ndtr(z[1:]) - ndtr(z[:-1]))


def _share_above(y: Vector, threshold: float, c: float) -> Vector:
    """E(y e^{√c ξ − c/2} − K)₊ / y for a standard normal ξ."""
    if c == 0.0:
        return np.maximum(1.0 - threshold / y, 0.0)
    z = np.log(y / threshold) / math.sqrt(c)
    value = ndtr(z + math.sqrt(c) / 2) - threshold / y * ndtr(z - math.sqrt(c) / 2)
    return np.clip(value, 0.0, 1.0)


def _share_below(y: Vector, threshold: float, c: float) -> Vector:
    """E(1 − y e^{√c ξ − c/2} / threshold)₊."""
    if c == 0.0:
        return np.maximum(1.0 - y / threshold, 0.0)
    z = np.log(threshold / y) / math.sqrt(c)
    value = ndtr(z + math.sqrt(c) / 2) - y / threshold * ndtr(z - math.sqrt(c) / 2)
    return np.clip(value, 0.0, 1.0)


def deterministic_delta(overlaps: BinOverlaps, noise: float, epsilon: float, delta: float) -> float:
    """An upper bound on δ(s, ε) of Balls-in-Bins under zero-out adjacency, without sampling.

    Args:
        overlaps: of the mechanism.
        noise: s > 0, standard deviation per unit clip norm.
        epsilon: ε > 0.
        delta: the target; once a bound of a side is at most this, no better one is computed.
    """
    removed = _first_below(delta, _removes(overlaps, epsilon, delta), noise)
    added = _first_below(delta, _adds(overlaps, epsilon), noise)
    return max(removed, added)


def deterministic_noise(
    overlaps: BinOverlaps, epsilon: float, delta: float, most: float = math.inf
) -> tuple[float, float] | None:
    """The least noise for which equal bins give (ε, δ) under zero-out adjacency; no random numbers.

    Args:
        overlaps: of the mechanism.
        epsilon: ε > 0.
        delta: δ in (0, 1).
        most: a noise above which the answer is of no use; never more than that without
            amplification.

    Returns:
        The noise, a standard deviation per unit clip norm, and an upper bound of at most δ on δ(s,
        ε), both sides; None if more noise than `most` is needed.

    Guarantees:
        Balls-in-Bins with this noise is (ε, δ)-private for an observer of all releases, adaptive
        updates of any dimension and strategies of any signs included.
    """
    most = min(most, math.sqrt(overlaps.circular[0]) * certified_sigma(epsilon, delta))

    def add(noise: float) -> float:
        return _first_below(delta, _adds(overlaps, epsilon), noise)

    noise = math.inf
    removed = 1.0
    for remove in _removes(overlaps, epsilon, delta):
        further = min(most, (1.0 - _WORTH) * noise)
        if remove(further) <= delta:
            noise, removed = _least(remove, further, delta)
    if noise > most:
        return None
    added = add(noise)
    if added > delta:
        if add(most) > delta:
            return None
        noise, added = _least(add, most, delta)
    return noise, max(removed, added)


def _least(bound: Bound, high: float, delta: float) -> tuple[float, float]:
    """A noise near the least with a bound of at most δ, and that bound; `high` is known to pass."""

    def excess(noise: float) -> float:
        return math.log(max(bound(noise), 1e-300) / delta)

    noise = least_near(excess, high, 4e-3, _PRECISION)
    return noise, bound(noise)


def _first_below(delta: float, bounds: Iterable[Bound], noise: float) -> float:
    """The first bound that is at most δ, else the least."""
    least = 1.0
    for bound in bounds:
        least = min(least, bound(noise))
        if least <= delta:
            break
    return least


def _strides(bins: int) -> list[int]:
    return [q for q in _STRIDES if q <= bins]


def _equal_bins(overlaps: BinOverlaps, stride: int, noise: float) -> EqualBins:
    """Every q-th bin: X is the mean over q shifts of such means, and δ is convex in X."""
    whole = float(overlaps.circular[0])
    common = min(overlaps.largest_beyond(stride), whole)
    return EqualBins(overlaps.bins // stride, (whole - common) / noise**2, common / noise**2)


def _removes(overlaps: BinOverlaps, epsilon: float, delta: float) -> Iterator[Bound]:
    """Bounds on δ_remove, one for each stride."""
    for stride in _strides(overlaps.bins):
        yield partial(_remove_by_stride, overlaps, stride, epsilon, delta)


def _remove_by_stride(
    overlaps: BinOverlaps, stride: int, epsilon: float, delta: float, noise: float
) -> float:
    return _equal_bins(overlaps, stride, noise).remove(epsilon, delta)


def _adds(overlaps: BinOverlaps, epsilon: float) -> Iterator[Bound]:
    """Bounds on δ_add: by Jensen's inequality, and one for each stride."""
    yield partial(_add_by_jensen, overlaps, epsilon)
    for stride in _strides(overlaps.bins):
        yield partial(_add_by_stride, overlaps, stride, epsilon)


def _add_by_stride(overlaps: BinOverlaps, stride: int, epsilon: float, noise: float) -> float:
    return _equal_bins(overlaps, stride, noise).add(epsilon)


def _add_by_jensen(overlaps: BinOverlaps, epsilon: float, noise: float) -> float:
    """δ_add from X ≥ e^{mean of the log-likelihoods}, which is log-normal."""
    whole = float(overlaps.circular[0]) / noise**2
    mean = float(overlaps.circular.mean()) / noise**2
    spread = math.sqrt(mean)
    drift = epsilon - whole / 2
    if spread == 0.0:
        return max(-math.expm1(drift), 0.0)
    z = -drift / spread
    value = float(ndtr(z)) - math.exp(drift + mean / 2) * float(ndtr(z - spread))
    return min(max(value, 0.0) * (1.0 + 1e-9) + 1e-15, 1.0)
