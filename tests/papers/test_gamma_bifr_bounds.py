"""γ-BIFR: the bounds that its proofs give, with constants, against exact values.

The formulas are lost in the text; its proofs say which inequality each step uses, so that they can be written
down again. w are the p coefficients of (1 − x)^γ, c those of C = LTT(w)⁻¹, r those of (1 − x)^{−γ}.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.special import gamma as gamma_function

from fedmf.mechanisms.closed_forms import bifr
from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

Vector = NDArray[np.float64]
GAMMAS = (0.05, 0.3, 0.5, 0.7, 0.95)
BANDS = (2, 3, 8, 64)


def powers(exponent: float, count: int) -> Vector:
    """Coefficients of (1 − x)^{−exponent}."""
    j = np.arange(1.0, count)
    return np.concatenate([[1.0], np.cumprod((j - 1.0 + exponent) / j)])


def column(gamma: float, p: int, n: int) -> Vector:
    """c, by the recursion of the inverse."""
    impulse = np.zeros(n)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], powers(-gamma, min(p, n)), impulse))


def factors(gamma: float, p: int, n: int, k: int) -> tuple[float, float]:
    """‖A C⁻¹‖_F/√n and sens(C) for b = n/k."""
    sums = np.cumsum(powers(-gamma, p))
    diagonals = np.concatenate([sums, np.full(n - p, sums[-1])])
    c, b = column(gamma, p, n), n // k
    total = np.cumsum(c.reshape(k, b), axis=0).ravel()
    return math.sqrt(float(np.arange(n, 0, -1) @ diagonals**2) / n), float(np.linalg.norm(total))


def share_lost(gamma: float, p: int) -> float:
    """δ = 1 − (p/(2p − 1))^{(1−γ)/p}."""
    return 1.0 - (p / (2.0 * p - 1.0)) ** ((1.0 - gamma) / p)


def power_sum_bound(s: float, p: int) -> float:
    """Lemma 7: above Σ_{j<p} j^{−s}."""
    if s == 1.0:
        return 1.0 + math.log(p - 1.0)
    return (p - 1.0) ** (1.0 - s) / (1.0 - s) if s < 1.0 else s / (s - 1.0)


def error_bound(gamma: float, p: int, n: int) -> float:
    """Lemma 9: above ‖A C⁻¹‖_F/√n."""
    scale = gamma_function(1.0 - gamma) ** -2
    tail = 0.5 * n * (p - 1.0) ** (-2.0 * gamma)
    return math.sqrt(1.0 + scale * (power_sum_bound(2.0 * gamma, p) + tail))


def euclidean_bound(gamma: float, p: int) -> float:
    """Lemma 10: above ‖C‖_{1→2}."""
    body = power_sum_bound(2.0 - 2.0 * gamma, p)
    tail = (p - 1.0) ** (2.0 * gamma - 2.0) / (2.0 * share_lost(gamma, p))
    return math.sqrt(1.0 + (body + tail) / gamma_function(gamma) ** 2)


def absolute_bound(gamma: float, p: int) -> float:
    """Lemma 11: above ‖C‖_{1→1}."""
    body, tail = power_sum_bound(1.0 - gamma, p), (p - 1.0) ** (gamma - 1.0) / share_lost(gamma, p)
    return 1.0 + (body + tail) / gamma_function(gamma)


def sensitivity_bound(gamma: float, p: int, n: int, k: int) -> float:
    """Corollary 2, from Lemma 2: √k‖C‖_{1→2} + √(k/b)‖C‖_{1→1}."""
    return math.sqrt(k) * euclidean_bound(gamma, p) + k / math.sqrt(n) * absolute_bound(gamma, p)


def bisr_rate(p: int, n: int, k: int) -> float:
    """Theorem 2, (7)."""
    b, log = n / k, math.log(p)
    near = math.sqrt(k) * log + math.sqrt(k * p * log / b)
    return near + math.sqrt(n * k * log / p) + math.sqrt(n * k / b)


def rmse(gamma: float, p: int, n: int, k: int) -> float:
    """Of γ-BIFR for b = n/k."""
    return math.prod(factors(gamma, p, n, k))


def settings(*, largest: int = 2**16) -> list[tuple[int, int, int]]:
    """(p, n, k) with p ≤ b."""
    horizons = [n for n in (2**8, 2**12, 2**16) if n <= largest]
    return [
        (p, n, k) for n in horizons for k in (1, 8, 64) for p in (2, 8, 64, 512) if p <= n // k
    ]  # fmt: skip


def test_the_numbers_are_those_of_the_package() -> None:
    C, contract = bifr(0.7, 5, 240), Participation(240, 4, 60)
    np.testing.assert_allclose(column(0.7, 5, 240), C.columns([0])[:, 0], rtol=1e-10)
    assert rmse(0.7, 5, 240, 4) == pytest.approx(
        errors(C, prefix(240), stated_sensitivity(C, contract)).rmse, rel=1e-10
    )


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("p", BANDS)
def test_lemma_6_geometric_tail(gamma: float, p: int) -> None:
    """c_j ≤ r_{p−1}(1 − δ)^{j−p+1} from j = p − 1 on, and (1 − γ)/(3p) ≤ δ ≤ log 2·(1 − γ)/p.

    r is log-convex and r_{2p−1}/r_{p−1} ≤ (p/(2p − 1))^{1−γ}, so it holds up to j = 2p − 1. It goes on if
    Σ_{i<p} |w_i| (1 − δ)^{−i} ≤ 1: with i|w_i| = γ·(coefficient i − 1 of exponent 1 − γ) that is so for every
    δ up to 1 − γ^{1/(p−1)}, which is larger.
    """
    n, delta = 40 * p, share_lost(gamma, p)
    c, w = column(gamma, p, n), powers(-gamma, p)
    from_last = np.arange(n - p + 1)
    anchor = powers(gamma, p)[-1]
    assert (c[p - 1 :] <= anchor * (1 - delta) ** from_last * (1 + 1e-12)).all()
    assert (1 - gamma) / (3 * p) <= delta <= math.log(2) * (1 - gamma) / p
    largest = 1 - gamma ** (1 / (p - 1))
    assert delta <= largest
    i = np.arange(1.0, p)
    for kept in (1 - delta, 1 - largest):
        assert np.abs(w[1:]) @ kept**-i <= 1 + 1e-12
    # What is lost a step in the end is of this order too.
    lasting = float(brentq(lambda x: float(np.abs(w[1:]) @ x**-i) - 1, 1e-4, 1.0))
    assert delta < 1 - lasting < 30 * delta


@pytest.mark.parametrize("s", [0.0, 0.3, 0.9, 1.0, 1.1, 1.9, 4.0])
def test_lemma_7_power_sums(s: float) -> None:
    """Exact sums by Hurwitz's zeta function; the integral is at most 1 below the bound for s ≤ 1."""
    for p in (2, 3, 10, 1000, 10**6):
        total = float(mpmath.harmonic(p - 1) if s == 1.0 else mpmath.zeta(s) - mpmath.zeta(s, p))
        bound = power_sum_bound(s, p)
        assert total <= bound * (1 + 1e-12)
        if s > 1.0:
            assert float(mpmath.zeta(s)) <= bound
        else:
            # By comparison with ∫₁^p the sum is at least the bound less s/(1 − s), or less 1.
            assert total >= bound - (1.0 if s == 1.0 else s / (1 - s) + 1) - 1e-9


def test_lemma_8_facts_about_gamma() -> None:
    """Γ(1 + x) = xΓ(x); 0.885 ≤ Γ(1 + x) ≤ 1 on [0, 1], so x ≤ 1/Γ(x) ≤ 1.13x and 1/Γ ≤ 1 up to 2·0.885."""
    least = mpmath.findroot(mpmath.digamma, 1.46)
    assert float(mpmath.gamma(least)) == pytest.approx(0.8856, abs=1e-4)
    for x in np.linspace(1e-6, 1.0, 301):
        value = mpmath.gamma(float(x))
        assert mpmath.almosteq(mpmath.gamma(1 + float(x)), float(x) * value)
        assert 0.8856 <= float(x) * float(value) <= 1 + 1e-12
        assert x * (1 - 1e-12) <= 1 / float(value) <= 1.13 * x
        assert float(mpmath.gamma(float(1 + x))) <= 1 + 1e-12


@pytest.mark.parametrize("gamma", GAMMAS)
def test_lemmas_10_and_11_column_norms(gamma: float) -> None:
    """Both bounds hold for every n, of the order of the norms: O(1), O(√log p), O(p^{γ−½}); O(p^γ)."""
    ratios = []
    for p in (4, 16, 64, 256):
        c = column(gamma, p, int(40 * p / (1 - gamma)))
        two, one = float(np.linalg.norm(c)), float(c.sum())
        assert two <= euclidean_bound(gamma, p)
        assert one <= absolute_bound(gamma, p)
        # Σc = 1/Σw in the limit, by Corollary 1.
        assert one == pytest.approx(1 / powers(1 - gamma, p)[-1], rel=1e-3)
        s = 2 - 2 * gamma
        order = 1.0 if s > 1 else math.sqrt(math.log(p)) if s == 1 else p ** (gamma - 0.5)
        ratios.append(
            (euclidean_bound(gamma, p) / two, absolute_bound(gamma, p) / one, two / order, one / p**gamma)
        )
    for one_ratio in zip(*ratios, strict=True):
        assert max(one_ratio) < 2.2 * min(one_ratio)
    assert max(ratio[0] for ratio in ratios) < 2
    assert max(ratio[1] for ratio in ratios) < 3


@pytest.mark.parametrize("gamma", GAMMAS)
def test_corollary_2_sensitivity(gamma: float) -> None:
    """Above the sensitivity of the earliest pattern within a factor that n does not raise."""
    ratios = {}
    for p, n, k in settings(largest=2**12):
        exact = factors(gamma, p, n, k)[1]
        ratios[p, n, k] = sensitivity_bound(gamma, p, n, k) / exact
    assert min(ratios.values()) >= 1
    for p, n, k in ratios:
        if (p, n * 16, k) in ratios:
            assert ratios[p, n * 16, k] <= 1.05 * ratios[p, n, k]


@pytest.mark.parametrize("gamma", GAMMAS)
def test_corollary_3_rmse(gamma: float) -> None:
    """The product of both bounds is above the RMSE, within a factor that is the same for all p, n and k."""
    ratios = []
    for p, n, k in settings(largest=2**12):
        bound = error_bound(gamma, p, n) * sensitivity_bound(gamma, p, n, k)
        ratios.append(bound / rmse(gamma, p, n, k))
    assert min(ratios) >= 1
    assert max(ratios) < 12


def test_theorem_2_rate_of_bisr() -> None:
    """RMSE = O(√k log p + √(kp log p/b) + √(nk log p/p) + √(nk/b)): ratios from 0.21 to 0.69."""
    ratios = [rmse(0.5, p, n, k) / bisr_rate(p, n, k) for p, n, k in settings()]
    assert len(ratios) > 20
    assert min(ratios) > 0.2
    assert max(ratios) < 0.7


def test_theorem_3_rates_of_gamma_bifr() -> None:
    """BISR's rate for γ = ½ ± 1/(4 log p); for p ≤ ½√n DP-λCGD's, √k n^{1/4} + k, at γ = 1 − p/√n."""
    for p, n, k in settings():
        for gamma in (0.5 - 0.25 / math.log(p), 0.5 + 0.25 / math.log(p)):
            assert 0.15 < rmse(gamma, p, n, k) / bisr_rate(p, n, k) < 1.1
    ratios, gains = [], []
    for p, n, k in settings():
        if p > 0.5 * math.sqrt(n):
            continue
        second = math.sqrt(k) * n**0.25 + k
        ratios.append(rmse(1 - p / math.sqrt(n), p, n, k) / second)
        gains.append(second / bisr_rate(p, n, k))
    assert min(ratios) > 0.4
    assert max(ratios) < 0.9
    assert max(gains) < 0.7
    assert min(gains) < 0.15
