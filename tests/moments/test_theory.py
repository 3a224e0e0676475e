"""Every theory function against Monte Carlo: five standard errors, false alarm 6e-7."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.moment_methods import cs, ime
from support.moment_methods import theory as th

from fedmf.matrices.factorization import Factorization
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import identity, square_root
from fedmf.mechanisms.workload import average, exponential
from fedmf.moments.methods import jme
from fedmf.participation import Participation

Array = NDArray[np.float64]
RUNS = 30_000
N = 5
ONCE = Participation(N, 1, N)
WORKLOADS = {w.name: w.materialize() for w in (average(N), exponential(0.9, N))}
STRATEGIES = {"square root": square_root(N), "decay": Toeplitz(0.7 ** np.arange(N), N)}


def agrees(measured: Array, expected: Array) -> None:
    """Means over runs (axis 0) against exact expectations: within five standard errors and 2 %."""
    mean = measured.mean(0)
    error = measured.std(0) / np.sqrt(len(measured))
    assert (np.abs(mean - expected) <= 5 * error).all(), (mean, expected, error)
    assert np.abs(mean.sum() / expected.sum() - 1) < 0.02


def noise(C: Factorization, std: float, runs: int, width: int, seed: int) -> Array:
    z = np.random.default_rng(seed).normal(size=(runs, N, width))
    return std * np.linalg.inv(C.materialize()) @ z


def data(d: int) -> Array:
    rows = np.random.default_rng(3).normal(size=(N, d)) + 0.5
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)


def test_moments_with_noise_of_their_own() -> None:
    for name in STRATEGIES:
        for work in WORKLOADS:
            C = STRATEGIES[name]
            A = WORKLOADS[work]
            d = 2
            users = UserRange(1.0, d, "replace-one")
            for made in (
                jme(C, C, ONCE, users, 0.8),
                ime(C, C, ONCE, users, 0.8, 0.3),
                cs(C, ONCE, users, 0.8, 0.5),
            ):
                assert made.second_std is not None
                first = A @ noise(C, made.first_std, RUNS, d, seed=1)
                agrees((first**2).sum(2), th.first_moment_errors(made, A, d))
                second = A @ noise(C, made.second_std, RUNS, d * d, seed=2)
                agrees((second**2).sum(2), th.second_moment_errors(made, A, d * d))
                together = second.reshape(RUNS, N, d, d)
                symmetric = (together + together.swapaxes(2, 3)) / 2
                agrees(
                    (symmetric**2).sum((2, 3)), th.second_moment_errors(made, A, d * (d + 1) // 2)
                )


def harmonic(n: int, power: int) -> float:
    return float(sum(k**-power for k in range(1, n + 1)))


def test_theorem_4_1_and_4_2_of_the_paper() -> None:
    """Trivial strategies, running averages, the worst data: the closed forms in absolute levels."""
    n = 40
    d = 3
    tau = 0.7
    C = identity(n)
    A = average(n).materialize()
    equal = np.zeros((n, d))
    equal[:, 0] = 1.0
    measured = th.covariance_errors(tau, tau * 2**0.5, C, C, A, equal, d * d).sum()
    closed = (2 * d * d + 2 * d + 2) * tau**2 * harmonic(n, 1) + d * (d + 1) * tau**4 * harmonic(
        n, 2
    )
    assert measured == pytest.approx(closed, rel=1e-12)
    turning = equal * (-1.0) ** np.arange(n)[:, None]
    measured = th.covariance_errors_by_squaring(tau, C, A, turning).sum()
    square = d * (d + 1) * tau**4 * (harmonic(n, 1) - harmonic(n, 2))
    low = square + 2 * (d + 1) * tau**2 * (harmonic(n, 1) - harmonic(n, 3))
    high = square + 2 * (d + 1) * tau**2 * harmonic(n, 1)
    assert low - 1e-9 <= measured <= high + 1e-9


def test_noise_variances_of_rows_are_not_those_of_the_paper() -> None:
    """Algorithm 6 has [(C₁C₁ᵀ)⁻¹]_tt; the noise C₁⁻¹Z has row variances [C₁⁻¹C₁⁻ᵀ]_tt
    (measured).
    """
    C = square_root(8)
    z = np.random.default_rng(8).normal(size=(400_000, 8))
    measured = (z @ np.linalg.inv(C.materialize()).T).var(0)
    np.testing.assert_allclose(measured, C.noise_row_variances(), rtol=0.015)
    printed = np.diag(np.linalg.inv(C.materialize() @ C.materialize().T))
    assert np.abs(measured / printed - 1).max() > 0.2
