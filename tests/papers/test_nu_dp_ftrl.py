"""ν-DP-FTRL (arXiv:2310.06771): its bounds against exact limits, and the integrals behind them."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ellipk, elliprf, elliprj

from fedmf.mechanisms.closed_forms import nu_ftrl

FOLDER = Path(__file__).parents[2] / "simulations" / "stationary"
sys.path.insert(0, str(FOLDER))
exact = importlib.import_module("exact")
sys.path.remove(str(FOLDER))

SPECTRA = {"1/k": 1.0, "flat": 0.0, "1/k²": 2.0}
NOISES = {
    "white": exact.WHITE, "damped": exact.DAMPED(0.002), "much damped": exact.DAMPED(0.1),
    "anti-PGD": exact.ANTI_PGD(0.05),
}  # fmt: skip


def distance(a: float, omega: float) -> float:
    """|1 − a − e^{iω}|²."""
    return a * a + 4.0 * (1.0 - a) * math.sin(omega / 2) ** 2


def over_circle(integrand: Callable[[float], float]) -> float:
    """∫_{−π}^{π}, by twice the half."""
    return 2.0 * sum(
        quad(integrand, low, high, limit=400, epsabs=0, epsrel=1e-10)[0]
        for low, high in ((0.0, 1e-3), (1e-3, 0.05), (0.05, math.pi))
    )


def kernel(problem: Any, noise: Any) -> float:
    """⟨β, Tβ⟩ = Σ_j Σ_{t,τ} β_t β_τ (1 − ηλ_j)^{|t−τ|}, by its spectral density."""
    total = 0.0
    for step in problem.learning_rate * problem.spectrum:
        density = (
            over_circle(lambda w, a=step: float(noise.power(np.array([w]))[0]) / distance(a, w))
            * step
            * (2.0 - step)
        )
        total += density / (2.0 * math.pi)
    return total


def integral(problem: Any, noise: Any) -> float:
    """∫ |B|² h dω with h(ω) = Σ_j λ_j/|1 − e^{iω} − ηλ_j|²."""
    return sum(
        value * over_circle(
            lambda w, a=problem.learning_rate * value: float(noise.power(np.array([w]))[0]) / distance(a, w)
        )
        for value in problem.spectrum
    )  # fmt: skip


def test_theorems_c14_c15_c18_bound_the_exact_limit() -> None:
    """Gaussian inputs: R² = 3 Tr H and C_kurt = 3 (Property C.3); G = ρ = 1, residual variance 0.3."""
    for name in NOISES:
        for spectrum in SPECTRA:
            d, residual, noise = 6, 0.3, NOISES[name]
            eigenvalues = np.arange(1.0, d + 1) ** -SPECTRA[spectrum]
            trace = float(eigenvalues.sum())
            eta = 0.1 / trace
            problem = exact.Regression(tuple(eigenvalues.tolist()), eta, residual=residual)
            limit, square = problem.limit(noise), 3.0 * trace
            gamma = noise.sensitivity_square()
            time, frequency = kernel(problem, noise), integral(problem, noise)
            shrink = (1.0 - eta * square) ** -2
            assert limit <= (1 + shrink) * eta * square * residual + (1 + 3 * shrink) * eta * gamma / 2 * time
            assert limit <= (
                (1 + shrink) * eta * square * residual
                + (1 + 3 * shrink) * eta**2 * gamma / (2 * math.pi) * frequency
            )
            # Theorem C.18 is for E‖θ − θ*‖²_H, the objective (22) without ½: twice F_∞ (see the errata).
            low = eta * residual / 2 * trace
            assert 2 * limit >= low + eta**2 * gamma / (4 * math.pi) * frequency * (1 - 1e-9)
            assert 2 * limit >= low + eta * gamma / 4 * time / 2 * (1 - 1e-9)
            assert 2 * limit >= (2 * eta * residual + eta**2 / 2) * trace / 4


def test_theorem_c18_as_printed_exceeds_the_limit() -> None:
    """With the ½ of (8), as Theorem C.14 has it, white noise and small steps are below the printed bound."""
    problem = exact.Regression((1.0, 0.5), 0.001, residual=0.3)
    printed = 0.001 * 0.3 / 2 * 1.5 + 0.001**2 / (4 * math.pi) * integral(problem, exact.WHITE)
    assert problem.limit(exact.WHITE) < 0.6 * printed


@pytest.mark.parametrize("step", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("name", NOISES)
def test_lemmas_c4_to_c6_time_and_frequency(step: float, name: str) -> None:
    """½⟨β, T_jβ⟩ ≤ (ηλ/2π)∫|B|²/|1 − ηλ − e^{iω}|² ≤ ⟨β, T_jβ⟩, which is not negative; β from its series."""
    noise = NOISES[name]
    beta = noise.coefficients(4000)
    decay, carried, product = 1.0 - step, 0.0, 0.0
    for value in beta:
        product += value * (value + 2.0 * carried)
        carried = decay * (carried + value)
    frequency = (
        step / (2 * math.pi) * over_circle(lambda w: float(noise.power(np.array([w]))[0]) / distance(step, w))
    )
    assert product >= 0
    assert product / 2 * (1 - 1e-6) <= frequency <= product * (1 + 1e-6)


@pytest.mark.parametrize("nu", [0.5, 0.05, 0.003])
def test_property_c1_the_limiting_sensitivity(nu: float) -> None:
    """γ_∞² = (1/2π)∫dω/|B|² is the squared length of C's first column as n grows."""
    noise = exact.DAMPED(nu)
    by_integral = over_circle(lambda w: 1.0 / float(noise.power(np.array([w]))[0])) / (2 * math.pi)
    column = nu_ftrl(nu, 20_000).columns([0])[:, 0]
    assert noise.sensitivity_square() == pytest.approx(by_integral, rel=1e-8)
    assert float(column @ column) == pytest.approx(by_integral, rel=1e-6)


def test_property_c3_fourth_moments_of_gaussian_inputs() -> None:
    """E‖x‖²xxᵀ = 2H² + Tr(H)H ⪯ 3Tr(H)H and E xxᵀMxxᵀ = 2HMH + Tr(HM)H ⪯ 3Tr(P)H, by Gauss–Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    weights = weights / weights.sum()
    eigenvalues = np.array([1.0, 0.4, 0.1])
    grid = np.array(np.meshgrid(nodes, nodes, nodes, indexing="ij")).reshape(3, -1)
    mass = np.einsum("i,j,k->ijk", weights, weights, weights).ravel()
    x = grid * np.sqrt(eigenvalues)[:, None]
    H, P = np.diag(eigenvalues), np.diag([0.2, 1.0, 3.0])
    M = P / eigenvalues
    first = np.einsum("m,im,jm,km,km->ij", mass, x, x, x, x)
    np.testing.assert_allclose(first, 2 * H @ H + H.trace() * H, atol=1e-12)
    second = np.einsum("m,im,jm,km,kl,lm->ij", mass, x, x, x, M, x)
    np.testing.assert_allclose(second, 2 * H @ M @ H + P.trace() * H, atol=1e-12)
    assert np.linalg.eigvalsh(3 * P.trace() * H - second).min() >= -1e-12


@pytest.mark.parametrize("a", [0.001, 0.1, 0.9])
def test_lemma_c21_i_and_the_elliptic_integrals(a: float) -> None:
    """∫dω/|1 − a − e^{iω}| = (4/(2 − a))K(√(1 − a)/(1 − a/2)) ≤ 5 log(8/a) (F.15, F.10)."""
    value = over_circle(lambda w: distance(a, w) ** -0.5)
    k = math.sqrt(1 - a) / (1 - a / 2)
    assert value == pytest.approx(4 / (2 - a) * float(ellipk(k * k)), rel=1e-8)
    assert value <= 5 * math.log(8 / a)
    log = math.log(4 / math.sqrt(1 - k * k))
    assert log <= float(ellipk(k * k)) <= 1.25 * log


@pytest.mark.parametrize(("a", "b"), [(0.01, 0.02), (0.001, 0.2), (0.2, 0.25)])
def test_lemma_c21_ii_stays_below_a_multiple_of_the_logarithm(a: float, b: float) -> None:
    """For a ≤ b ≤ ¼ the integral of |1 − a − e^{iω}|/|1 − b − e^{iω}|² is at most (128/49) log(8/a)."""
    value = over_circle(lambda w: distance(a, w) ** 0.5 / distance(b, w))
    assert value <= 128 / 49 * math.log(8 / a)


@pytest.mark.parametrize("m", [0.1, 0.7])
def test_properties_f8_f9_f11_elliptic_substitutions(m: float) -> None:
    half = math.pi / 2
    k = math.sqrt(m / (1 + m))
    plain = quad(lambda w: (1 + m * math.sin(w) ** 2) ** -0.5, 0, half)[0]
    assert plain == pytest.approx(float(ellipk(k * k)) / math.sqrt(1 + m), rel=1e-10)

    def third(n: float, k2: float) -> float:
        """Π(α² = n, k) by Carlson's forms, independent of quadrature."""
        return float(elliprf(0, 1 - k2, 1) + n / 3 * elliprj(0, 1 - k2, 1, 1 - n))

    alpha = 0.3
    left = quad(
        lambda w: 1 / ((1 - alpha * math.sin(w) ** 2) * math.sqrt(1 + m * math.sin(w) ** 2)), 0, half
    )[0]
    # F.9: m/((m + α²)√(1+m))·K(k) + α²/((m + α²)√(1+m))·Π((m + α²)/(1 + m), k).
    right = (m * float(ellipk(k * k)) + alpha * third((m + alpha) / (1 + m), k * k)) / (
        (m + alpha) * math.sqrt(1 + m)
    )
    assert left == pytest.approx(right, rel=1e-9)
    for k2 in (0.9, 0.99, 0.9999):
        bound = math.log(4 / math.sqrt(1 - k2)) / (1 - alpha)
        assert third(alpha, k2) <= bound * (1 + 2 * (1 - k2))


@pytest.mark.parametrize(("a", "b", "lag"), [(1.0, 0.5, 0), (1.0, 0.9, 3), (2.0, -1.5, 2)])
def test_lemmas_f12_to_f14_rational_integrals(a: float, b: float, lag: int) -> None:
    value = over_circle(lambda w: math.cos(lag * w) / (a * a + b * b - 2 * a * b * math.cos(w)))
    assert value == pytest.approx(2 * math.pi / (a * a - b * b) * (b / a) ** lag, rel=1e-8)
    c = b / a if abs(b) < abs(a) else a / b
    assert over_circle(lambda w: 1 / (1 + c * math.cos(w))) == pytest.approx(
        2 * math.pi / math.sqrt(1 - c * c), rel=1e-8
    )
    # F.14: ∫dω/(1 − cos ω) from ε on is 2cot(ε/2), which has no limit.
    for least in (1e-1, 1e-2, 1e-3):
        assert 2 * quad(lambda w: 1 / (1 - math.cos(w)), least, math.pi)[0] == pytest.approx(
            2 / math.tan(least / 2), rel=1e-6
        )


@pytest.mark.parametrize("nu", [0.5, 0.02])
def test_proposition_c24_damped_anti_pgd(nu: float) -> None:
    """Its two integrals in closed form, and F_∞ over η(νd + ηTr(H)/ν) between two constants."""
    assert exact.ANTI_PGD(nu).sensitivity_square() == pytest.approx(1 / (nu * (2 - nu)), rel=1e-8)
    ratios = []
    for d in (8, 64, 512):
        problem = exact.Regression.decaying(d, 1.0, 0.2 / sum(1 / k for k in range(1, d + 1)))
        trace, eta = float(problem.spectrum.sum()), problem.learning_rate
        ratios.append(problem.limit(exact.ANTI_PGD(nu)) / (eta / nu * (nu**2 * d + eta * trace)))
    assert max(ratios) / min(ratios) < 3


def test_definition_d3_holds_for_the_coefficients_of_the_paper() -> None:
    """Half-expo decay of ν-FTRL's β: Σ_s |β_s|(1 − ν)^{(τ−s)/2} ≤ C(1 − ν)^{τ/2} with C = 2 for every τ."""
    for nu in (0.5, 0.05, 0.001):
        beta = np.abs(exact.DAMPED(nu).coefficients(3000))
        root = math.sqrt(1 - nu)
        carried, worst = 0.0, 0.0
        scale = 1.0
        for value in beta[: int(600 / nu) if nu > 0.01 else 3000]:
            carried = carried * root + value
            worst = max(worst, carried / scale)
            scale *= root
            if scale < 1e-250:
                break
        assert worst <= 2.0


@pytest.mark.parametrize("c", [0.2, 0.9, 0.999])
def test_lemmas_f17_f19_f22_small_facts(c: float) -> None:
    rng = np.random.default_rng(1)
    beta = rng.normal(size=60)
    lags = np.abs(np.subtract.outer(np.arange(60), np.arange(60)))
    assert beta @ c**lags @ beta <= (1 + c) / (1 - c) * (beta @ beta)
    product = np.eye(4)
    for _ in range(5):
        q, _ = np.linalg.qr(rng.normal(size=(4, 4)))
        product = product @ (q * rng.uniform(0, 1, 4)) @ q.T
    assert abs(np.trace(product)) <= 4
    small = c / 4
    for share in (0.01, 0.5, 1.0):
        x = share * small / (9 * math.log(9 / small) ** 2)
        assert x * math.log(1 / x) ** 2 <= small


def test_theorem_f2_white_noise_through_a_system() -> None:
    """Stationary variance by (1/2π)∫|G|² against the solved recursion z ← az + u − bu₋₁."""
    for a, b in ((0.9, 0.4), (-0.3, 0.8)):
        gain = over_circle(
            lambda w, a=a, b=b: abs(1 - b * np.exp(1j * w)) ** 2 / abs(1 - a * np.exp(1j * w)) ** 2
        ) / (2 * math.pi)
        assert gain == pytest.approx(1 + (a - b) ** 2 / (1 - a * a), rel=1e-8)


def paths(d: int, steps: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Eigenvalues, inputs, residuals, correlated noise and a start, for a learning rate of 0.1."""
    eigenvalues = 1.0 / np.arange(1, d + 1)
    x = rng.normal(size=(steps, d)) * np.sqrt(eigenvalues)
    beta = exact.DAMPED(0.05).coefficients(steps)
    white = rng.normal(size=(steps, d))
    noise = np.array([beta[: t + 1][::-1] @ white[: t + 1] for t in range(steps)])
    return eigenvalues, x, rng.normal(size=steps), noise, rng.normal(size=d)


def test_properties_c7_d2_and_propositions_c13_d6_decompositions() -> None:
    """θ' as orders and a remainder that vanishes, and as start, residuals and noise; path by path."""
    eta, rng, remainders = 0.1, np.random.default_rng(7), []
    for _ in range(40):
        eigenvalues, x, xi, noise, start = paths(3, 80, rng)
        whole, begun, residual, private = start.copy(), start.copy(), np.zeros(3), np.zeros(3)
        orders, rest = [start.copy(), *np.zeros((5, 3))], np.zeros((6, 3))
        for t in range(len(x)):
            Q, mean = np.eye(3) - eta * np.outer(x[t], x[t]), 1.0 - eta * eigenvalues
            bent = [eta * (eigenvalues * v - x[t] * (x[t] @ v)) for v in orders]
            before = float(np.linalg.norm(begun))
            whole = Q @ whole + eta * xi[t] * x[t] - eta * noise[t]
            begun, residual = Q @ begun, Q @ residual + eta * xi[t] * x[t]
            private = Q @ private - eta * noise[t]
            first = mean * orders[0] + eta * xi[t] * x[t] - eta * noise[t]
            rest = np.array([Q @ old + new for old, new in zip(rest, bent, strict=True)])
            orders = [first, *(mean * v + bent[r] for r, v in enumerate(orders[1:]))]
            np.testing.assert_allclose(whole, begun + residual + private, atol=1e-12)
            for m in range(6):
                np.testing.assert_allclose(whole, sum(orders[: m + 1]) + rest[m], atol=1e-12)
            if eta * float(x[t] @ x[t]) <= 1.0:
                assert np.linalg.norm(begun) <= before * (1 + 1e-12)
        remainders.append((rest**2).sum(1))
    falling = np.mean(remainders, axis=0)
    assert (falling[1:] < 0.7 * falling[:-1]).all()


def test_propositions_c19_c20_base_and_remainder_are_uncorrelated() -> None:
    """E θ⁽⁰⁾δ⁽⁰⁾ = 0 and E w_τ δ⁽⁰⁾ = 0 in one dimension, every input enumerated by Gauss–Hermite nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    weights, eta, steps, value = weights / weights.sum(), 0.2, 4, 0.7
    beta = exact.DAMPED(0.1).coefficients(steps)
    base_rest, noise_rest = 0.0, np.zeros(steps)
    for places in np.ndindex(*[4] * steps):
        x, mass = nodes[list(places)] * math.sqrt(value), float(np.prod(weights[list(places)]))
        # Columns: how both depend on each w and each ξ.
        base, rest = np.zeros(2 * steps), np.zeros(2 * steps)
        for t in range(steps):
            rest = (1 - eta * x[t] ** 2) * rest + eta * (value - x[t] ** 2) * base
            base = (1 - eta * value) * base
            base[: t + 1] -= eta * beta[: t + 1][::-1]
            base[steps + t] += eta * x[t]
        base_rest += mass * float(base @ rest)
        noise_rest += mass * rest[:steps]
    assert abs(base_rest) < 1e-14
    assert np.abs(noise_rest).max() < 1e-14


def test_lemmas_d12_f18_f20() -> None:
    """Error from the optimum grows; one step contracts traces; the minimum of τ + e^{−aτ}/(ρa)."""
    problem = exact.Regression.decaying(6, 1.0, 0.1, residual=0.4)
    path = exact.trajectory(
        problem.spectrum, np.array([0.1]), [exact.DAMPED(0.01)], np.array([1.0]), np.zeros(6),
        list(range(1, 300)), residual=0.4,
    )[0]  # fmt: skip
    assert (np.diff(path) >= 0).all()
    rng, H = np.random.default_rng(3), np.diag([1.0, 0.5, 0.1])
    eta = 1 / (3 * H.trace())
    for _ in range(20):
        root = rng.normal(size=(3, 3))
        M = root @ root.T
        step = M - eta * (H @ M + M @ H) + eta**2 * (2 * H @ M @ H + (H @ M).trace() * H)
        assert step.trace() <= (1 - eta * 0.1) * M.trace()
    for a, rho in ((0.1, 0.5), (2.0, 0.01)):
        taus = np.linspace(0, 200 / a, 200_001)
        least = float((taus + np.exp(-a * taus) / (rho * a)).min())
        assert least == pytest.approx((1 + math.log(1 / rho)) / a, rel=1e-6)
