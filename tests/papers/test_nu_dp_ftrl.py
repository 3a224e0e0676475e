"""ν-DP-FTRL (arXiv:2310.06771): its bounds against exact limits, and steps that fail as printed."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad

from fedmf.mechanisms.closed_forms import nu_ftrl

FOLDER = Path(__file__).parents[2] / "simulations" / "stationary"
sys.path.insert(0, str(FOLDER))
exact = importlib.import_module("exact")
sys.path.remove(str(FOLDER))

Array = NDArray[np.float64]
SPECTRA = {"1/k": 1.0, "flat": 0.0, "1/k²": 2.0}
NOISES = {
    "white": exact.WHITE,
    "damped": exact.DAMPED(0.002),
    "much damped": exact.DAMPED(0.1),
    "anti-PGD": exact.ANTI_PGD(0.05),
}


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
        value
        * over_circle(
            lambda w, a=problem.learning_rate * value: (
                float(noise.power(np.array([w]))[0]) / distance(a, w)
            )
        )
        for value in problem.spectrum
    )


def test_theorems_c14_c15_c18_bound_the_exact_limit() -> None:
    """Gaussian inputs: R² = 3 Tr H and C_kurt = 3 (Property C.3); G = ρ = 1, residual variance
    0.3.
    """
    for name in NOISES:
        for spectrum in SPECTRA:
            d = 6
            residual = 0.3
            noise = NOISES[name]
            eigenvalues = np.arange(1.0, d + 1) ** -SPECTRA[spectrum]
            trace = float(eigenvalues.sum())
            eta = 0.1 / trace
            problem = exact.Regression(tuple(eigenvalues.tolist()), eta, residual=residual)
            limit = problem.limit(noise)
            square = 3.0 * trace
            gamma = noise.sensitivity_square()
            time = kernel(problem, noise)
            frequency = integral(problem, noise)
            shrink = (1.0 - eta * square) ** -2
            assert (
                limit
                <= (1 + shrink) * eta * square * residual
                + (1 + 3 * shrink) * eta * gamma / 2 * time
            )
            assert limit <= (
                (1 + shrink) * eta * square * residual
                + (1 + 3 * shrink) * eta**2 * gamma / (2 * math.pi) * frequency
            )
            # Theorem C.18 is for E‖θ − θ*‖²_H, the objective (22) without ½: twice F_∞ (see the
            # errata).
            low = eta * residual / 2 * trace
            assert 2 * limit >= low + eta**2 * gamma / (4 * math.pi) * frequency * (1 - 1e-9)
            assert 2 * limit >= low + eta * gamma / 4 * time / 2 * (1 - 1e-9)
            assert 2 * limit >= (2 * eta * residual + eta**2 / 2) * trace / 4


@pytest.mark.parametrize("nu", [0.5, 0.05, 0.003])
def test_property_c1_the_limiting_sensitivity(nu: float) -> None:
    """γ_∞² = (1/2π)∫dω/|B|² is the squared length of C's first column as n grows."""
    noise = exact.DAMPED(nu)
    by_integral = over_circle(lambda w: 1.0 / float(noise.power(np.array([w]))[0])) / (2 * math.pi)
    column = nu_ftrl(nu, 20_000).columns([0])[:, 0]
    assert noise.sensitivity_square() == pytest.approx(by_integral, rel=1e-8)
    assert float(column @ column) == pytest.approx(by_integral, rel=1e-6)


def loss(x: Array | float, T: float, A: float, B: float, C: float) -> Array:
    """φ at η = x/μ for μ = 1."""
    return A * np.exp(-np.asarray(x) * T) + B * x + C * (x * np.log(x)) ** 2


def printed_bound(
    largest: float, T: float, A: float, B: float, C: float, constant: float = 3.0
) -> float:
    """Lemma F.21's right-hand side for μ = 1."""
    tail = A * math.exp(-largest * T) + constant * B / T * max(1.0, math.log(A * T / B))
    return tail + constant * C / T**2 * max(1.0, math.log(A * T * T / C)) ** 2 * math.log(T) ** 2


def least_loss(largest: float, *constants: float) -> float:
    """min φ over (0, η_max]."""
    grid = np.geomspace(largest * 1e-9, largest, 8_001)
    return float(loss(grid, *constants).min())


def test_lemma_f21_choice_of_the_learning_rate() -> None:
    """The printed bound, constants 3 and 3, for every μη_max ≤ 1, where 2 and 2 suffice."""
    rng = np.random.default_rng(2)
    worst = 0.0
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
def test_lemma_f21_fails_for_larger_rates(
    largest: float, T: float, constants: tuple[float, ...]
) -> None:
    """As printed, with μη_max > 1: the bound is exceeded; at T = 1 since log T = 0."""
    assert 1 / largest <= T
    assert least_loss(largest, T, *constants) > 1.3 * printed_bound(largest, T, *constants)
