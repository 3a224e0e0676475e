"""Factorizations known in closed form, and the exact formulas that go with them.

(1 − x)^{−1} is the series of the prefix workload; its fractional powers and their truncations give most.
"""

from __future__ import annotations

import numpy as np

from fedmf.mechanisms.registry import (
    BANDS,
    FREE_BANDS,
    FREE_GAMMA,
    FREE_LAMBDA,
    FREE_NU,
    FREE_ROOT_SHIFT,
    FREE_SHIFT,
    Accuracy,
    DesignRequest,
    Error,
    Family,
    Free,
    Parameter,
    Values,
    at_once,
    best_on_interval,
    register,
)
from fedmf.mechanisms.series import binomial_series, factored_power, power
from fedmf.mechanisms.toeplitz import ColumnScaled, Diagonal, InverseToeplitz, Toeplitz
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.typing import Vector


def identity(rounds: int) -> Toeplitz:
    """C = I: independent noise in every round, as in DP-FedAvg.

    >>> identity(2).materialize()
    array([[1., 0.],
           [0., 1.]])
    """
    return Toeplitz(np.ones(1), rounds)


def square_root(rounds: int) -> InverseToeplitz:
    """C = LTT((1 − x)^{−1/2}), the square root of the prefix workload.

    Streamed through C⁻¹ = LTT((1 − x)^{1/2}), which keeps no vectors and draws all past noise again.

    References:
        Fichtenberger, Henzinger & Upadhyay (2023), "Constant Matters".

    >>> square_root(4).strategy
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    return InverseToeplitz(binomial_series(0.5, _horizon(rounds)), rounds)


def bsr(bands: int, rounds: int) -> Toeplitz:
    """Banded square root: C has the first p coefficients of (1 − x)^{−1/2}.

    References:
        Kalinin & Lampert (2024), "Banded Square Root Matrix Factorization".

    >>> bsr(2, 3).strategy
    array([1. , 0.5, 0. ])
    """
    return bfr(0.5, bands, rounds)


def bisr(bands: int, rounds: int) -> InverseToeplitz:
    """Banded inverse square root: C⁻¹ has the first p coefficients of (1 − x)^{1/2}.

    >>> bisr(2, 3).strategy
    array([1.  , 0.5 , 0.25])
    """
    return bifr(0.5, bands, rounds)


def bifr(gamma: float, bands: int, rounds: int) -> InverseToeplitz:
    """γ-BIFR: C⁻¹ has the first p coefficients of (1 − x)^γ.

    γ = ½ is BISR; p = 2 is DP-λCGD with λ = γ.

    Args:
        gamma: γ in (0, 1].
        bands: p, 1 ≤ p ≤ n.
        rounds: n.

    Raises:
        ValueError: γ or p is out of range.

    >>> bifr(0.9, 2, 3).correlation
    array([ 1. , -0.9,  0. ])
    """
    return InverseToeplitz(binomial_series(_fraction(gamma), _bandwidth(bands, rounds)), rounds)


def bfr(gamma: float, bands: int, rounds: int) -> Toeplitz:
    """γ-BFR: C has the first p coefficients of (1 − x)^{−γ}.

    Args:
        gamma: γ in (0, 1].
        bands: p, 1 ≤ p ≤ n.
        rounds: n.

    Raises:
        ValueError: γ or p is out of range.

    >>> bfr(1.0, 2, 3).strategy
    array([1., 1., 0.])
    """
    return Toeplitz(binomial_series(-_fraction(gamma), _bandwidth(bands, rounds)), rounds)


def cgd(decay: float, rounds: int) -> InverseToeplitz:
    """DP-λCGD: C⁻¹ = LTT(1, −λ) and C = LTT(λ^j); the noise of the last round is partly taken back.

    For n = kb, sens_{k,b}(C)² = (1 − λ^{2b}) / ((1 − λ²)(1 − λ^b)²) · Σ_{j=1..k} (1 − λ^{bj})².

    Args:
        decay: λ in [0, 1).
        rounds: n.

    Raises:
        ValueError: λ is out of range.

    References:
        Kalinin, McKenna, Pagh & Lampert (2026), arXiv:2601.22334, eq. (14).

    >>> cgd(0.5, 3).strategy
    array([1.  , 0.5 , 0.25])
    """
    if not 0 <= decay < 1:
        raise ValueError(f"lambda (noise cancelled per round) must be in [0, 1); got {decay}.")
    return InverseToeplitz(np.array([1.0, -decay])[: _horizon(rounds)], rounds)


def nu_ftrl(nu: float, rounds: int) -> InverseToeplitz:
    """ν-DP-FTRL: C⁻¹ = LTT((1 − (1−ν)x)^{1/2}), C = LTT((1 − (1−ν)x)^{−1/2}).

    ν → 0 is the square root, ν = 1 the identity. The coefficients do not depend on the horizon.

    Args:
        nu: ν in (0, 1].
        rounds: n.

    Raises:
        ValueError: ν is out of range.

    References:
        Choquette-Choo, Dvijotham, Pillutla, Ganesh, Steinke & Thakurta (2024), arXiv:2310.06771.

    >>> nu_ftrl(0.5, 3).strategy
    array([1.     , 0.25   , 0.09375])
    """
    if not 0 < nu <= 1:
        raise ValueError(f"nu (damping) must be in (0, 1]; got {nu}. The limit nu = 0 is square-root.")
    powers = (1.0 - nu) ** np.arange(_horizon(rounds))
    return InverseToeplitz(binomial_series(0.5, rounds) * powers, rounds)


def one_parameter(shift: float, bands: int, rounds: int) -> Toeplitz:
    """The banded Toeplitz family C ∝ LTT(1/i + c), i = 1 … p, scaled to a unit diagonal.

    Args:
        shift: c > −1, of either sign.
        bands: p, 1 ≤ p ≤ n.
        rounds: n.

    Raises:
        ValueError: c or p is out of range.

    References:
        McKenna (2024), "Scaling up the Banded Matrix Factorization Mechanism", Appendix J.

    >>> one_parameter(0.0, 3, 3).strategy
    array([1.        , 0.5       , 0.33333333])
    """
    if not -1 < shift < float("inf"):
        raise ValueError(
            f"c (shift) must be finite and above -1; got {shift}. The diagonal 1 + c must be positive."
        )
    i = np.arange(1, _bandwidth(bands, rounds) + 1)
    return Toeplitz((1.0 / i + shift) / (1.0 + shift), rounds)


def optimal_diagonal(rounds: int) -> Diagonal:
    """C = diag((n − t)^{1/4}), t = 0 … n−1: the best independent noise for prefix sums if k = n and b = 1.

    Minimises Σ_t (n − t)/d_t² · Σ_t d_t² (Cauchy–Schwarz: d_t² ∝ √(n − t)).

    >>> optimal_diagonal(16).entries[[0, -1]]
    array([2., 1.])
    """
    return Diagonal(np.arange(_horizon(rounds), 0, -1, dtype=np.float64) ** 0.25)


def _horizon(rounds: int) -> int:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"n (rounds) must be an integer of at least 1; got {rounds!r}.")
    return rounds


def _bandwidth(bands: int, rounds: int) -> int:
    if isinstance(bands, bool) or not isinstance(bands, int) or not 1 <= bands <= _horizon(rounds):
        raise ValueError(f"p (bands) must be an integer between 1 and n={rounds}; got {bands!r}.")
    return bands


def _fraction(gamma: float) -> float:
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma (exponent) must be in (0, 1]; got {gamma}.")
    return gamma


def power_series(workload: ToeplitzWorkload, exponent: float, terms: int) -> Vector:
    """The first coefficients of (a(x)/a_0)^γ, shape (terms,).

    >>> from fedmf.mechanisms.workload import momentum
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

    >>> from fedmf.mechanisms.workload import prefix
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

    >>> from fedmf.mechanisms.workload import parse_workload
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

    >>> from fedmf.mechanisms.workload import momentum
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

    >>> from fedmf.mechanisms.workload import prefix
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

    >>> from fedmf.mechanisms.workload import prefix
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


def _rate_power(request: DesignRequest, values: Values, error: Error, accuracy: Accuracy) -> float:
    if request.workload.column_weights is None:
        return 0.0
    return best_on_interval(lambda n, p: (0.0, 1.0), lambda u, p: u)(request, values, error, accuracy)


_FREE_ALPHA = Free(Parameter("alpha", "power of the learning rates in the columns"), _rate_power)

register(
    Family(
        "identity",
        "independent noise of one size, as in DP-FedAvg",
        lambda ask, v: identity(ask.rounds),
        largest_normalized_compared=0,
        also=("dp-sgd", "dp-fedavg", "independent"),
    ),
    Family(
        "square-root",
        "the square root of the workload",
        lambda ask, v: inverse_power(ask.workload, 0.5, ask.rounds),
    ),
    Family(
        "bsr",
        "the first p coefficients of the square root",
        lambda ask, v: strategy_power(ask.workload, 0.5, v["bands"]),
        (FREE_BANDS,),
    ),
    Family(
        "bisr",
        "the first p coefficients of the inverse square root, as an inverse",
        lambda ask, v: inverse_power(ask.workload, 0.5, v["bands"]),
        (FREE_BANDS,),
    ),
    Family(
        "bifr",
        "bisr with another exponent than 1/2",
        lambda ask, v: inverse_power(ask.workload, v["gamma"], v["bands"]),
        (FREE_BANDS, FREE_GAMMA),
    ),
    Family(
        "bfr",
        "bsr with another exponent than 1/2",
        lambda ask, v: strategy_power(ask.workload, v["gamma"], v["bands"]),
        (FREE_BANDS, FREE_GAMMA),
    ),
    Family(
        "rated-bfr",
        "bfr with columns scaled by a power of the learning rates",
        lambda ask, v: rated_power(ask.workload, v["gamma"], v["bands"], v["alpha"]),
        (Free(BANDS, at_once(lambda ask, v: ask.separation)), FREE_GAMMA, _FREE_ALPHA),
        largest=131_072,
        largest_compared=16_384,
    ),
    Family(
        "cgd",
        "takes back a share of the last round's noise",
        lambda ask, v: cgd(v["lambda"], ask.rounds),
        (FREE_LAMBDA,),
        also=("lambda-cgd",),
    ),
    Family(
        "nu-ftrl", "the square root, damped", lambda ask, v: damped_root(ask.workload, v["nu"]), (FREE_NU,)
    ),
    Family(
        "one-parameter",
        "coefficients 1/i + c",
        lambda ask, v: one_parameter(v["c"], v["bands"], ask.rounds),
        (FREE_BANDS, FREE_SHIFT),
    ),
    Family(
        "shifted-root",
        "coefficients of the square root plus c",
        lambda ask, v: shifted_root(ask.workload, v["c"], v["bands"]),
        (FREE_BANDS, FREE_ROOT_SHIFT),
    ),
)
