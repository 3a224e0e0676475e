"""Means of the rows that count, as a noisy sum over a noisy count, with Fieller's interval.

A schema may leave cells empty: rows with such cells do not count, and their number is private.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Array


@dataclass(frozen=True, eq=False)
class NoisyRatio:
    """Means of rows that count.

    Args:
        mean: m̂ = c·Y/R, shape (…, d); NaN where there are too few rows.
        error: √(v(1 + m̂²/c²))·c/R, its standard error for large N, shape (…, d); NaN likewise.
        low: lower end of the interval, shape (…, d); −inf where there are too few rows.
        high: upper end, likewise.
        few: where the interval of the count reaches 0, shape (…).
    """

    mean: Array
    error: Array
    low: Array
    high: Array
    few: NDArray[np.bool_]


def fieller(
    sums: Array, counted: Array, variance: Array, weight: float, level: float = 0.95
) -> NoisyRatio:
    """Means of the rows that count, with intervals that hold however small the count is.

    A row that counts enters a stream as (x, c), ‖x‖ ≤ ζ, and one that does not as 0, so that both
    have norm √(ζ² + c²) at most. A release of such rows is (Y, R) with independent noise of
    variance v in every coordinate: Y = S + e, R = c·N + e₀, where N is the weight of the rows that
    count and S/N = m their mean.

    **Fieller's interval**. For the true m_a, Y_a − m_a·R/c ~ N(0, v·(1 + m_a²/c²)) exactly, so {θ :
    (Y_a − θR/c)² ≤ z²v·(1 + θ²/c²)} holds m_a with the level of z, whatever N is. With R > z√v it
    is the interval with the ends (Y_a·R/c ± z√(v·(D + Y_a²/c²)))/D, D = (R² − z²v)/c². Else the
    interval of the count itself reaches 0: there are too few rows, and the set is unbounded; all
    that is known of m_a is its public bounds, which hold it too.

    **The price**. σ and C fixed, v is proportional to ζ² + c², and for large N the errors of all
    means add up to Σ_a v(1 + m_a²/c²)/N² ∝ (ζ² + c²)(d + ‖m‖²/c²). At the worst ‖m‖ = ζ it is least
    for c = ζ·d^(−1/4), where it is (1 + 1/√d)² times the d·ζ² of a stream that counts nothing:
    standard errors grow by 1 + 1/√d at most.

    Args:
        sums: Y, shape (…, d).
        counted: R, shape (…).
        variance: v > 0, of the noise of each coordinate, shape (…).
        weight: c > 0.
        level: probability with which each interval holds its mean, in (0, 1).

    Guarantees:
        Exact coverage for independent Gaussian noise: tests/moments/test_ratio.py measures it.

    References:
        Fieller (1954), "Some problems in interval estimation".

    >>> ratio = fieller(np.array([[3.0]]), np.array([6.0]), np.array([0.01]), 1.0)
    >>> ratio.mean.item(), round(ratio.low.item(), 3), round(ratio.high.item(), 3), ratio.few.item()
    (0.5, 0.464, 0.537, False)
    """
    from scipy.special import ndtri

    z = float(ndtri((1 + level) / 2))
    Y = np.asarray(sums)
    R = np.asarray(counted)[..., None]
    v = np.asarray(variance)[..., None]
    few = z * np.sqrt(v) >= R
    with np.errstate(divide="ignore", invalid="ignore"):
        D = (R**2 - z**2 * v) / weight**2
        half = z * np.sqrt(v * (np.maximum(D, 0.0) + Y**2 / weight**2))
        low = (Y * R / weight - half) / D
        high = (Y * R / weight + half) / D
        mean = np.where(few, np.nan, weight * Y / R)
        error = np.sqrt(v * (1 + mean**2 / weight**2)) * weight / R
    return NoisyRatio(
        mean, error, np.where(few, -np.inf, low), np.where(few, np.inf, high), few[..., 0]
    )
