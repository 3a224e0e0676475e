"""Factorizations in closed form: truncated powers of a workload's series and of its inverse.

For a Toeplitz workload a(x) = Σ a_j x^j, and (1 − x)^{−1} for prefix sums, C is a power of a(x)/a_0
cut after p terms, or C⁻¹ one of a_0/a(x). Row weights do not enter, except in the diagonal; column
weights neither.
"""

from __future__ import annotations

import math

import numpy as np

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.series import check_count
from fedmf.matrices.toeplitz import ColumnScaled, Diagonal, InverseToeplitz, Toeplitz
from fedmf.mechanisms.power_series import factored_power, power
from fedmf.mechanisms.registry import (
    BANDS,
    SEARCHED_BANDS,
    DesignRequest,
    Error,
    MechanismFamily,
    Parameter,
    SearchedParameter,
    Values,
    best_on_interval,
    register,
    without_search,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix


def identity(rounds: int) -> Toeplitz:
    """C = I: independent noise in every round, as in DP-FedAvg.

    >>> identity(2).materialize()
    array([[1., 0.],
           [0., 1.]])
    """
    return Toeplitz(np.ones(1), rounds)


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
    """γ-BFR, and BSR for γ = ½: C = the first p coefficients of (a(x)/a_0)^γ.

    Args:
        workload: A of n rounds.
        gamma: γ in (0, 1].
        bands: p, 1 ≤ p ≤ n.

    Raises:
        ValueError: γ or p is out of range.

    References:
        Kalinin & Lampert (2024), "Banded Square Root Matrix Factorization"; "Beyond Square Roots"
        (2026).

    >>> strategy_power(prefix(3), 0.5, 2).strategy_coefs
    array([1. , 0.5, 0. ])
    """
    return Toeplitz(_checked_power(workload, gamma, 1.0, bands), workload.rounds)


def inverse_power(workload: ToeplitzWorkload, gamma: float, bands: int) -> InverseToeplitz:
    """γ-BIFR, and BISR for γ = ½: C⁻¹ = the first p coefficients of (a(x)/a_0)^{−γ}.

    Raises:
        ValueError: γ or p is out of range.

    References:
        Kalinin et al. (2025), "Back to square roots"; "Beyond Square Roots" (2026).

    >>> from fedmf.mechanisms.workload import momentum
    >>> inverse_power(momentum(0.5, 3), 0.5, 2).noising_coefs
    array([ 1.  , -0.75,  0.  ])
    """
    return InverseToeplitz(_checked_power(workload, gamma, -1.0, bands), workload.rounds)


def square_root(rounds: int) -> InverseToeplitz:
    """C = LTT((1 − x)^{−1/2}), the square root of the prefix workload.

    Streamed through C⁻¹ = LTT((1 − x)^{1/2}), which stores no vectors and draws all past noise
    again.

    References:
        Fichtenberger, Henzinger & Upadhyay (2023), "Constant Matters".

    >>> square_root(4).strategy_coefs
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    return bifr(0.5, rounds, rounds)


def bsr(bands: int, rounds: int) -> Toeplitz:
    """Banded square root: C has the first p coefficients of (1 − x)^{−1/2}."""
    return bfr(0.5, bands, rounds)


def bisr(bands: int, rounds: int) -> InverseToeplitz:
    """Banded inverse square root: C⁻¹ has the first p coefficients of (1 − x)^{1/2}.

    >>> bisr(2, 3).strategy_coefs
    array([1.  , 0.5 , 0.25])
    """
    return bifr(0.5, bands, rounds)


def bifr(gamma: float, bands: int, rounds: int) -> InverseToeplitz:
    """γ-BIFR of prefix sums: C⁻¹ has the first p coefficients of (1 − x)^γ.

    For p = 2 it is DP-λCGD with λ = γ.

    >>> bifr(0.9, 2, 3).noising_coefs
    array([ 1. , -0.9,  0. ])
    """
    return inverse_power(prefix(check_count(rounds, "n (rounds)")), gamma, bands)


def bfr(gamma: float, bands: int, rounds: int) -> Toeplitz:
    """γ-BFR of prefix sums: C has the first p coefficients of (1 − x)^{−γ}.

    >>> bfr(1.0, 2, 3).strategy_coefs
    array([1., 1., 0.])
    """
    return strategy_power(prefix(check_count(rounds, "n (rounds)")), gamma, bands)


def rated_power(
    workload: ToeplitzWorkload, gamma: float, bands: int, alpha: float
) -> Toeplitz | ColumnScaled:
    """γ-BFR for learning rates η: `strategy_power` with column j multiplied by (η_j/η_0)^α.

    A round with a smaller weight gets more noise, for a smaller sensitivity. α = 1 leaves the error
    of A without rates, α = 0 is γ-BFR; for k = n, b = 1 the best diagonal has about α = ½. For
    falling rates its worst pattern is the earliest, as for γ-BFR (docs/theory/mechanisms.md).

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
    plain = strategy_power(workload, gamma, bands)
    rates = workload.column_weights
    if rates is None or alpha == 0.0:
        return plain
    return plain.columns_divided_by((rates / rates[0]) ** -alpha)


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

    >>> cgd(0.5, 3).strategy_coefs
    array([1.  , 0.5 , 0.25])
    """
    if not 0 <= decay < 1:
        raise ValueError(f"lambda (noise cancelled per round) must be in [0, 1); got {decay}.")
    return InverseToeplitz(np.array([1.0, -decay])[: check_count(rounds, "n (rounds)")], rounds)


def damped_root(workload: ToeplitzWorkload, nu: float) -> InverseToeplitz:
    """C = the square root of the workload with coefficient j multiplied by (1 − ν)^j.

    Raises:
        ValueError: ν is outside (0, 1].
    """
    if not 0 < nu <= 1:
        raise ValueError(
            f"nu (damping) must be in (0, 1]; got {nu}. The limit nu = 0 is square-root."
        )
    n = workload.rounds
    return InverseToeplitz(power_series(workload, -0.5, n) * (1.0 - nu) ** np.arange(n), n)


def nu_ftrl(nu: float, rounds: int) -> InverseToeplitz:
    """ν-DP-FTRL: C⁻¹ = LTT((1 − (1−ν)x)^{1/2}), C = LTT((1 − (1−ν)x)^{−1/2}).

    ν → 0 is the square root, ν = 1 the identity. The coefficients do not depend on the horizon.

    References:
        Choquette-Choo, Dvijotham, Pillutla, Ganesh, Steinke & Thakurta (2024), arXiv:2310.06771.

    >>> nu_ftrl(0.5, 3).strategy_coefs
    array([1.     , 0.25   , 0.09375])
    """
    return damped_root(prefix(check_count(rounds, "n (rounds)")), nu)


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

    >>> one_parameter(0.0, 3, 3).strategy_coefs
    array([1.        , 0.5       , 0.33333333])
    """
    i = np.arange(1, check_count(bands, "p (bands)", check_count(rounds, "n (rounds)")) + 1)
    return Toeplitz(_shifted(1.0 / i, shift), rounds)


def shifted_root(workload: ToeplitzWorkload, shift: float, bands: int) -> Toeplitz:
    """C ∝ the first p coefficients of the square root of the workload, each plus c; unit diagonal.

    The best one-parameter family of those tried, from p = 16 on. For prefix sums in 13
    settings (n = 500 … 10⁵, k = 1 … 100, p = 4 … 500 ≤ b) its RMSE with the best c is 0.14 % above
    the optimal banded Toeplitz matrix on average and 0.71 % at most; 1/i + c is 1.75 % above (8.1 %
    at most, but up to 0.04 % better at p = 4 and 8), γ-BFR 0.39 % (1.4 %), (1 + cj)^{−1/2} 1.43 %
    (5.2 %), (1 + j)^{−c} 1.52 % (3.6 %).

    Args:
        workload: A of n rounds.
        shift: c > −1, of either sign.
        bands: p, 1 ≤ p ≤ n.

    Raises:
        ValueError: c or p is out of range.

    >>> shifted_root(prefix(3), 0.25, 2).strategy_coefs
    array([1. , 0.6, 0. ])
    """
    return Toeplitz(_shifted(_checked_power(workload, 0.5, 1.0, bands), shift), workload.rounds)


def workload_diagonal(workload: ToeplitzWorkload) -> Diagonal:
    """The best independent noise for k = n and b = 1: C = diag(α_t^{1/4}) with α = diag(AᵀA).

    This is by Cauchy–Schwarz. Rounds that enter no query (α_t = 0) get the least positive entry.
    """
    squares = np.maximum(workload.column_squares(), 0.0)
    return Diagonal(np.maximum(squares, squares[squares > 0].min()) ** 0.25)


def _checked_power(workload: ToeplitzWorkload, gamma: float, sign: float, bands: int) -> Vector:
    check_count(bands, "p (bands)", workload.rounds)
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma (exponent) must be in (0, 1]; got {gamma}.")
    return power_series(workload, sign * gamma, bands)


def _shifted(coefficients: Vector, shift: float) -> Vector:
    if not -1 < shift < math.inf:
        raise ValueError(
            f"c (shift) must be finite and above -1; got {shift}. The diagonal 1 + c must be"
            " positive."
        )
    return (coefficients + shift) / (1.0 + shift)


def _searched_shift(reach: float) -> SearchedParameter:
    """The parameter c = ±(10^|u| − 1)·p^{−reach}, searched over u, whose sign it has.

    The last of p coefficients is about p^{−reach}, so that this is the scale on which c matters.
    """

    def interval(rounds: int, bands: int) -> tuple[float, float]:
        if bands == 1:
            return 0.0, 0.0
        return -1.0, 4.0

    def shift(u: float, bands: int) -> float:
        return max(math.copysign(10 ** abs(u) - 1, u) / bands**reach, -0.9)

    return SearchedParameter(
        Parameter("c", "shift added to every coefficient"), best_on_interval(interval, shift)
    )


def _rate_power(request: DesignRequest, values: Values, error: Error) -> float:
    if request.workload.column_weights is None:
        return 0.0
    return best_on_interval(lambda n, p: (0.0, 1.0), lambda u, p: u)(request, values, error)


_GAMMA = SearchedParameter(
    Parameter("gamma", "exponent of the workload"),
    best_on_interval(lambda n, p: (0.01, 1.0), lambda u, p: u),
)
_ALPHA = SearchedParameter(
    Parameter("alpha", "power of the learning rates in the columns"), _rate_power
)
_LAMBDA = SearchedParameter(
    Parameter("lambda", "share of the last round's noise that is taken back"),
    best_on_interval(lambda n, p: (0.0, math.log(10.0 * n)), lambda u, p: -math.expm1(-u)),
)
_NU = SearchedParameter(
    Parameter("nu", "damping of the square root"),
    best_on_interval(lambda n, p: (math.log(1e-3 / n), 0.0), lambda u, p: math.exp(u)),
)


def _power(request: DesignRequest, values: Values) -> Factorization:
    return strategy_power(request.workload, values.get("gamma", 0.5), values["bands"])


def _inverse(request: DesignRequest, values: Values) -> Factorization:
    return inverse_power(
        request.workload, values.get("gamma", 0.5), values.get("bands", request.rounds)
    )


register(
    MechanismFamily(
        "identity",
        "independent noise of one size, as in DP-FedAvg",
        lambda request, values: identity(request.rounds),
        compares_normalized=False,
        aliases=("dp-sgd", "dp-fedavg", "independent"),
    ),
    MechanismFamily("square-root", "the square root of the workload", _inverse),
    MechanismFamily(
        "bsr", "the first p coefficients of the square root", _power, (SEARCHED_BANDS,)
    ),
    MechanismFamily(
        "bisr",
        "the first p coefficients of the inverse square root, as an inverse",
        _inverse,
        (SEARCHED_BANDS,),
    ),
    MechanismFamily(
        "bifr", "bisr with another exponent than 1/2", _inverse, (SEARCHED_BANDS, _GAMMA)
    ),
    MechanismFamily("bfr", "bsr with another exponent than 1/2", _power, (SEARCHED_BANDS, _GAMMA)),
    MechanismFamily(
        "rated-bfr",
        "bfr with columns scaled by a power of the learning rates",
        lambda request, values: rated_power(
            request.workload, values["gamma"], values["bands"], values["alpha"]
        ),
        (
            SearchedParameter(BANDS, without_search(lambda request, values: request.separation)),
            _GAMMA,
            _ALPHA,
        ),
        max_rounds=131_072,
        max_rounds_compared=16_384,
    ),
    MechanismFamily(
        "cgd",
        "takes back a share of the last round's noise",
        lambda request, values: cgd(values["lambda"], request.rounds),
        (_LAMBDA,),
        aliases=("lambda-cgd",),
    ),
    MechanismFamily(
        "nu-ftrl",
        "the square root, damped",
        lambda request, values: damped_root(request.workload, values["nu"]),
        (_NU,),
    ),
    MechanismFamily(
        "one-parameter",
        "coefficients 1/i + c",
        lambda request, values: one_parameter(values["c"], values["bands"], request.rounds),
        (SEARCHED_BANDS, _searched_shift(1.0)),
    ),
    MechanismFamily(
        "shifted-root",
        "coefficients of the square root plus c",
        lambda request, values: shifted_root(request.workload, values["c"], values["bands"]),
        (SEARCHED_BANDS, _searched_shift(0.5)),
    ),
)
