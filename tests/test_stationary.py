"""Second moments of Noisy-FTRL in simulations/stationary: enumerated, and limits against long recursions."""

from __future__ import annotations

import importlib
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fedmf.factorization import quadratic_lti, quadratic_suboptimality

FOLDER = Path(__file__).parents[1] / "simulations" / "stationary"
sys.path.insert(0, str(FOLDER))
exact, simulate = map(importlib.import_module, ("exact", "simulate"))
sys.path.remove(str(FOLDER))


def enumerated(problem: object, noise: object, start: np.ndarray, steps: int, variance: float) -> float:
    """E F(θ_T) by Gauss–Hermite quadrature over every input: exact, the integrand being a polynomial."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    weights = weights / weights.sum()
    spectrum, eta = problem.spectrum, problem.learning_rate
    beta, total = noise.coefficients(steps), 0.0
    for places in product(range(4), repeat=steps * spectrum.size):
        x = nodes[list(places)].reshape(steps, -1) * np.sqrt(spectrum)
        # Rows: how θ_T depends on θ_0, and on each w_τ and ξ_t.
        carried, from_noise, from_residuals = np.eye(spectrum.size), [], []
        for t in range(steps):
            contraction = np.eye(spectrum.size) - eta * np.outer(x[t], x[t])
            carried = contraction @ carried
            from_noise = [contraction @ matrix for matrix in from_noise] + [np.zeros_like(carried)]
            from_noise = [
                matrix - eta * beta[t - at] * np.eye(spectrum.size) for at, matrix in enumerate(from_noise)
            ]
            from_residuals = [contraction @ vector for vector in from_residuals] + [eta * x[t]]
        # Signs of θ_0 are averaged: only its squares are given.
        second = carried @ np.diag(start) @ carried.T
        second += variance * sum(matrix @ matrix.T for matrix in from_noise)
        second += problem.residual * sum(np.outer(vector, vector) for vector in from_residuals)
        total += float(np.prod(weights[list(places)])) * 0.5 * float(np.trace(np.diag(spectrum) @ second))
    return total


@pytest.mark.parametrize("noise", [exact.WHITE, exact.DAMPED(0.2), exact.ANTI_PGD(0.3)])
def test_every_step_is_exact(noise: object) -> None:
    problem = exact.Regression((1.0, 0.3), 0.2, residual=0.7)
    start = np.array([0.5, 2.0])
    found = exact.trajectory(
        problem.spectrum, np.array([0.2]), [noise], np.array([1.3]), start, [1, 2, 3], residual=0.7
    )
    expected = [enumerated(problem, noise, start, steps, 1.3) for steps in (1, 2, 3)]
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)


@pytest.mark.parametrize("noise", [exact.WHITE, exact.DAMPED(0.003), exact.ANTI_PGD(0.1)])
def test_the_limit_is_that_of_the_steps(noise: object) -> None:
    problem = exact.Regression.decaying(8, 1.0, 0.1, residual=0.4)
    variance = noise.sensitivity_square() / 2.0
    steps = exact.trajectory(
        problem.spectrum, np.array([0.1]), [noise], np.array([variance]), np.zeros(8), [6000], residual=0.4
    )
    assert steps[0, 0] == pytest.approx(problem.limit(noise), rel=1e-6)


def test_no_noise_is_better_than_the_best() -> None:
    """On one direction the best is ν = ηλ; with random inputs it is found for their second moments."""
    for problem in (exact.Regression((1.0,), 0.3), exact.Regression.decaying(32, 0.7, 0.02)):
        best = problem.best_limit()
        nus = np.geomspace(1e-4, 1.0, 200)
        others = [problem.limit(family(nu)) for family in (exact.DAMPED, exact.ANTI_PGD) for nu in nus]
        assert best <= min(others) * (1 + 1e-9)
    one = exact.Regression((1.0,), 0.3)
    assert one.best_limit() == pytest.approx(one.limit(exact.DAMPED(0.3)), rel=1e-9)


def test_small_steps_are_a_quadratic() -> None:
    """Random inputs matter in the order of η: the optimum is that of fedmf's `quadratic_lti`."""
    problem = exact.Regression((1.0, 0.2), 1e-3)
    C = quadratic_lti(40_000, problem.eigenvalues, 1e-3)
    gentle = quadratic_suboptimality(C, problem.eigenvalues, 1e-3) * float(C.gram_diagonal(0)[0]) / 2.0
    assert problem.best_limit() == pytest.approx(gentle, rel=3e-3)


def test_the_iteration_has_the_exact_mean() -> None:
    """200 replicas, near stationarity: within 6 standard errors; a σ 1.1 times as large is noticed."""
    problem, rng = exact.Regression.decaying(4, 1.0, 0.1), np.random.default_rng(5)
    noise = exact.DAMPED(problem.slowest)
    keep = list(range(150, 600, 5))
    made = simulate.path(problem, noise, np.zeros(4), keep, 200, rng).suboptimality.mean(axis=0)
    variances = np.array([noise.sensitivity_square() / 2.0])
    expected = exact.trajectory(
        problem.spectrum, np.array([0.1]), [noise], variances, np.zeros(4), keep
    ).mean()
    error = made.std(ddof=1) / np.sqrt(made.size)
    assert abs(made.mean() - expected) < 6 * error
    assert abs(made.mean() - 1.21 * expected) > 6 * error
