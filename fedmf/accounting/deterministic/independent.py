"""δ of N equally overlapping bins, by one convolution: rounded outwards by the convex order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from fedmf.typing import Vector

# Points of a grid, a power of two; grids from 0 to a multiple of e^ε, where P/Q decides.
_POINTS = 2**18
_REMOVE_MULTIPLE, _ADD_MULTIPLE = 16.0, 40.0
# Share of δ that summands beyond the grid may cost.
_CUT_SHARE = 1e-3
# The unit roundoff times six a butterfly, twice: a bound on the error of a transform relative to its norm.
_FFT_ROUNDING = 12 * 2.0**-53
_RELATIVE_ROUNDING = 1e-9


@dataclass(frozen=True)
class EqualBins:
    """N bins whose log-likelihoods have variance v + c and covariance c (in units of the noise).

    X = e^{√c ξ − c/2}·Y with Y = (1/N) Σ_j e^{a_j}, a_j independent N(−v/2, v). Y is put on a grid by
    splitting each summand between its two neighbours so that its mean stays; this is larger in the convex
    order, so both δ_remove = E(X − e^ε)₊ and δ_add = E(1 − e^ε X)₊ can only grow.

    Args:
        bins: N ≥ 1.
        own: v ≥ 0, what a bin shares with no other.
        common: c ≥ 0, what all share.
    """

    bins: int
    own: float
    common: float

    def remove(self, epsilon: float, delta: float) -> float:
        """An upper bound on δ_remove(ε), good for values near δ; at most 1.

        With y·p_N(y) = (N x p₁(x)) ⊛ p_{N−1}, so that only numbers of the size of probabilities occur.
        """
        threshold, v, N = math.exp(epsilon), self.own, self.bins
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
        rates = np.geomspace(0.5, 60.0, 40) / top
        used = int(top / step) + 2
        moments = [math.log(float(atoms[:used] @ np.exp(rate * values[:used]))) for rate in rates]
        wrapped = min(
            math.exp(min((N - 1) * moment - rate * (2.0 * top - 2.0 * step), 0.0))
            for rate, moment in zip(rates, moments, strict=True)
        )
        return min((total + beyond + wrapped) * (1.0 + _RELATIVE_ROUNDING) + _noise_of_transforms(N), 1.0)

    def add(self, epsilon: float) -> float:
        """An upper bound on δ_add(ε); at most 1.

        Summands beyond the grid count as its end, sums beyond as small ones: both can only add.
        """
        threshold, v, N = math.exp(-epsilon), self.own, self.bins
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
    """A bound on what rounding in the transforms can take from a sum of payoffs in [0, 1]."""
    return N * _FFT_ROUNDING * math.log2(_POINTS) * math.sqrt(_POINTS)


def _above(log_value: float, mean: float, variance: float) -> float:
    return float(ndtr((mean - log_value) / math.sqrt(variance)))


def _split(v: float, N: int, step: float, top: float) -> Vector:
    """The law of e^a/N on the grid for e^a/N ≤ top, split so that the mean stays; the rest is left out."""
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
