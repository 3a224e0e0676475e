"""The optimised LTI mechanism on quadratics: its closed forms, its optimality and what real noise does."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmf.mechanisms.closed_forms import identity, nu_ftrl
from fedmf.mechanisms.lti import (
    graded_quadrature,
    mean_power,
    minimum_phase,
    quadratic_lti,
    quadratic_suboptimality,
)
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.sensitivity import exact_sensitivity, stated_sensitivity
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
    return np.sum([x / np.abs(1.0 - np.exp(1j * omega) - eta * x) ** 2 for x in eigenvalues], axis=0)


def asymptotic(power: Array, eigenvalues: list[float], eta: float) -> float:
    """½η²·γ²(B)·(1/2π)∫|B|²h for |B|² on the grid."""
    return float(0.5 * eta**2 * np.mean(1.0 / power) * np.mean(power * response(eigenvalues, eta)))


def at_unit_sensitivity(C: Factorization, eigenvalues: list[float], eta: float) -> float:
    once = Participation(C.rounds, 1, C.rounds)
    return quadratic_suboptimality(C, eigenvalues, eta) * exact_sensitivity(C, once).value ** 2


def long_enough(eigenvalues: list[float], eta: float) -> int:
    return int(30.0 / min(eta * min(eigenvalues), 2.0 - eta * max(eigenvalues)))


@pytest.mark.parametrize(("curvature", "eta"), [(1.0, 0.3), (0.1, 0.05), (4.0, 0.2), (2.0, 0.5)])
def test_one_eigenvalue_is_nu_ftrl(curvature: float, eta: float) -> None:
    found = quadratic_lti(200, [curvature] * 3, eta)
    np.testing.assert_allclose(
        found.correlation, nu_ftrl(eta * curvature, 200).correlation, rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("name", SPECTRA)
def test_attains_the_cauchy_schwarz_bound_and_perturbations_raise_it(name: str) -> None:
    eigenvalues, eta = SPECTRA[name]
    n = long_enough(eigenvalues, eta)
    C = quadratic_lti(n, eigenvalues, eta)
    least = 0.5 * eta**2 * np.mean(np.sqrt(response(eigenvalues, eta))) ** 2
    assert at_unit_sensitivity(C, eigenvalues, eta) == pytest.approx(least, rel=1e-9)

    power = np.abs(np.fft.fft(C.correlation, GRID.size)) ** 2
    assert asymptotic(power, eigenvalues, eta) == pytest.approx(least, rel=1e-9)
    rng, waves = np.random.default_rng(5), np.cos(np.outer(np.arange(1, 7), GRID))
    h = response(eigenvalues, eta)
    for size in (0.01, 0.1, 0.5):
        for _ in range(20):
            bumped = power * np.exp(size * rng.standard_normal(6) @ waves)
            assert 0.5 * eta**2 * np.mean(1.0 / bumped) * np.mean(bumped * h) > least * (1 + 1e-7)


@pytest.mark.parametrize("nu", [0.02, 0.3, 1.0])
def test_time_domain_equals_frequency_domain(nu: float) -> None:
    eigenvalues, eta = [1.0, 0.2, 0.05], 0.7
    power = np.abs(1.0 - (1.0 - nu) * np.exp(1j * GRID))
    in_time = at_unit_sensitivity(nu_ftrl(nu, 3000), eigenvalues, eta)
    assert in_time == pytest.approx(asymptotic(power, eigenvalues, eta), rel=1e-9)


def test_does_not_depend_on_the_horizon_or_the_order() -> None:
    long, short = quadratic_lti(3000, [1.0, 0.1, 0.1], 0.5), quadratic_lti(40, [0.1, 1.0, 0.1], 0.5)
    np.testing.assert_allclose(long.correlation[:40], short.correlation, rtol=0, atol=1e-12)
    assert quadratic_lti(1, [1.0, 0.1], 0.5).correlation.tolist() == [1.0]


def test_its_sensitivity_is_exact() -> None:
    """The strategy of a sum of damped modes is positive and falls, so the earliest pattern is worst."""
    C = quadratic_lti(500, [1.0, 0.1, 0.01], 0.5)
    stated = stated_sensitivity(C, Participation(500, 5, 100))
    assert stated.kind == "exact"
    assert stated.value == pytest.approx(np.linalg.norm(C.column_sum([0, 100, 200, 300, 400])), rel=1e-12)
    # With eta*lambda > 1 entries alternate; what is stated then is named as what it is.
    signed = stated_sensitivity(quadratic_lti(60, [1.0, 0.9], 1.9), Participation(60, 3, 20))
    assert np.isfinite(signed.value)
    assert signed.kind in ("exact", "upper_bound")


def test_graded_quadrature_and_mean_power() -> None:
    omega, weights = graded_quadrature(1e-4)
    for pole in (0.9999, -0.9999, 0.3):
        value = weights @ (1.0 / np.abs(1.0 - pole * np.exp(1j * omega)) ** 2)
        assert value == pytest.approx(1.0 / (1.0 - pole**2), rel=1e-10)
    assert weights @ np.cos(63 * omega) ** 2 == pytest.approx(0.5, rel=1e-10)
    beta = np.random.default_rng(0).standard_normal(50)
    expected = np.sum(np.convolve(beta, 0.9 ** np.arange(2000)) ** 2)
    found = mean_power(beta, lambda w: 1.0 / np.abs(1.0 - 0.9 * np.exp(1j * w)) ** 2, 0.1)
    assert found == pytest.approx(expected, rel=1e-10)


def test_minimum_phase_recovers_a_polynomial() -> None:
    beta = np.poly([0.95, -0.8, 0.3 + 0.6j, 0.3 - 0.6j]).real
    found = minimum_phase(lambda w: np.log(np.abs(np.polyval(beta[::-1], np.exp(1j * w))) ** 2), 8, 0.05)
    np.testing.assert_allclose(found, np.pad(beta, (0, 3)), rtol=0, atol=1e-12)


def test_refuses() -> None:
    for rounds, eigenvalues, eta, message in [
        (0, [1.0], 0.5, r"n \(rounds\) must be an integer of at least 1; got 0"),
        (True, [1.0], 0.5, r"n \(rounds\)"),
        (5, [], 0.5, r"lambda \(eigenvalues\) must be a non-empty vector"),
        (5, [1.0, 0.0], 0.5, r"lambda \(eigenvalues\) must be positive; got 0.0 at index 1"),
        (5, [1.0, -0.1], 0.5, r"lambda \(eigenvalues\) must be positive; got -0.1 at index 1"),
        (5, [1.0, float("nan")], 0.5, r"lambda \(eigenvalues\) must be finite; got nan at index 1"),
        (5, [1.0], 2.0, r"eta \(learning_rate\) must be between 0 and 2/lambda_max=2"),
        (5, [4.0], 0.5, r"eta \(learning_rate\) must be between 0 and 2/lambda_max=0.5"),
        (5, [1.0], 0.0, r"eta \(learning_rate\)"),
        (5, [1.0], float("nan"), r"eta \(learning_rate\)"),
        (5, [1.0, 1e-7], 0.5, r"eta\*lambda_min .* must leave a spectrum"),
    ]:
        with pytest.raises(ValueError, match=message) as error:
            quadratic_lti(rounds, eigenvalues, eta)
        assert "\n" not in str(error.value)


def test_suboptimality_refuses() -> None:
    with pytest.raises(ValueError, match=r"lambda \(eigenvalues\) must be positive"):
        quadratic_suboptimality(identity(3), [0.0], 0.5)
    with pytest.raises(ValueError, match=r"eta \(learning_rate\)"):
        quadratic_suboptimality(identity(3), [1.0], 2.5)
