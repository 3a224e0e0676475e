"""δ of bins on a circle whose overlaps fall geometrically: a Markov chain, rounded outwards by convexity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fedmf.accounting.deterministic.overlaps import BinOverlaps
from fedmf.typing import Matrix, Vector

# Points of the lattice of sums; more for δ_add, which is decided near e^{−ε}.
_POINTS = 2**10
# Distance of states in standard deviations of a step, of first states in their own.
_STATE_STEP, _FIRST_STEP = 0.45, 0.8
# Share of δ that states beyond the grid may cost.
_CUT_SHARE = 1e-3
_MOST_STATES = 400
_UNIT = 2.0**-53
_RELATIVE_ROUNDING = 1e-9
# A frequency is dropped once its terms add up to less: from there on they can only shrink.
_NEGLIGIBLE = 1e-19
# A share of the variance that a bin keeps to itself, so that all laws have a density.
_LEAST_OWN = 1e-4
_STRIDES = (1, 2, 3, 4, 5, 6, 8, 10, 12)


@dataclass(frozen=True)
class CircularChain:
    """N bins with log-likelihoods √v U_j + √w η_j + √c ξ less half their variance.

    U is the stationary Gaussian chain on a circle of N places with Cov(U_i, U_j) = (ρ^d + ρ^{N−d})/(1 + ρ^N)
    at distance d; η_j and ξ are independent standard normal.

    Args:
        bins: N ≥ 3.
        chain: v > 0.
        persistence: ρ in (0, 1).
        own: w > 0.
        common: c ≥ 0.
    """

    bins: int
    chain: float
    persistence: float
    own: float
    common: float

    @classmethod
    def above(cls, overlaps: BinOverlaps, noise: float) -> CircularChain | None:
        """The chain of every q-th bin that covers these overlaps, q and ρ by the least second moment of X."""
        g = overlaps.circular / noise**2
        b = len(g)
        beyond = np.maximum.accumulate(g[: b // 2 + 1][::-1])[::-1]
        best, least = None, math.inf
        for q in _STRIDES:
            N = b // q
            if N < 3:
                break
            distance = np.arange(1, N // 2 + 1)
            rho = np.exp(-q / np.geomspace(1.0, 2.0 * b, 48))[:, None, None]
            c = np.linspace(0.0, 1.0, 24)[:, None] * beyond[N // 2 * q]
            kept = (rho**distance + rho ** (N - distance)) / (1.0 + rho**N)
            v = np.maximum(((beyond[q * distance] - c) / kept).max(axis=2), 1e-9 * g[0])
            w = np.maximum(g[0] - c[:, 0] - v, _LEAST_OWN * g[0])
            twice = np.where(2 * distance == N, 1.0, 2.0)
            pairs = np.exp(np.minimum(v[:, :, None] * kept, 300.0)) @ twice
            seconds = np.exp(c[:, 0]) * (np.exp(np.minimum(v + w, 300.0)) + pairs) / N
            at = np.unravel_index(np.argmin(seconds), seconds.shape)
            if seconds[at] < least:
                least = float(seconds[at])
                # Divisions and powers round: the least bit more covers them.
                covered = float(v[at]) * (1.0 + 1e-12)
                best = cls(N, covered, float(rho[at[0], 0, 0]), float(w[at]), float(c[at[1], 0]))
        return best

    def remove(self, epsilon: float, delta: float) -> float:
        """An upper bound on δ_remove(ε), good for values near δ; at most 1.

        E(X − K)₊ = E X − E min(X, K), so that what leaves the grids can only add.
        """
        K, V = math.exp(epsilon), self.chain + self.own
        tail = V / 2 - math.sqrt(V) * float(ndtri(_CUT_SHARE * delta))
        width = max(2.5 * K, min(16.0 * K, K + math.exp(min(tail, 300.0)) / self.bins))
        grid = self._grid(delta)
        if grid is None:
            return 1.0
        states, lost = grid
        law, mean, skipped = self._sums(states, width, _POINTS, _CUT_SHARE * delta, rising=True)
        s = width / _POINTS * np.arange(_POINTS, dtype=np.float64)
        capped = np.zeros(_POINTS)
        capped[1:] = _expected_minimum(s[1:], K, self.common)
        value = lost + skipped + mean - float(law @ capped)
        rounding = _RELATIVE_ROUNDING * delta + K * self._rounding(len(states), _POINTS)
        return min(max(value, 0.0) + rounding, 1.0)

    def add(self, epsilon: float, delta: float) -> float:
        """An upper bound on δ_add(ε), good for values near δ; at most 1.

        E(1 − K X)₊ = 1 − E min(1, K X); what leaves the grids counts as nothing in the minimum.
        """
        threshold = math.exp(-epsilon)
        points = _POINTS * 2 ** min(max(round(epsilon / math.log(2.0)) - 1, 0), 4)
        grid = self._grid(delta)
        if grid is None:
            return 1.0
        states, _ = grid
        width = 8.0
        law, *_ = self._sums(states, width, points, _CUT_SHARE * delta, rising=False)
        s = width / points * np.arange(points)
        capped = np.zeros(points)
        capped[1:] = _expected_minimum(s[1:], threshold, self.common) / threshold
        value = 1.0 - float(law @ capped)
        rounding = _RELATIVE_ROUNDING * delta + self._rounding(len(states), points)
        return min(max(value, 0.0) + rounding, 1.0)

    def _rounding(self, states: int, points: int) -> float:
        """A bound on what rounding can take from a sum of payoffs in [0, 1]."""
        return self.bins * _UNIT * (12 * math.log2(points) + 2 * states + 40) * math.sqrt(points)

    @cached_property
    def _shrunk(self) -> float:
        """Variance of a step on the circle over that of the chain on a line."""
        around = self.persistence**self.bins
        return (1.0 - around) / (1.0 + around)

    def _steps(self) -> Iterator[tuple[float, float, float]]:
        """(α, β, variance) of U_{j+1} = α U_j + β U_0 + step, for j = 0 … N − 2."""
        rho = self.persistence
        for left in range(self.bins, 1, -1):
            whole = -math.expm1(2 * left * math.log(rho))
            less = -math.expm1(2 * (left - 1) * math.log(rho))
            alpha, beta = rho * less / whole, rho ** (left - 1) * (1.0 - rho**2) / whole
            yield alpha, beta, (1.0 - rho**2) * less / whole * self._shrunk

    def _grid(self, delta: float) -> tuple[Vector, float] | None:
        """States from −low to high, and a bound on E[X; some state beyond], for paths rounded to them."""
        least = min(variance for *_, variance in self._steps())
        h = min(_STATE_STEP * math.sqrt(least), 0.5)
        # Rounding to the grid adds at most a quarter of the square of its step to a variance proxy.
        inflated = 1.0 + max(h * h / 4 / least, _FIRST_STEP**2 / 4)
        v, root = self.chain, math.sqrt(self.chain)
        log = math.log(2 * self.bins / (_CUT_SHARE * delta)) + v * (inflated - 1.0) / 2
        low = math.sqrt(2 * inflated * log)
        high = root * inflated + low
        below, above = math.ceil(low / h), math.ceil(high / h)
        if below + above >= _MOST_STATES:
            return None
        states = h * np.arange(-below, above + 1, dtype=np.float64)
        exponents = (
            -(states[-1] ** 2) / (2 * inflated) + root * states[-1] - v / 2,
            -(states[0] ** 2) / (2 * inflated) + v * (inflated - 1.0) / 2,
        )
        return states, self.bins * sum(math.exp(exponent) for exponent in exponents)

    def _sums(
        self, states: Vector, width: float, points: int, spare: float, rising: bool
    ) -> tuple[Vector, float, float]:
        """The law of Y on the lattice of [0, width) less what leaves the grids; E Y of the paths whose states
        stay in them; and a bound on E Y of first states left out. Y is X without the common factor.

        `rising` says whether the payoff rises or falls in Y; `spare` is about what the last number may be.
        """
        first = np.arange(math.floor(states[0] / _FIRST_STEP), math.ceil(states[-1] / _FIRST_STEP) + 1)
        first = first * _FIRST_STEP
        scale = math.sqrt(self.chain) if not rising else 0.0
        shares = _split(np.zeros(1), 1.0, first, scale)[0]
        begun = self._transforms(first, width, points, rising)
        moved = self._transforms(states, width, points, rising)
        average, begun_average = self._means(states), self._means(first)
        half, chain = points // 2 + 1, self.chain
        total, mean, skipped = np.zeros(half, dtype=np.complex128), 0.0, 0.0
        for at, z in enumerate(first):
            # Rounding adds less than 0.3 v to the exponent of E[e^{√v U_j − v/2} | U_0 = z].
            worth = shares[at] * math.exp(math.sqrt(chain) * max(z, 0.0) + 0.3 * chain)
            if worth * len(first) <= spare:
                skipped += float(worth)
                continue
            # Columns: probability, E[Y so far], and the transform as far as it is not negligible.
            both = np.concatenate([[1.0, begun_average[at]], begun[at].view(np.float64)])[None]
            for j, (alpha, beta, variance) in enumerate(self._steps()):
                froms = states if j else np.array([z])
                move = _split(alpha * froms + beta * z, math.sqrt(variance), states, scale)
                both = move.T @ both
                waves = both[:, 2:].view(np.complex128)
                waves *= moved[:, : waves.shape[1]]
                both[:, 1] += both[:, 0] * average
                if j % 4 == 0:
                    sizes = np.abs(waves).sum(axis=0)
                    kept = int(np.flatnonzero(sizes > _NEGLIGIBLE).max(initial=0)) + 1
                    both = np.ascontiguousarray(both[:, : 2 + 2 * kept])
            ended = both.sum(axis=0)
            total[: len(ended) // 2 - 1] += shares[at] * ended[2:].view(np.complex128)
            mean += shares[at] * float(ended[1])
        return np.fft.irfft(total, points), mean, skipped

    def _means(self, states: Vector) -> Vector:
        return np.exp(math.sqrt(self.chain) * states - self.chain / 2) / self.bins

    def _transforms(self, states: Vector, width: float, points: int, rising: bool) -> NDArray[np.complex128]:
        """Transforms of one bin's summand given its state, moved to the lattice with its mean kept.

        Summands beyond the lattice are left out, or clipped to half of it where the payoff falls.
        """
        step, last = width / points, points - 1 if rising else points // 2
        edges, deviation = step * np.arange(last + 1), math.sqrt(self.own)
        average = self._means(states)[:, None]
        with np.errstate(divide="ignore"):
            z = (np.log(edges) - np.log(average)) / deviation
        masses = _between(z + deviation / 2)
        upper = average * _between(z - deviation / 2) / step - np.arange(last) * masses
        upper = np.clip(upper, 0.0, masses)
        atoms = np.zeros((len(states), points))
        atoms[:, :last] += masses - upper
        atoms[:, 1 : last + 1] += upper
        if not rising:
            atoms[:, last] += np.maximum(1.0 - atoms.sum(axis=1), 0.0)
        return np.fft.rfft(atoms, axis=1)


def _split(means: Vector, deviation: float, states: Vector, scale: float) -> Matrix:
    """Each normal law moved to the states: its mean is kept, or that of e^{scale·u} if scale > 0.

    Shape (means, states); what lies beyond the first or last state is shared with one that is not there.
    """
    h = states[1] - states[0]
    edges = np.concatenate([[states[0] - h], states, [states[-1] + h]])
    z = (means[:, None] - edges) / deviation
    if scale == 0.0:
        calls = deviation * (np.exp(-z * z / 2) / math.sqrt(2 * math.pi) + z * ndtr(z))
        slopes = np.diff(calls, axis=1) / h
    else:
        # In units of e^{scale·(state)}, each pair of neighbours in its own.
        growth = np.exp(scale * (means[:, None] - edges) + (scale * deviation) ** 2 / 2)
        grown, plain = growth * ndtr(z + scale * deviation), ndtr(z)
        ahead = grown[:, 1:] - plain[:, 1:]
        here = (grown[:, :-1] - plain[:, :-1]) * math.exp(-scale * h)
        slopes = (ahead - here) / -math.expm1(-scale * h)
    return np.maximum(np.diff(slopes, axis=1), 0.0)


def _between(z: Matrix) -> Matrix:
    """Φ(z_{k+1}) − Φ(z_k) along the last axis, from the nearer tail."""
    below, above = ndtr(z), ndtr(-z)
    return np.where(z[..., :-1] > 0, above[..., :-1] - above[..., 1:], below[..., 1:] - below[..., :-1])


def _expected_minimum(y: Vector, threshold: float, c: float) -> Vector:
    """E min(y e^{√c ξ − c/2}, K) for a standard normal ξ."""
    if c == 0.0:
        return np.minimum(y, threshold)
    z, root = np.log(y / threshold) / math.sqrt(c), math.sqrt(c)
    return y * ndtr(-z - root / 2) + threshold * ndtr(z - root / 2)
