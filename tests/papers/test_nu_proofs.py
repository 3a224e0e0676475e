"""ν-DP-FTRL: steps of its proofs, carried out on numbers; a step that fails as printed is in the errata."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import elliprf, elliprj
from scipy.stats import chi2

Array = NDArray[np.float64]


def gaussian_inputs(eigenvalues: Array) -> tuple[Array, Array]:
    """Points x and masses with all moments of N(0, diag(λ)) up to the seventh, shapes (m, d) and (m,)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    grid = np.array(np.meshgrid(*[nodes] * len(eigenvalues), indexing="ij")).reshape(len(eigenvalues), -1)
    mass = np.prod(np.meshgrid(*[weights / weights.sum()] * len(eigenvalues), indexing="ij"), axis=0).ravel()
    return grid.T * np.sqrt(eigenvalues), mass


def is_below(small: Array, large: Array) -> bool:
    """In the order of symmetric matrices, up to rounding."""
    return bool(np.linalg.eigvalsh(large - small).min() >= -1e-12 * np.abs(large).max())


def orders(eigenvalues: Array, eta: float, beta: float, residual: float, variance: float) -> list[Array]:
    """Stationary covariances of θ⁽⁰⁾, θ⁽¹⁾, θ⁽²⁾ for noise w_t + β w_{t−1}.

    By the second moments of (θ⁽⁰⁾, θ⁽¹⁾, θ⁽²⁾, w_{t−1}) together, the input enumerated.
    """
    x, mass = gaussian_inputs(eigenvalues)
    d, H = len(eigenvalues), np.diag(eigenvalues)
    bent = eta * (H - np.einsum("mi,mj->mij", x, x))
    step = np.zeros((len(x), 4, d, 4, d))
    for r in range(3):
        step[:, r, :, r, :] = np.eye(d) - eta * H
    step[:, 1, :, 0, :] = step[:, 2, :, 1, :] = bent
    step[:, 0, :, 3, :] = -eta * beta * np.eye(d)
    whole = step.reshape(len(x), 4 * d, 4 * d)
    new = np.zeros((4, d, d))
    new[0], new[3] = -eta * np.eye(d), np.eye(d)
    fresh = variance * new.reshape(4 * d, d) @ new.reshape(4 * d, d).T
    fresh[:d, :d] += eta**2 * residual * np.einsum("m,mi,mj->ij", mass, x, x)
    squared = np.einsum("m,mij,mkl->ikjl", mass, whole, whole).reshape((4 * d) ** 2, (4 * d) ** 2)
    moments = np.linalg.solve(np.eye((4 * d) ** 2) - squared, fresh.ravel()).reshape(4, d, 4, d)
    return [moments[r, :, r, :] for r in range(3)]


def test_proposition_c11_and_lemma_c12_orders_of_the_covariance() -> None:
    """E θ⁽ʳ⁾⊗θ⁽ʳ⁾ ⪯ η(ηR²)ʳ(σ_sgd² + C_kurt σ²⟨β, Tβ⟩/R²)I, and one order from the one before.

    Gaussian inputs: R² = 2λ_max + Tr H and C_kurt = 3 are the least that Assumption C.2 allows.
    """
    for beta in [0.0, -0.9, 0.5]:
        for share in [0.1, 0.9]:
            for eigenvalues in [(1.0, 0.3), (1.0, 1.0)]:
                values, residual, variance = np.array(eigenvalues), 0.4, 0.7
                H, square = np.diag(values), 2 * max(values) + sum(values)
                eta = share / square
                products = 1 + beta**2 + 2 * beta * (1 - eta * values)
                covariances = orders(values, eta, beta, residual, variance)
                x, mass = gaussian_inputs(values)
                bent = H - np.einsum("mi,mj->mij", x, x)
                np.testing.assert_allclose(np.einsum("m,mij->ij", mass, bent), 0, atol=1e-14)  # ζ_t is white
                a, b, reached = eta * residual, eta * variance, []
                assert is_below(covariances[0], a * np.eye(2) + b * np.diag(products / values))
                for r in (1, 2):
                    kicks = np.einsum("m,mij,jk,mkl->il", mass, bent, covariances[r - 1], bent)
                    factor = a * square + 3 * b * products.sum()
                    assert is_below(kicks, factor * H)
                    assert is_below(covariances[r], eta * factor * np.eye(2))
                    closed = eta * (eta * square) ** r * (residual + 3 * variance / square * products.sum())
                    assert closed == pytest.approx(eta * factor, rel=1e-12)
                    reached.append(np.linalg.eigvalsh(covariances[r]).max() / closed)
                    a, b = eta * factor, 0.0
                assert min(reached) > 0.02


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_lemma_d9_traces_of_products(steps: int) -> None:
    """E‖Q … Q x‖² ≤ R²(1 − ημ)^m over every sequence of inputs; d = 1 at η = 1/R² has this rate exactly."""
    for eigenvalues in (np.array([1.0, 0.3]), np.array([1.0])):
        x, mass = gaussian_inputs(eigenvalues)
        square = float(2 * max(eigenvalues) + sum(eigenvalues))
        for eta in (0.2 / square, 1.0 / square):
            vectors, chances = x, mass
            for _ in range(steps):
                pull = np.einsum("mi,ni->nm", x, vectors)
                moved = vectors[:, None, :] - eta * pull[:, :, None] * x[None]
                vectors, chances = moved.reshape(-1, x.shape[1]), np.outer(chances, mass).ravel()
            trace = float(chances @ (vectors**2).sum(1))
            bound = square * (1 - eta * min(eigenvalues)) ** steps
            assert trace <= bound * (1 + 1e-12)
            if len(eigenvalues) == 1 and eta == 1.0 / square:
                assert trace == pytest.approx(bound / 3, rel=1e-12)


def weighted_products(x: Array, mass: Array, eta: float, beta: Array) -> float:
    """E Tr VVᵀ of V = β_τ I + β_{τ−1}Q + … + β_0 Q … Q over every sequence of inputs."""
    d = x.shape[1]
    steps = np.eye(d) - eta * np.einsum("mi,mj->mij", x, x)
    V, chances = beta[0] * np.eye(d)[None], np.ones(1)
    for value in beta[1:]:
        V = value * np.eye(d) + np.einsum("mij,njk->nmik", steps, V).reshape(-1, d, d)
        chances = np.outer(chances, mass).ravel()
    return float(chances @ (V**2).sum((1, 2)))


def test_lemma_d10_traces_with_noise() -> None:
    """E Tr VVᵀ ≤ d(Σ|β_k|(1 − ημ)^{(τ−k)/2})²; without the outer square, as printed, it is false."""
    rng, d = np.random.default_rng(0), 2
    eigenvalues = np.array([1.0, 0.3])
    x, mass = gaussian_inputs(eigenvalues)
    square = float(2 * max(eigenvalues) + sum(eigenvalues))
    for eta in (0.01 / square, 0.3 / square, 1.0 / square):
        for beta in [np.array([1.0, 0.9]), np.array([1.0, -0.4, -0.2]), *rng.normal(size=(4, 4))]:
            decay = (1 - eta * 0.3) ** (np.arange(len(beta))[::-1] / 2)
            assert weighted_products(x, mass, eta, beta) <= d * float(np.abs(beta) @ decay) ** 2
    beta, eta = np.array([1.0, 0.9]), 0.01 / square
    printed = d * float(np.abs(beta) @ (1 - eta * 0.3) ** np.array([0.5, 0.0]))
    assert weighted_products(x, mass, eta, beta) > 1.8 * printed
    for _ in range(200):
        beta, V = rng.normal(size=5), np.zeros((3, 3))
        for value in beta:
            q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
            V = value * np.eye(3) + (q * rng.uniform(0, 1, 3)) @ q.T @ V
        assert (V**2).sum() <= 3 * np.abs(beta).sum() ** 2
    whole = sum(np.eye(3) * value for value in (1.0, 0.5, 0.2))
    assert (np.asarray(whole) ** 2).sum() == pytest.approx(3 * 1.7**2)


def proxy(points: Array, masses: Array) -> float:
    """The least variance proxy of a centred variable with these points: sup_λ 2 log E e^{λX}/λ²."""

    def needed(slope: float) -> float:
        tops = slope * points
        top = tops.max()
        return 2.0 * float(top + np.log(masses @ np.exp(tops - top))) / slope**2

    reached = []
    for sign in (-1.0, 1.0):
        grid = np.geomspace(0.02, 30, 200)
        at = int(np.argmax([needed(sign * float(slope)) for slope in grid]))
        bounds = (grid[max(at - 1, 0)], grid[min(at + 1, grid.size - 1)])
        best = minimize_scalar(
            lambda slope, sign=sign: -needed(sign * slope), bounds=bounds, method="bounded"
        )
        reached += [-float(best.fun), needed(sign * float(grid[at]))]
    return max(reached)


def test_definition_f4_variance_proxies() -> None:
    """The least proxy of a two-point variable is (1 − 2p)/(2 log((1 − p)/p)), its variance at p = ½ alone."""
    for p in (0.02, 0.1, 0.3, 0.49, 0.5):
        points, masses = np.array([1 - p, -p]), np.array([p, 1 - p])
        known = 0.25 if p == 0.5 else (1 - 2 * p) / (2 * math.log((1 - p) / p))
        assert proxy(points, masses) == pytest.approx(known, rel=1e-4)
        assert (proxy(points, masses) <= p * (1 - p) * (1 + 1e-9)) == (p == 0.5)
    # Gaussian: equality for every λ. Laplace of variance 1: no proxy, its transform ends at √2.
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    assert weights / weights.sum() @ np.exp(2.0 * nodes) == pytest.approx(math.exp(2.0), rel=1e-12)
    laplace = [1 / (1 - slope**2 / 2) for slope in (1.4, 1.41, 1.414)]
    assert min(laplace) > 10 * math.exp(1.414**2 / 2)


def test_property_f5_moments_of_strict_variables() -> None:
    """Proxy = variance only if E X³ = 0 and E X⁴ ≤ 3σ⁴; ±1 with mass q each is strict from q = 1/6 on."""
    points = np.array([-1.0, 0.0, 1.0])
    for q in (0.05, 0.12, 0.16, 1 / 6, 0.2, 0.35, 0.5):
        masses = np.array([q, 1 - 2 * q, q])
        strict = proxy(points, masses) <= 2 * q * (1 + 1e-9)
        assert strict == (2 * q <= 3 * (2 * q) ** 2 * (1 + 1e-12))
    rng = np.random.default_rng(5)
    for _ in range(60):
        drawn, masses = rng.normal(size=4), rng.dirichlet(np.ones(4))
        centred = drawn - masses @ drawn
        scaled = centred / math.sqrt(float(masses @ centred**2))
        assert proxy(scaled, masses) > 1 + 1e-6 or abs(float(masses @ scaled**3)) < 1e-2
        if proxy(scaled, masses) <= 1 + 1e-9:
            assert float(masses @ scaled**4) <= 3


def test_remark_f7_constants_for_gaussian_variables() -> None:
    """P(⟨ξ, Aξ⟩ − Tr A > t) ≤ exp(−c·min(t²/‖A‖_F², t/‖A‖)) with c = 0.1457; C = 8, C′ = 16."""
    for d in (1, 2, 5, 40, 400):
        for t in np.geomspace(0.01, 30, 60) * d:
            exponent = 0.1457 * min(t * t / d, t)
            assert chi2.logsf(d + t, d) <= -exponent
        for rho in (0.33, 0.1, 1e-3, 1e-9):
            log = math.log(1 / rho)
            assert chi2.isf(rho, d) <= 8 * (d * log + log)
            assert 8 * (d * log + log) <= 16 * d * log
    # A = I, d → ∞, t = d: the tail's rate is ½(1 − log 2) = 0.153 a dimension, so that no c above it holds.
    assert -chi2.logsf(8000, 4000) / 4000 == pytest.approx(0.5 * (1 - math.log(2)), rel=2e-2)
    assert chi2.logsf(8000, 4000) > -0.16 * 4000


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.1), (0.1, 0.3), (0.9, 0.2), (0.05, 0.6), (0.4, 0.4)])
def test_lemma_f16_by_the_third_elliptic_integral(a: float, b: float) -> None:
    """(100) is 2a²/(b²(1 − a/2))·Π(α², k), k = √(1 − a)/(1 − a/2)."""

    def ratio(omega: float) -> float:
        above, below = ((c * c + 4 * (1 - c) * math.sin(omega / 2) ** 2) for c in (a, b))
        return math.sqrt(above) / below

    value = 2 * quad(ratio, 0, math.pi, epsabs=0, epsrel=1e-12, limit=400)[0]
    alpha = (b * b * (1 - a) - a * a * (1 - b)) / (b * (1 - a / 2)) ** 2
    k2 = (1 - a) / (1 - a / 2) ** 2
    third = float(elliprf(0, 1 - k2, 1) + alpha / 3 * elliprj(0, 1 - k2, 1, 1 - alpha))
    assert value == pytest.approx(2 * a * a / (b * b * (1 - a / 2)) * third, rel=1e-9)


def loss(x: Array | float, T: float, A: float, B: float, C: float) -> Array:
    """φ at η = x/μ for μ = 1."""
    return A * np.exp(-np.asarray(x) * T) + B * x + C * (x * np.log(x)) ** 2


def printed_bound(largest: float, T: float, A: float, B: float, C: float, constant: float = 3.0) -> float:
    """Lemma F.21's right-hand side for μ = 1."""
    tail = A * math.exp(-largest * T) + constant * B / T * max(1.0, math.log(A * T / B))
    return tail + constant * C / T**2 * max(1.0, math.log(A * T * T / C)) ** 2 * math.log(T) ** 2


def least_loss(largest: float, *constants: float) -> float:
    """min φ over (0, η_max]."""
    grid = np.geomspace(largest * 1e-9, largest, 8_001)
    return float(loss(grid, *constants).min())


def test_lemma_f21_choice_of_the_learning_rate() -> None:
    """The printed bound, constants 3 and 3, for every μη_max ≤ 1, where 2 and 2 suffice."""
    rng, worst = np.random.default_rng(2), 0.0
    for _ in range(1500):
        largest = float(10 ** rng.uniform(-4, 0))
        T = float(10 ** rng.uniform(0, 4)) / largest
        A, B, C = 10 ** rng.uniform(-8, 4, 3)
        least = least_loss(largest, T, A, B, C)
        assert least <= printed_bound(largest, T, A, B, C, 2.0) * (1 + 1e-9)
        worst = max(worst, least / printed_bound(largest, T, A, B, C))
    assert 0.3 < worst <= 1


@pytest.mark.parametrize(
    ("largest", "T", "constants"),
    [(2.0, 1.0, (1.0, 1e-4, 1e4)), (30.0, 3.0, (1.0, 1e-30, 9 * math.exp(-60)))],
)
def test_lemma_f21_fails_for_larger_rates(largest: float, T: float, constants: tuple[float, ...]) -> None:
    """As printed, with μη_max > 1: the bound is exceeded; at T = 1 since log T = 0."""
    assert 1 / largest <= T
    assert least_loss(largest, T, *constants) > 1.3 * printed_bound(largest, T, *constants)
