"""λ of JME-Adam against a search over the product of noises that it minimizes."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.closed_forms import identity, square_root
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import exponential
from fedmf.moments import jme
from fedmf.optim import energy_weight, relative_energy_error
from fedmf.participation import Participation

sys.path.insert(0, str(Path(__file__).parents[2] / "simulations" / "optimizers"))
from second_moment_errors import squared_biases, squared_variances

ROUNDS = 12
CONTRACT = Participation(ROUNDS, 3, 4)
STRATEGIES = {
    "identity": identity(ROUNDS),
    "square root": square_root(ROUNDS),
    "banded": build("banded-toeplitz", CONTRACT, exponential(0.8, ROUNDS), 4).factorization,
}


def test_squares_of_the_noisy_mean_have_the_predicted_bias_and_variance() -> None:
    """60,000 draws for blocks of five: 4 % are six standard errors, which are 0.6 %."""
    C = STRATEGIES["banded"]
    runs = 60_000
    std = 0.7
    size = 5
    rng = np.random.default_rng(1)
    inverse = np.linalg.inv(C.materialize())
    data = rng.standard_normal((ROUNDS, size))
    averages = exponential(0.8, ROUNDS).materialize() / 5
    noisy = data + std * np.einsum(
        "ij,rjs->ris", inverse, rng.standard_normal((runs, ROUNDS, size))
    )
    estimates = (noisy**2).sum(axis=2) @ averages.T / size
    expected = squared_variances(averages, C, std, size, data @ data.T)
    np.testing.assert_allclose(estimates.var(axis=0), expected, rtol=0.04)
    bias = estimates.mean(axis=0) - averages @ (data**2).sum(axis=1) / size
    assert (np.abs(bias - squared_biases(averages, C, std)) < 6 * np.sqrt(expected / runs)).all()


@pytest.mark.parametrize("first", STRATEGIES)
@pytest.mark.parametrize("second", STRATEGIES)
@pytest.mark.parametrize("share", [0.5, 0.01, 1e-5])
def test_the_weight_minimizes_the_product_of_both_noises(
    first: str, second: str, share: float
) -> None:
    """The product is (noise of the first moment)·(1 + relative variance of v)."""
    C_1 = STRATEGIES[first]
    C_2 = STRATEGIES[second]
    users = UserRange(0.5, 2, "zero-out")
    m = 100
    rho = relative_energy_error(C_2, CONTRACT, 2.0, m, share)
    best = energy_weight(C_1, C_2, CONTRACT, users, rho)

    def product(weight: float) -> float:
        mechanism = jme(C_1, C_2, CONTRACT, users, 2.0, weight)
        assert mechanism.second_std is not None
        std = mechanism.second_std * math.sqrt(C_2.noise_row_variances()[0]) / m
        return mechanism.first_std**2 * (1 + (std / (share * users.norm_bound**2)) ** 2)

    others = [product(best * factor) for factor in (0.25, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 4.0)]
    assert product(best) <= min(others)
    sens = [sensitivity_of(C, CONTRACT).value for C in (C_1, C_2)]
    nu = best * users.norm_bound**2 * (sens[1] / sens[0]) ** 2
    assert nu == pytest.approx(rho / math.hypot(1, rho))
