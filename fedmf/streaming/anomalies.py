"""From which score on a row is called strange: thresholds with a stated share of false alarms.

The score of x is (x − μ̂)ᵀΣ̂⁻¹(x − μ̂), of a mean and a definite covariance that were released with noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedmf.typing import Array

#: Draws of the noise, and of rows for all of them together; the latter decide how exact the threshold is.
_NOISES, _ROWS = 1000, 200_000
#: Multiplications that decompositions of the covariances may take.
_WORK = 10**8


def alarm_threshold(rate: float, covariance: Array, mean_errors: Array, covariance_errors: Array) -> float:
    """The score that a share `rate` of ordinary rows is above, the noise of the release counted in.

    Ordinary rows are taken as N(μ, Σ), of which the release tells μ̂ and Σ̂ with noise of a known size. So
    μ = μ̂ + e and Σ = Σ̂ + E, with e and E drawn as that noise is and eigenvalues below zero put to it. The
    threshold is the quantile of the scores of rows of these N(μ, Σ); without noise it is that of χ² with d
    degrees of freedom. Where noise is large there are fewer false alarms. The draws are the same each time.

    Args:
        rate: share of false alarms, in (0, 1).
        covariance: Σ̂, positive definite, shape (d, d).
        mean_errors: standard error of each coordinate of μ̂, shape (d,).
        covariance_errors: of each entry of Σ̂, shape (d, d).

    Raises:
        ValueError: the rate is out of range.

    >>> round(alarm_threshold(0.05, np.eye(2), np.zeros(2), np.zeros((2, 2))), 1)   # χ²: 5.99
    6.0
    """
    _check(rate)
    d, rng = len(covariance), np.random.default_rng(0)
    noises = max(20, min(_NOISES, _WORK // d**3))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    E = np.triu(rng.normal(size=(noises, d, d)) * covariance_errors)
    E = E + np.swapaxes(np.triu(E, 1), 1, 2)
    values, vectors = np.linalg.eigh(np.eye(d) + whiten @ E @ whiten.T)
    moved = rng.normal(size=(noises, 1, d)) * mean_errors @ whiten.T
    drawn = (
        rng.normal(size=(noises, max(1, _ROWS // noises // d), d))
        * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    )
    scores = np.sum((moved + drawn @ np.swapaxes(vectors, 1, 2)) ** 2, axis=-1)
    return float(np.quantile(scores, 1 - rate))


def calibrated_threshold(rate: float, scores: ArrayLike) -> float:
    """The ⌈(1 − rate)(m + 1)⌉-th smallest score of m ordinary rows that the release is not of.

    Args:
        rate: share of false alarms, in (0, 1).
        scores: of rows that need no protection: the threshold tells something of them.

    Raises:
        ValueError: the rate is out of range, or there are too few rows for it.

    Guarantees:
        A further row of the same law, whatever that is and whatever the noise, is above it with a chance of
        at most `rate`.

    References:
        Vovk, Gammerman and Shafer (2005), "Algorithmic Learning in a Random World" (conformal prediction).

    >>> calibrated_threshold(0.1, range(1, 20))
    18.0
    """
    _check(rate)
    found = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    place = math.ceil((1 - rate) * (found.size + 1))
    if place > found.size:
        raise ValueError(
            f"scores (of ordinary rows) must be at least {math.ceil(1 / rate) - 1} for a rate of {rate}; got "
            f"{found.size}."
        )
    return float(found[place - 1])


def _check(rate: float) -> None:
    if not 0 < rate < 1:
        raise ValueError(f"rate (of false alarms) must lie between 0 and 1; got {rate}.")
