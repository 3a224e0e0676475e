"""Theorem 3.1 of ν-DP-FTRL: that the bound holds, where it is tight, and that C minimizes it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmf.mechanisms.closed_forms import nu_ftrl
from fedmf.mechanisms.strongly_convex import Multipliers, strongly_convex_lti

Array = NDArray[np.float64]

#: (mu, L, eta), contracting from 0.1 to 1.5 times 1/L.
PROBLEMS = [(0.1, 1.0, 0.5), (0.02, 1.0, 1.5), (0.6, 2.0, 0.3)]
#: Feasible multipliers with much weight on lags, scaled below to be usable.
LAGS = [(1.0,), (1.0, 0.45, 0.45), (1.0, 0.1, 0.3, 0.2, 0.3)]


def lag_response(
    values: tuple[float, ...], omega: Array, sign: float = -1.0
) -> NDArray[np.complex128]:
    """Λ(ω) = λ_0 − Σ_{k≠0} λ_k e^{ikω}, by definition."""
    lags = len(values) // 2
    response = np.full(omega.shape, values[0], dtype=np.complex128)
    for k in range(1, lags + 1):
        response += sign * values[k] * np.exp(1j * k * omega)
        response += sign * values[lags + k] * np.exp(-1j * k * omega)
    return response


def usable(
    problem: tuple[float, float, float], values: tuple[float, ...], times: float
) -> Multipliers | None:
    """Multipliers in these proportions, `times` the smallest that prove a bound; None without."""
    mu, smooth, eta = problem
    omega = np.linspace(0.0, np.pi, 4001)
    D = 1.0 - np.exp(1j * omega)
    # The least l with l*a > 1, from the first diagonal entry of (93).
    Lam = lag_response(values, omega)
    q = mu * Lam + smooth * Lam.conj()
    a = eta**2 * mu * smooth * 2 * Lam.real - 2 * eta * (q * D).real + 2 * Lam.real * np.abs(D) ** 2
    if a.min() <= 0:
        return None
    scaled = times * np.array(values) / float(a.min())
    return Multipliers((eta * mu, eta * smooth), tuple(scaled.tolist()))


#: Not all proportions prove a bound: lags forward in time, or long steps, can rule it out.
CASES = [case for case in product(PROBLEMS, LAGS) if usable(*case, 1.0)]


@pytest.mark.parametrize(("problem", "values"), CASES)
def test_solves_the_matrix_inequality_with_nothing_to_spare(
    problem: tuple[float, float, float], values: tuple[float, ...]
) -> None:
    """The matrix diag(−η², ψη⁴) − A*M̃A of eqs. (89), (93) in units of η², with Λ as here."""
    mu, smooth, eta = problem
    multipliers = usable(problem, values, 1.3)
    assert multipliers is not None
    omega = np.random.default_rng(3).uniform(-np.pi, np.pi, 200)
    psi = multipliers.bound(omega)
    for w, value in zip(omega, psi, strict=True):
        Lam = eta**2 * complex(lag_response(multipliers.values, np.array([w]))[0])
        p = 2 * Lam.real
        q = mu * Lam + smooth * Lam.conjugate()
        M = np.array([[-mu * smooth * p, q], [q.conjugate(), -p]])
        A = np.array([[eta, 0.0], [1.0 - np.exp(1j * w), -eta]])
        inner = A.conj().T @ M @ A

        def least(psi: float, inner: NDArray[np.complex128] = inner) -> float:
            gap = np.diag([-(eta**2), eta**4 * psi]) - inner
            return float(np.linalg.eigvalsh(gap)[0] / np.linalg.eigvalsh(gap)[1])

        assert least(value) > -1e-10
        assert least(value * (1 - 1e-4)) < -1e-12


@pytest.mark.parametrize(("problem", "values"), CASES)
def test_dominates_every_quadratic_at_every_frequency(
    problem: tuple[float, float, float], values: tuple[float, ...]
) -> None:
    mu, smooth, eta = problem
    omega = np.linspace(0.0, np.pi, 500)
    multipliers = usable(problem, values, 1.2)
    assert multipliers is not None
    for curvature in np.linspace(mu, smooth, 9):
        exact = 1.0 / np.abs(1.0 - np.exp(1j * omega) - eta * curvature) ** 2
        assert (multipliers.bound(omega) >= exact * (1 - 1e-9)).all()


@pytest.mark.parametrize("problem", [(0.1, 1.0, 0.5), (0.02, 1.0, 0.9), (0.6, 2.0, 0.3)])
def test_without_lags_it_is_a_nu_ftrl(problem: tuple[float, float, float]) -> None:
    """ψ has a constant numerator, and a denominator linear in |D|²: |B|² ∝ |1 − (1 − ν)z|."""
    mu, smooth, eta = problem
    beta = strongly_convex_lti(100, mu, smooth, eta, lags=0).noising_coefs
    nu = 1.0 + 2.0 * beta[1]
    assert 0 < nu < 1
    np.testing.assert_allclose(beta, nu_ftrl(float(nu), 100).noising_coefs, rtol=0, atol=1e-9)
