"""Factorizations known in closed form, and the exact formulas that go with them.

(1 − x)^{−1} is the series of the prefix workload; its fractional powers and their truncations give most.
"""

from __future__ import annotations

import numpy as np

from fedmf.factorization.algebra import binomial_series
from fedmf.factorization.matrices.toeplitz import Diagonal, InverseToeplitz, Toeplitz


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
