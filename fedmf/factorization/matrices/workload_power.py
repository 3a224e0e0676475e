"""Closed forms for any Toeplitz workload: truncated fractional powers of a(x) and of 1/a(x).

For prefix sums, a(x) = (1 − x)^{−1}, these are `square_root`, `bsr`, `bisr`, `bfr`, `bifr`, `nu_ftrl` and
`optimal_diagonal`. Row weights do not enter, except in the diagonal; column weights neither.
"""

from __future__ import annotations

import numpy as np

from fedmf.factorization.algebra import factored_power, power
from fedmf.factorization.matrices.scaled_toeplitz import ColumnScaled
from fedmf.factorization.matrices.toeplitz import Diagonal, InverseToeplitz, Toeplitz
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload


def power_series(workload: ToeplitzWorkload, exponent: float, terms: int) -> Vector:
    """The first coefficients of (a(x)/a_0)^γ, shape (terms,).

    >>> from fedmf.workload import momentum
    >>> power_series(momentum(0.5, 3), 0.5, 3)
    array([1.     , 0.75   , 0.59375])
    """
    if workload.factors is None:
        return power(workload.coefficients, exponent, terms)
    return factored_power(workload.factors, exponent, terms)


def strategy_power(workload: ToeplitzWorkload, gamma: float, bands: int) -> Toeplitz:
    """C = the first p coefficients of (a(x)/a_0)^γ: BSR for γ = ½, else γ-BFR.

    Args:
        workload: A of n rounds.
        gamma: γ in (0, 1].
        bands: p, 1 ≤ p ≤ n.

    Raises:
        ValueError: γ or p is out of range.

    >>> from fedmf.workload import prefix
    >>> strategy_power(prefix(3), 0.5, 2).strategy
    array([1. , 0.5, 0. ])
    """
    return Toeplitz(_checked_power(workload, gamma, 1.0, bands), workload.rounds)


def rated_power(
    workload: ToeplitzWorkload, gamma: float, bands: int, alpha: float
) -> Toeplitz | ColumnScaled:
    """C = `strategy_power` with column j multiplied by (η_j/η_0)^α: γ-BFR that knows the learning rates η.

    A round whose update counts less gets more noise, for a smaller sensitivity. α = 1 leaves the error of A
    without rates, α = 0 is γ-BFR; for k = n, b = 1 the best diagonal has about α = ½. For falling rates its
    worst pattern is the earliest, as that of γ-BFR (docs/theory/mechanisms.md).

    Args:
        workload: A of n rounds with learning rates; without them α has no effect.
        gamma: γ in (0, 1].
        bands: p, 1 ≤ p ≤ n.
        alpha: α.

    Raises:
        ValueError: γ or p is out of range.

    >>> from fedmf.workload import parse_workload
    >>> rated_power(parse_workload("prefix*linear", 4), 0.5, 2, 1.0).materialize().diagonal()
    array([1.  , 0.75, 0.5 , 0.25])
    """
    plain, rates = strategy_power(workload, gamma, bands), workload.column_weights
    if rates is None or alpha == 0.0:
        return plain
    return plain.columns_divided_by((rates / rates[0]) ** -alpha)


def inverse_power(workload: ToeplitzWorkload, gamma: float, bands: int) -> InverseToeplitz:
    """C⁻¹ = the first p coefficients of (a(x)/a_0)^{−γ}: BISR for γ = ½, else γ-BIFR.

    Raises:
        ValueError: γ or p is out of range.

    >>> from fedmf.workload import momentum
    >>> inverse_power(momentum(0.5, 3), 0.5, 2).correlation
    array([ 1.  , -0.75,  0.  ])
    """
    return InverseToeplitz(_checked_power(workload, gamma, -1.0, bands), workload.rounds)


def shifted_root(workload: ToeplitzWorkload, shift: float, bands: int) -> Toeplitz:
    """C ∝ the first p coefficients of the square root of the workload, each plus c; unit diagonal.

    The best family with one free parameter of those tried, from p = 16 on. For prefix sums in 13 settings
    (n = 500 … 10⁵, k = 1 … 100, p = 4 … 500 ≤ b) its RMSE with the best c is 0.14 % above the optimal banded
    Toeplitz matrix on average and 0.71 % at most; 1/i + c is 1.75 % above (8.1 % at most, but up to 0.04 %
    better at p = 4 and 8), γ-BFR 0.39 % (1.4 %), (1 + cj)^{−1/2} 1.43 % (5.2 %), (1 + j)^{−c} 1.52 % (3.6 %).

    Args:
        workload: A of n rounds.
        shift: c > −1, of either sign.
        bands: p, 1 ≤ p ≤ n.

    Raises:
        ValueError: c or p is out of range.

    >>> from fedmf.workload import prefix
    >>> shifted_root(prefix(3), 0.25, 2).strategy
    array([1. , 0.6, 0. ])
    """
    if not -1 < shift < float("inf"):
        raise ValueError(
            f"c (shift) must be finite and above -1; got {shift}. The diagonal 1 + c must be positive."
        )
    root = _checked_power(workload, 0.5, 1.0, bands)
    return Toeplitz((root + shift) / (1.0 + shift), workload.rounds)


def damped_root(workload: ToeplitzWorkload, nu: float) -> InverseToeplitz:
    """C = the square root of the workload with coefficient j multiplied by (1 − ν)^j; ν-DP-FTRL for prefix.

    Raises:
        ValueError: ν is outside (0, 1].
    """
    if not 0 < nu <= 1:
        raise ValueError(f"nu (damping) must be in (0, 1]; got {nu}. The limit nu = 0 is square-root.")
    n = workload.rounds
    return InverseToeplitz(power_series(workload, -0.5, n) * (1.0 - nu) ** np.arange(n), n)


def workload_diagonal(workload: ToeplitzWorkload) -> Diagonal:
    """C = diag(α_t^{1/4}), α = diag(AᵀA): the best independent noise if k = n and b = 1 (Cauchy–Schwarz).

    Rounds that enter no query (α_t = 0) get the least positive entry.

    >>> from fedmf.workload import prefix
    >>> workload_diagonal(prefix(16)).entries[[0, -1]]
    array([2., 1.])
    """
    squares = np.maximum(workload.column_squares(), 0.0)
    return Diagonal(np.maximum(squares, squares[squares > 0].min()) ** 0.25)


def _checked_power(workload: ToeplitzWorkload, gamma: float, sign: float, bands: int) -> Vector:
    n = workload.rounds
    if isinstance(bands, bool) or not isinstance(bands, int) or not 1 <= bands <= n:
        raise ValueError(f"p (bands) must be an integer between 1 and n={n}; got {bands!r}.")
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma (exponent) must be in (0, 1]; got {gamma}.")
    return power_series(workload, sign * gamma, bands)
