"""The optimized LTI mechanism on quadratics: closed forms, optimality and simulated noise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmf.matrices.factorization import Factorization
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.closed_forms import nu_ftrl
from fedmf.mechanisms.lti import (
    quadratic_lti,
    quadratic_suboptimality,
)
from fedmf.participation import Participation

Array = NDArray[np.float64]

SPECTRA = {
    "two": ([1.0, 0.05], 0.5),
    "low rank": ([1.0] + [0.02] * 50, 0.9),
    "decaying": (list(1.0 / np.arange(1.0, 11.0)), 0.3),
    "long steps": ([1.0, 0.3, 0.1], 1.7),
}
GRID = 2.0 * np.pi * np.arange(1 << 14) / (1 << 14)


def response(eigenvalues: list[float], eta: float, omega: Array = GRID) -> Array:
    """h(ω) = Σ_j λ_j / |1 − e^{iω} − ηλ_j|²."""
    return np.sum(
        [x / np.abs(1.0 - np.exp(1j * omega) - eta * x) ** 2 for x in eigenvalues], axis=0
    )


def asymptotic(power: Array, eigenvalues: list[float], eta: float) -> float:
    """½η²·γ²(B)·(1/2π)∫|B|²h for |B|² on the grid."""
    return float(0.5 * eta**2 * np.mean(1.0 / power) * np.mean(power * response(eigenvalues, eta)))


def at_unit_sensitivity(C: Factorization, eigenvalues: list[float], eta: float) -> float:
    once = Participation(C.rounds, 1, C.rounds)
    sensitivity = sensitivity_of(C, once)
    assert sensitivity.kind == "exact"
    return quadratic_suboptimality(C, eigenvalues, eta) * sensitivity.value**2


def long_enough(eigenvalues: list[float], eta: float) -> int:
    return int(30.0 / min(eta * min(eigenvalues), 2.0 - eta * max(eigenvalues)))


@pytest.mark.parametrize(("curvature", "eta"), [(1.0, 0.3), (4.0, 0.2)])
def test_one_eigenvalue_is_nu_ftrl(curvature: float, eta: float) -> None:
    C = quadratic_lti(200, [curvature] * 3, eta)
    np.testing.assert_allclose(
        C.noising_coefs, nu_ftrl(eta * curvature, 200).noising_coefs, rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("name", SPECTRA)
def test_attains_the_cauchy_schwarz_bound_and_perturbations_raise_it(name: str) -> None:
    eigenvalues, eta = SPECTRA[name]
    n = long_enough(eigenvalues, eta)
    C = quadratic_lti(n, eigenvalues, eta)
    least = 0.5 * eta**2 * np.mean(np.sqrt(response(eigenvalues, eta))) ** 2
    assert at_unit_sensitivity(C, eigenvalues, eta) == pytest.approx(least, rel=1e-9)

    power = np.abs(np.fft.fft(C.noising_coefs, GRID.size)) ** 2
    assert asymptotic(power, eigenvalues, eta) == pytest.approx(least, rel=1e-9)
    rng = np.random.default_rng(5)
    waves = np.cos(np.outer(np.arange(1, 7), GRID))
    h = response(eigenvalues, eta)
    for size in (0.01, 0.1, 0.5):
        for _ in range(20):
            bumped = power * np.exp(size * rng.standard_normal(6) @ waves)
            assert 0.5 * eta**2 * np.mean(1.0 / bumped) * np.mean(bumped * h) > least * (1 + 1e-7)
