"""L-BFGS of our own, and the sums and inverses that its objectives are made of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der
from scipy.signal import lfilter

from fedmf.mechanisms.blt import BufferedToeplitz, _inverse
from fedmf.mechanisms.optimise import Descent
from fedmf.mechanisms.series import lagged_products, product, reciprocal
from fedmf.typing import Vector

CLOSE = Descent(tolerance=1e-14, gradient=1e-8, evaluations=2000)


def rosenbrock(x: Vector) -> tuple[float, Vector]:
    return float(rosen(x)), np.asarray(rosen_der(x), dtype=np.float64)


@pytest.mark.parametrize("size", [2, 10, 50])
def test_a_curved_valley_is_followed_to_its_end_about_as_quickly_as_by_scipy(size: int) -> None:
    seen: list[Vector] = []

    def counted(x: Vector) -> tuple[float, Vector]:
        seen.append(x)
        return rosenbrock(x)

    start = np.full(size, -1.2)
    x = CLOSE.least(counted, start)
    ours = len(seen)
    options = {"ftol": 1e-14, "gtol": 1e-8, "maxcor": 10}
    minimize(counted, start, jac=True, method="L-BFGS-B", options=options)
    assert np.abs(rosenbrock(x)[1]).max() < 1e-4
    assert np.allclose(x, 1.0, atol=1e-5)
    assert ours < 1.3 * (len(seen) - ours)


@pytest.mark.parametrize("size", [2, 10])
def test_bounds_hold_at_every_point_and_the_end_is_that_of_scipy(size: int) -> None:
    low, high = np.full(size, -2.0), np.full(size, 0.5)

    def watched(x: Vector) -> tuple[float, Vector]:
        assert (x >= low - 1e-12).all()
        assert (x <= high + 1e-12).all()
        return rosenbrock(x)

    x = CLOSE.least(watched, np.full(size, -1.2), low, high)
    bounds = [(-2.0, 0.5)] * size
    theirs = minimize(rosenbrock, np.full(size, -1.2), jac=True, method="L-BFGS-B", bounds=bounds).fun
    assert rosenbrock(x)[0] <= theirs * (1 + 1e-6)
    assert x.max() == 0.5


def test_points_that_do_not_count_are_stepped_back_from() -> None:
    """x − log x, infinite from 4 on: the first step from 1e-3 leads far past that."""

    def barrier(x: Vector) -> tuple[float, Vector]:
        if not 0 < x[0] < 4:
            return math.inf, np.zeros(1)
        return float(x[0] - math.log(x[0])), 1.0 - 1.0 / x

    assert CLOSE.least(barrier, np.array([1e-3]))[0] == pytest.approx(1.0, abs=1e-6)


def test_it_ends_after_as_many_evaluations_as_it_may_take_and_never_above_its_start() -> None:
    seen: list[float] = []

    def counted(x: Vector) -> tuple[float, Vector]:
        value, slope = rosenbrock(x)
        seen.append(value)
        return value, slope

    x = Descent(0.0, 0.0, evaluations=7).least(counted, np.full(20, -1.2))
    assert len(seen) == 7
    assert rosen(x) <= seen[0]


@pytest.mark.parametrize(("terms", "bands"), [(50, 3), (50, 40), (6000, 1500), (9000, 700), (5000, 5000)])
def test_reciprocals_are_those_of_the_recurrence(terms: int, bands: int) -> None:
    """Every way to a next block: direct, few coefficients beside many terms, and by transforms."""
    c = 1.0 / np.sqrt(np.arange(1.0, bands + 1))
    expected = lfilter([1.0], c, np.eye(1, terms)[0])
    assert np.allclose(reciprocal(c, terms), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("terms", "lags"), [(30, 30), (30, 4), (3000, 3000), (3000, 17)])
def test_lagged_products(terms: int, lags: int) -> None:
    left, right = np.random.default_rng(terms + lags).normal(size=(2, terms))
    expected = np.correlate(left, right, "full")[terms - 1 : terms - 1 + lags]
    assert np.allclose(lagged_products(left, right, lags), expected, rtol=0, atol=1e-10)


def test_products_of_three_series() -> None:
    factors = list(np.random.default_rng(1).normal(size=(3, 40)))
    expected = np.convolve(np.convolve(factors[0], factors[1]), factors[2])[:40]
    assert np.allclose(product(factors, 40), expected, rtol=0, atol=1e-12)
    assert np.allclose(product([factors[0]] * 3, 40)[0], factors[0][0] ** 3)


@pytest.mark.parametrize(
    ("theta", "omega"),
    [
        ([0.5], [0.9]),
        ([0.99, 0.3], [0.2, 0.7]),
        ([0.9, 0.9 - 1e-13, 0.1], [0.3, 0.3, 0.3]),
        ([1 - 1e-9], [1e-6]),
    ],
)
def test_inverses_of_buffered_matrices_with_decays_near_each_other(
    theta: list[float], omega: list[float]
) -> None:
    decays, weights = np.array(theta), np.array(omega)
    c = BufferedToeplitz(decays, weights, 400).strategy
    assert np.allclose(_inverse(decays, weights, 400), reciprocal(c, 400), rtol=0, atol=1e-13)
