"""Theorem 3.1 of ν-DP-FTRL: that the bound holds, where it is tight, and that C minimises it."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedmf.mechanisms.closed_forms import identity, nu_ftrl, optimal_diagonal
from fedmf.mechanisms.lti import quadratic_lti, quadratic_suboptimality
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.sensitivity import exact_sensitivity, stated_sensitivity
from fedmf.mechanisms.strongly_convex import Multipliers, strongly_convex_bound, strongly_convex_lti
from fedmf.mechanisms.toeplitz import InverseToeplitz
from fedmf.participation import Participation

Array = NDArray[np.float64]

#: (mu, L, eta), contracting from 0.1 to 1.5 times 1/L.
PROBLEMS = [(0.1, 1.0, 0.5), (0.02, 1.0, 1.5), (0.6, 2.0, 0.3)]
#: Feasible multipliers with much weight on lags, scaled below to be usable.
LAGS = [(1.0,), (1.0, 0.0, 0.9), (1.0, 0.9, 0.0), (1.0, 0.45, 0.45), (1.0, 0.1, 0.3, 0.2, 0.3)]


def squared(C: Factorization) -> float:
    return exact_sensitivity(C, Participation(C.rounds, 1, C.rounds)).value ** 2


def lag_response(values: tuple[float, ...], omega: Array, sign: float = -1.0) -> NDArray[np.complex128]:
    """Λ(ω) = λ_0 − Σ_{k≠0} λ_k e^{ikω}, by definition."""
    lags = len(values) // 2
    shifts = [*range(1, lags + 1), *(-k for k in range(1, lags + 1))]
    terms = (sign * v * np.exp(1j * k * omega) for k, v in zip(shifts, values[1:], strict=True))
    return np.asarray(values[0] + sum(terms, np.zeros(omega.shape)), dtype=np.complex128)


def usable(
    problem: tuple[float, float, float], values: tuple[float, ...], times: float
) -> Multipliers | None:
    """Multipliers of these proportions, `times` as large as they must be to prove anything, if they can."""
    mu, smooth, eta = problem
    omega = np.linspace(0.0, np.pi, 4001)
    D = 1.0 - np.exp(1j * omega)
    # The least l with l*a > 1, from the first diagonal entry of (93).
    Lam = lag_response(values, omega)
    q = mu * Lam + smooth * Lam.conj()
    a = eta**2 * mu * smooth * 2 * Lam.real - 2 * eta * (q * D).real + 2 * Lam.real * np.abs(D) ** 2
    if a.min() <= 0:
        return None
    return Multipliers((eta * mu, eta * smooth), tuple(times * v / float(a.min()) for v in values))


#: Not every proportion is of use: lags forward in time, or long steps, can rule it out.
CASES = [(problem, values) for problem in PROBLEMS for values in LAGS if usable(problem, values, 1.0)]


@pytest.mark.parametrize(("problem", "values"), CASES)
def test_solves_the_matrix_inequality_with_nothing_to_spare(
    problem: tuple[float, float, float], values: tuple[float, ...]
) -> None:
    """diag(−η², ψη⁴) − A*M̃A of eqs. (89), (93), assembled as printed (with Λ as here), in units of η²."""
    mu, smooth, eta = problem
    found = usable(problem, values, 1.3)
    assert found is not None
    omega = np.random.default_rng(3).uniform(-np.pi, np.pi, 200)
    psi = found.bound(omega)
    for w, value in zip(omega, psi, strict=True):
        Lam = eta**2 * complex(lag_response(found.values, np.array([w]))[0])
        p, q = 2 * Lam.real, mu * Lam + smooth * Lam.conjugate()
        M = np.array([[-mu * smooth * p, q], [q.conjugate(), -p]])
        A = np.array([[eta, 0.0], [1.0 - np.exp(1j * w), -eta]])
        inner = A.conj().T @ M @ A

        def least(psi: float, inner: NDArray[np.complex128] = inner) -> float:
            gap = np.diag([-(eta**2), eta**4 * psi]) - inner
            return float(np.linalg.eigvalsh(gap)[0] / np.linalg.eigvalsh(gap)[1])

        assert least(value) > -1e-10
        assert least(value * (1 - 1e-4)) < -1e-12


def worst_gain(psi: Array, problem: tuple[float, float, float], kink: float, start: Array) -> float:
    """max over θ of period N of Σ|θ|² / η²Σψ|Z|², for F′(θ) = μθ + (L − μ)·max(θ − kink, 0)."""
    mu, smooth, eta = problem
    n = start.size

    def negative_gain(theta: Array) -> tuple[float, Array]:
        slope = mu + (smooth - mu) * (theta > kink)
        gradient = mu * theta + (smooth - mu) * np.maximum(theta - kink, 0.0)
        Z = np.fft.fft((theta - np.roll(theta, -1)) / eta - gradient)
        bound = eta**2 * float(psi @ np.abs(Z) ** 2) / n
        back = 2 * eta**2 * np.fft.ifft(psi * Z).real
        of_bound = (back - np.roll(back, 1)) / eta - slope * back
        energy = float(theta @ theta)
        return -energy / bound, -(2 * theta * bound - energy * of_bound) / bound**2

    return -float(minimize(negative_gain, start, jac=True, method="L-BFGS-B", options={"maxiter": 80}).fun)


def worst_of_periods(problem: tuple[float, float, float], psi: partial[Array]) -> float:
    rng, worst = np.random.default_rng(8), 0.0
    for n in (2, 4, 8):
        omega = 2 * np.pi * np.arange(n) / n
        for kink in (0.0, 0.0, 0.3):
            values = psi(np.minimum(omega, 2 * np.pi - omega))
            worst = max(worst, worst_gain(values, problem, kink, 2 * rng.standard_normal(n)))
    return worst


@pytest.mark.parametrize(("problem", "values"), CASES)
def test_holds_for_periodic_motion_in_lopsided_functions(
    problem: tuple[float, float, float], values: tuple[float, ...]
) -> None:
    """Every periodic θ is a stationary motion under the noise that makes it; ψ must cover the worst."""
    for times in (1.1, 1.5):
        found = usable(problem, values, times)
        assert found is not None
        assert worst_of_periods(problem, partial(found.bound)) <= 1 + 1e-9


def test_the_printed_sign_of_the_multipliers_fails() -> None:
    """With Λ = Σ λ_k e^{ikω} and λ_k ≥ 0, as in Theorem E.1, constraint (91) and its ψ are wrong."""
    # F' = mu*theta left of 0 and L*theta right of it, theta alternating: the mean of u_t v_{t+1} is < 0.
    mu, smooth, _ = PROBLEMS[0]
    theta = np.array([-1.0, 1.0])
    gradient = np.where(theta > 0, smooth, mu) * theta
    u, v = gradient - mu * theta, smooth * theta - gradient
    assert u @ v == 0.0
    assert u @ np.roll(v, 1) < 0.0

    printed = (1.0, -0.45, -0.45)
    found = usable(PROBLEMS[0], printed, 1.5)
    assert found is not None
    assert worst_of_periods(PROBLEMS[0], partial(found.bound)) > 1.2


@pytest.mark.parametrize(("problem", "values"), CASES)
def test_dominates_every_quadratic_at_every_frequency(
    problem: tuple[float, float, float], values: tuple[float, ...]
) -> None:
    mu, smooth, eta = problem
    omega = np.linspace(0.0, np.pi, 500)
    found = usable(problem, values, 1.2)
    assert found is not None
    for curvature in np.linspace(mu, smooth, 9):
        exact = 1.0 / np.abs(1.0 - np.exp(1j * omega) - eta * curvature) ** 2
        assert (found.bound(omega) >= exact * (1 - 1e-9)).all()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_bounds_what_quadratics_suffer(problem: tuple[float, float, float]) -> None:
    mu, smooth, eta = problem
    n = int(30 / min(eta * mu, 2 - eta * smooth))
    for C in (identity(n), nu_ftrl(eta * mu, n), strongly_convex_lti(n, mu, smooth, eta)):
        bound = strongly_convex_bound(C, mu, smooth, eta)
        for curvature in np.linspace(mu, smooth, 9):
            assert quadratic_suboptimality(C, [curvature], eta) <= bound


def test_bounds_sampled_descent_on_a_lopsided_function() -> None:
    """E[F] of 1000 chains, averaged over rounds once settled, with the mechanism's own noise."""
    mu, smooth, eta, n = 0.1, 1.0, 0.5, 400
    z = np.random.default_rng(2).standard_normal((n, 1000))
    for C in (strongly_convex_lti(n, mu, smooth, eta), identity(n)):
        theta, seen = np.zeros(1000), []
        for row in C.recurrence().apply(z):
            theta = theta - eta * (np.where(theta > 0, smooth, mu) * theta + row)
            seen.append(np.mean(0.5 * np.where(theta > 0, smooth, mu) * theta**2))
        bound = strongly_convex_bound(C, mu, smooth, eta)
        assert 0.02 * bound < np.mean(seen[200:]) < bound


@pytest.mark.weekly
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("lags", [0, 1, 8])
def test_no_worse_than_nu_ftrl_the_identity_and_the_quadratic_optimum(
    problem: tuple[float, float, float], lags: int
) -> None:
    mu, smooth, eta = problem
    n = int(30 / min(eta * mu, 2 - eta * smooth))

    def judged(C: Factorization) -> float:
        return strongly_convex_bound(C, mu, smooth, eta, lags=lags) * squared(C)

    found = judged(strongly_convex_lti(n, mu, smooth, eta, lags=lags))
    rivals = [nu_ftrl(float(nu), n) for nu in np.geomspace(0.2 * eta * mu, 1.0, 20)]
    rivals += [identity(n), quadratic_lti(n, np.geomspace(mu, smooth, 10), eta)]
    best = min(judged(C) for C in rivals)
    assert found <= best * (1 + 1e-6)
    if lags == 8 and eta * smooth > 1:
        assert found < 0.95 * best
    assert found < judged(identity(n))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_perturbations_of_the_noise_do_not_lower_the_bound(problem: tuple[float, float, float]) -> None:
    mu, smooth, eta = problem
    n = int(40 / min(eta * mu, 2 - eta * smooth))
    C = strongly_convex_lti(n, mu, smooth, eta)
    least = strongly_convex_bound(C, mu, smooth, eta) * squared(C)
    rng = np.random.default_rng(4)
    for size in (0.01, 0.1):
        for _ in range(6):
            # exp of a polynomial: the perturbed factor stays causal with a causal inverse.
            bump, term = np.eye(1, n)[0], np.eye(1, n)[0]
            log = np.pad(size * rng.standard_normal(5), (1, 0))
            for order in range(1, 30):
                term = np.convolve(term, log)[:n] / order
                bump = bump + term
            other = InverseToeplitz(np.real(np.convolve(C.correlation, bump))[:n], n)
            assert strongly_convex_bound(other, mu, smooth, eta) * squared(other) >= least * (1 - 1e-7)


@pytest.mark.parametrize("problem", [(0.1, 1.0, 0.5), (0.02, 1.0, 0.9), (0.6, 2.0, 0.3)])
def test_without_lags_it_is_a_nu_ftrl(problem: tuple[float, float, float]) -> None:
    """ψ has a constant numerator, and a denominator linear in |D|²: |B|² ∝ |1 − (1 − ν)z|."""
    mu, smooth, eta = problem
    found = strongly_convex_lti(100, mu, smooth, eta, lags=0).correlation
    nu = 1.0 + 2.0 * found[1]
    assert 0 < nu < 1
    np.testing.assert_allclose(found, nu_ftrl(float(nu), 100).correlation, rtol=0, atol=1e-9)


@pytest.mark.parametrize("lags", [0, 4])
def test_equal_curvatures_are_a_quadratic(lags: int) -> None:
    found = strongly_convex_lti(100, 0.7, 0.7, 0.5, lags=lags)
    np.testing.assert_allclose(found.correlation, nu_ftrl(0.35, 100).correlation, rtol=0, atol=1e-6)
    exact = quadratic_suboptimality(nu_ftrl(0.1, 4000), [0.7], 0.5)
    assert strongly_convex_bound(nu_ftrl(0.1, 4000), 0.7, 0.7, 0.5, lags=lags) == pytest.approx(
        exact, rel=1e-6
    )


@pytest.mark.parametrize("problem", PROBLEMS)
def test_more_lags_tighten_the_bound_and_a_general_solver_finds_no_better(
    problem: tuple[float, float, float],
) -> None:
    mu, smooth, eta = problem
    C = nu_ftrl(0.1, 1500)
    bounds = [strongly_convex_bound(C, mu, smooth, eta, lags=lags) for lags in (0, 1, 4, 16)]
    assert all(later <= earlier * (1 + 1e-8) for earlier, later in pairwise(bounds))

    omega = (np.arange(4000) + 0.5) * np.pi / 4000
    power = np.abs(1.0 - 0.9 * np.exp(1j * omega))

    def value(x: Array) -> float:
        # x: log of the scale, and the two shares of the lags.
        shares = np.abs(x[1:]) / max(1.0, np.abs(x[1:]).sum())
        psi = Multipliers((eta * mu, eta * smooth), (np.exp(x[0]), *(np.exp(x[0]) * shares))).bound(omega)
        return float(0.5 * smooth * eta**2 * np.mean(power * psi)) if np.isfinite(psi).all() else 1e6

    base = usable(problem, (1.0,), 2.0)
    assert base is not None
    found = min(
        minimize(value, [np.log(base.values[0]), *start], method="Nelder-Mead", options={"xatol": 1e-7}).fun
        for start in ([0.1, 0.1], [0.01, 0.4])
    )
    assert bounds[1] <= found * (1 + 1e-6)
    assert bounds[1] == pytest.approx(found, rel=1e-3)


def test_gradient_noise_shifts_the_multipliers() -> None:
    """The optimum for noisy gradients beats that for exact ones where they are noisy, and the reverse."""
    mu, smooth, eta, n = 0.02, 1.0, 1.5, 1200
    made = {s: strongly_convex_lti(n, mu, smooth, eta, gradient_noise=s) for s in (0.0, 30.0)}
    unit = {s: InverseToeplitz(C.correlation * np.sqrt(squared(C)), n) for s, C in made.items()}
    for s in made:
        own = strongly_convex_bound(unit[s], mu, smooth, eta, gradient_noise=s)
        other = strongly_convex_bound(unit[30.0 - s], mu, smooth, eta, gradient_noise=s)
        assert own < other
    assert strongly_convex_bound(unit[0.0], mu, smooth, eta, gradient_noise=1.0) > strongly_convex_bound(
        unit[0.0], mu, smooth, eta
    )


def test_does_not_depend_on_the_horizon_and_states_its_sensitivity() -> None:
    long, short = strongly_convex_lti(600, 0.05, 1.0, 1.0), strongly_convex_lti(30, 0.05, 1.0, 1.0)
    np.testing.assert_allclose(long.correlation[:30], short.correlation, rtol=0, atol=1e-11)
    stated = stated_sensitivity(long, Participation(600, 6, 100))
    assert stated.kind in ("exact", "upper_bound")
    assert stated.value >= np.linalg.norm(long.column_sum([0, 100, 200, 300, 400, 500])) * (1 - 1e-12)


def test_refuses() -> None:
    for change, message in [
        ({"rounds": 0}, r"n \(rounds\) must be an integer of at least 1; got 0"),
        ({"strong_convexity": 0.0}, r"mu \(strong_convexity\) must be positive and finite; got 0.0"),
        ({"strong_convexity": float("nan")}, r"mu \(strong_convexity\)"),
        ({"smoothness": 0.05}, r"L \(smoothness\) must be finite and at least mu=0.1; got 0.05"),
        ({"smoothness": float("inf")}, r"L \(smoothness\)"),
        (
            {"learning_rate": 2.0},
            r"eta \(learning_rate\) must be between 0 and 2/L=2, both excluded; got 2.0",
        ),
        ({"learning_rate": -0.1}, r"eta \(learning_rate\)"),
        ({"learning_rate": float("nan")}, r"eta \(learning_rate\)"),
        ({"lags": -1}, r"K \(lags\) must be an integer between 0 and 32; got -1"),
        ({"lags": 1.5}, r"K \(lags\)"),
        ({"gradient_noise": -1.0}, r"s \(gradient_noise\) must be finite and at least 0; got -1.0"),
        ({"gradient_noise": float("nan")}, r"s \(gradient_noise\)"),
        ({"strong_convexity": 1e-8, "lags": 0}, r"eta\*lambda_min .* must leave a spectrum"),
    ]:
        given: dict[str, float] = {
            "rounds": 5,
            "strong_convexity": 0.1,
            "smoothness": 1.0,
            "learning_rate": 0.5,
        }
        with pytest.raises(ValueError, match=message) as error:
            strongly_convex_lti(**{**given, **change})  # type: ignore[arg-type]
        assert "\n" not in str(error.value)


def test_bound_refuses_what_is_not_toeplitz() -> None:
    with pytest.raises(ValueError, match=r"C \(factorization\) must be Toeplitz"):
        strongly_convex_bound(optimal_diagonal(4), 0.1, 1.0, 0.5)
