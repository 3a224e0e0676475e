"""Power series that only the choice of a mechanism needs: fractional powers, sums and searches.

The algebra on which a chosen C itself rests is in `fedmf.matrices.series`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.series import (
    DIRECT_PRODUCTS,
    fft_size,
    multiply,
    next_reciprocal_terms,
    padded,
    reciprocal,
    trimmed,
)
from fedmf.matrices.toeplitz import InverseToeplitz, Toeplitz

# What may be left out relative to the largest coefficient where only sums count.
_NEGLIGIBLE = 1e-17
_FEWEST_SETTLED = 1024


def binomial_series(exponent: float, terms: int) -> Vector:
    """The first coefficients of (1 − x)^a: c_0 = 1, c_j = c_{j−1}·(j − 1 − a)/j.

    Args:
        exponent: a, any real number.
        terms: how many coefficients, at least 1.

    Returns:
        Shape (terms,), float64.

    >>> binomial_series(-0.5, 4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    j = np.arange(1, terms)
    return np.concatenate([[1.0], np.cumprod((j - 1 - exponent) / j)])


def factored_power(
    factors: Iterable[tuple[float, float, int]], exponent: float, terms: int
) -> Vector:
    """The first coefficients of Π (1 − ρx^s)^{e·γ} over the factors (ρ, e, s), scaled to c_0 = 1.

    >>> factored_power([(1.0, -1.0, 1), (0.5, -1.0, 1)], 0.5, 3)
    array([1.     , 0.75   , 0.59375])
    """
    product = np.ones(1)
    for root, factor_exponent, stride in factors:
        factor = np.zeros(terms)
        count = -(-terms // stride)
        factor[::stride] = binomial_series(factor_exponent * exponent, count) * np.power(
            root, np.arange(count)
        )
        product = factor if product.size == 1 else multiply(product, trimmed(factor), terms)
    return padded(product, terms)


def power(series: Vector, exponent: float, terms: int) -> Vector:
    """The first coefficients of (a(x)/a_0)^γ; O(terms²).

    From b = a^γ follows a·b′ = γ·a′·b, hence b_t = (1/(t a_0))·Σ_{j=1..t} (jγ − t + j) a_j b_{t−j}.

    >>> power(np.ones(3), 0.5, 3)
    array([1.   , 0.5  , 0.375])
    """
    a = trimmed(series[:terms]) / series[0]
    b = np.zeros(terms)
    b[0] = 1.0
    weights = np.arange(a.size) * (exponent + 1.0)
    for t in range(1, terms):
        last = min(t, a.size - 1)
        b[t] = ((weights[1 : last + 1] - t) * a[1 : last + 1]) @ b[t - last : t][::-1] / t
    return b


def lagged_products(left: Vector, right: Vector, lags: int) -> Vector:
    """Σ_t left_t·right_{t−j} for j < lags ≤ n, both of shape (n,).

    >>> lagged_products(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 0.0]), 2)
    array([3., 6.])
    """
    n = left.size
    if n * n <= DIRECT_PRODUCTS:
        return multiply(right, left[::-1], n)[::-1][:lags]
    size = fft_size(n + lags - 1)
    return np.fft.irfft(np.fft.rfft(left, size) * np.fft.rfft(right, size).conj(), size)[:lags]


def settled_reciprocal(series: Vector, terms: int) -> Vector:
    """The first coefficients of 1/c(x), without those at the end that are negligible next to the
    largest.

    For searches and other sums in which a share of 1e-17 of the largest coefficient does not count:
    as many terms are computed as it takes for p in a row to stay below that.

    Returns:
        Shape (m,), m ≤ n; fewer and not finite where they overflow.

    >>> settled_reciprocal(np.array([1.0, -0.5]), 10**6).size < 2000
    True
    """
    c = _without_negligible(series[:terms])
    inverse = reciprocal(c, min(terms, max(_FEWEST_SETTLED, 8 * c.size)))
    with np.errstate(over="ignore", invalid="ignore"):
        while inverse.size < terms:
            size = np.abs(inverse)
            largest = size.max()
            if not largest < np.inf:
                return inverse
            if size[-c.size :].max() <= _NEGLIGIBLE * largest:
                return _without_negligible(inverse)
            inverse = np.concatenate(
                [inverse, next_reciprocal_terms(c, inverse, min(2 * inverse.size, terms))]
            )
    return inverse


def _without_negligible(series: Vector) -> Vector:
    size = np.abs(series)
    return series[: int(np.flatnonzero(size > _NEGLIGIBLE * size.max())[-1]) + 1]


def truncated_coefs(factorization: Factorization) -> tuple[Vector, Vector] | None:
    """The first columns of a Toeplitz C and of C⁻¹, cut where less than 1e-17 is left.

    Only sums over all rounds may be computed from them. None for any C of another type.
    """
    if isinstance(factorization, Toeplitz):
        c = trimmed(factorization.coefficients)
        return c, settled_reciprocal(c, factorization.rounds)
    if isinstance(factorization, InverseToeplitz):
        h = trimmed(factorization.coefficients)
        return settled_reciprocal(h, factorization.rounds), h
    return None
