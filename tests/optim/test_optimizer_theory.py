"""Predicted errors of v against Monte Carlo, and λ against a search over the product it minimises."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedmf.mechanisms.closed_forms import identity, square_root
from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.workload import exponential
from fedmf.moments import jme
from fedmf.optim.energies import (
    averaging_weights,
    energy_weight,
    relative_energy_error,
    released_variances,
    squared_biases,
    squared_variances,
)
from fedmf.participation import Participation

ROUNDS, RUNS, STD = 12, 60_000, 0.7
CONTRACT = Participation(ROUNDS, 3, 4)
STRATEGIES = {
    "identity": identity(ROUNDS),
    "square root": square_root(ROUNDS),
    "banded": build("banded-toeplitz", CONTRACT, exponential(0.8, ROUNDS), 4).factorization,
}
# Relative standard error of a variance from 60,000 nearly normal values is 0.6 %; 4 % is six of them.
TOLERANCE = 0.04


def simulated(C: Factorization, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noisy v̂ from squares, v without noise, and the data, for blocks of one size; shape (runs, n), (n,)."""
    rng = np.random.default_rng(1)
    data = rng.standard_normal((ROUNDS, size))
    inverse = STD * np.linalg.inv(C.materialize())
    weights = averaging_weights(0.8, ROUNDS)
    energies = np.zeros((RUNS, ROUNDS))
    for column in range(size):
        noisy = data[:, column] + rng.standard_normal((RUNS, ROUNDS)) @ inverse.T
        energies += noisy**2
    return energies @ weights.T / size, weights @ (data**2).sum(1) / size, data


@pytest.mark.parametrize("which", STRATEGIES)
@pytest.mark.parametrize("size", [1, 5])
def test_squares_of_the_noisy_mean(which: str, size: int) -> None:
    C, weights = STRATEGIES[which], averaging_weights(0.8, ROUNDS)
    found, truth, data = simulated(C, size)
    expected = squared_variances(weights, C, STD, size, data @ data.T)
    np.testing.assert_allclose(found.var(axis=0), expected, rtol=TOLERANCE)
    limit = 6 * np.sqrt(expected / RUNS)
    assert (np.abs(found.mean(axis=0) - truth - squared_biases(weights, C, STD)) < limit).all()


@pytest.mark.parametrize("which", STRATEGIES)
def test_energies_with_noise_of_their_own(which: str) -> None:
    C, weights = STRATEGIES[which], averaging_weights(0.8, ROUNDS)
    white = np.random.default_rng(2).standard_normal((RUNS, ROUNDS))
    noise = STD * white @ np.linalg.inv(C.materialize()).T
    found = noise @ weights.T / 5
    np.testing.assert_allclose(found.var(axis=0), released_variances(weights, C, STD, 5), rtol=TOLERANCE)


@pytest.mark.parametrize("first", STRATEGIES)
@pytest.mark.parametrize("second", STRATEGIES)
@pytest.mark.parametrize("share", [0.5, 0.01, 1e-5])
def test_the_weight_minimises_the_product_of_both_noises(first: str, second: str, share: float) -> None:
    """(noise of the first moment)·(1 + relative variance of v), from the mechanism that would be used."""
    C_1, C_2, users, m = STRATEGIES[first], STRATEGIES[second], UserRange(0.5, 2, "zero-out"), 100
    rho = relative_energy_error(C_2, CONTRACT, 2.0, m, share)
    best = energy_weight(C_1, C_2, CONTRACT, users, rho)

    def product(weight: float) -> float:
        made = jme(C_1, C_2, CONTRACT, users, 2.0, weight)
        assert made.second_std is not None
        std = made.second_std * math.sqrt(C_2.noise_row_variances()[0]) / m
        return made.first_std**2 * (1 + (std / (share * users.norm_bound**2)) ** 2)

    others = [product(best * factor) for factor in (0.25, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 4.0)]
    assert product(best) <= min(others)
    sens = [stated_sensitivity(C, CONTRACT).value for C in (C_1, C_2)]
    nu = best * users.norm_bound**2 * (sens[1] / sens[0]) ** 2
    assert nu == pytest.approx(rho / math.hypot(1, rho))


def test_what_is_free_is_taken() -> None:
    C, users = STRATEGIES["banded"], UserRange(0.5, 2, "replace-one")
    made = jme(C, C, CONTRACT, users, 1.0, energy_weight(C, C, CONTRACT, users, 0.01))
    assert made.first_std == pytest.approx(2 * 0.5 * stated_sensitivity(C, CONTRACT).value)


def test_rows_of_the_average_sum_to_one() -> None:
    np.testing.assert_allclose(averaging_weights(0.99, 50).sum(axis=1), 1.0)
    assert averaging_weights(0.0, 3).tolist() == np.eye(3).tolist()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, math.nan])
def test_shares_that_cannot_be_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"p \(share of the energy in a block\) must be in \(0, 1\]"):
        relative_energy_error(STRATEGIES["identity"], CONTRACT, 1.0, 10, share)


@pytest.mark.parametrize("error", [0.0, -1.0, math.inf, math.nan])
def test_errors_that_cannot_be_are_refused(error: float) -> None:
    C = STRATEGIES["identity"]
    with pytest.raises(ValueError, match="must be positive and finite"):
        energy_weight(C, C, CONTRACT, UserRange(1.0, 2), error)
