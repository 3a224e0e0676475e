"""Robust design: gradient, optimality within its class, and what it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import ltt, rmse, scalar_sensitivity

from fedmf.factorization.matrices.toeplitz import Toeplitz
from fedmf.factorization.mechanisms import banded_toeplitz, blt
from fedmf.factorization.mechanisms.robust import (
    RobustObjective,
    Scenarios,
    robust_toeplitz,
    tapered,
)
from fedmf.factorization.objectives.error import StrategyError, errors
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.participation import Participation
from fedmf.workload.toeplitz import average, exponential, prefix, weighted

SEPARATIONS = Scenarios.separations(120, [12, 18, 24], 5, weights=[0.5, 0.2, 0.3])


def _curve(C, scenarios=SEPARATIONS):
    found = []
    for contract in scenarios.contracts:
        stated = stated_sensitivity(C, contract)
        assert stated.kind == "exact"
        found.append(errors(C, prefix(C.rounds), stated).rmse)
    return np.array(found)


def _expected(C, scenarios=SEPARATIONS):
    return float(_curve(C, scenarios) @ scenarios.weights)


def _numeric(function, x):
    return [(function(x + step)[0] - function(x - step)[0]) / 2e-6 for step in 1e-6 * np.eye(x.size)]


@pytest.mark.parametrize("p", [1, 4, 10])
def test_strategy_error_is_the_dense_one_and_its_gradient_is_right(p):
    c = np.sort(np.random.default_rng(0).random(p))[::-1] + 0.1
    for workload in (prefix(10), exponential(0.7, 10), average(10)):
        function = StrategyError(workload)
        value, slope = function(c)
        dense = workload.materialize() @ np.linalg.inv(ltt(c, 10))
        assert value == pytest.approx(np.sum(dense**2), rel=1e-12)
        assert slope == pytest.approx(_numeric(function, c), rel=1e-6, abs=1e-6)
    for own in (prefix(10), exponential(0.7, 10)):
        for rows in (None, np.linspace(0.5, 2, 10)):
            rated = weighted(own, rows=rows, columns=np.geomspace(1, 0.01, 10))
            value, slope = StrategyError(rated)(c)
            dense = rated.materialize() @ np.linalg.inv(ltt(c, 10))
            assert value == pytest.approx(np.sum(dense**2), rel=1e-12)
            assert slope == pytest.approx(_numeric(StrategyError(rated), c), rel=1e-6, abs=1e-6)


def test_learning_rates_are_honoured():
    """Made for falling rates, the worst and the mean error under them are lower; judged by dense C."""
    scenarios = Scenarios.separations(30, [8, 10], 3)
    rated = weighted(prefix(30), columns=np.geomspace(1.0, 0.01, 30))

    def judged(workload, criterion):
        C = robust_toeplitz(8, scenarios, workload, criterion)
        deviations = [stated_sensitivity(C, contract).value for contract in scenarios.contracts]
        each = rmse(rated.materialize(), C.materialize(), 1.0) * np.array(deviations)
        return each.mean() if criterion == "expected" else each.max()

    for criterion in ("expected", "worst"):
        assert judged(rated, criterion) < 0.9995 * judged(prefix(30), criterion)


@pytest.mark.parametrize("order", [1.0, 8.0, 500.0])
@pytest.mark.parametrize(
    "workload", [prefix(9), weighted(prefix(9), np.linspace(0.5, 2, 9), np.geomspace(1, 0.05, 9))]
)
def test_objective_is_the_error_over_the_scenarios_and_its_gradient_is_right(workload, order):
    scenarios = Scenarios.separations(9, [2, 3, 4], 3, weights=[0.2, 0.5, 0.3])
    c = np.array([1.1, 0.6, 0.4, 0.4, 0.1])
    value, slope = RobustObjective(scenarios, workload, order)(c)
    dense = ltt(c, 9)
    each = [
        rmse(
            workload.materialize(),
            dense,
            scalar_sensitivity(dense, own.max_participations, own.min_separation),
        )
        for own in scenarios.contracts
    ]
    expected = np.linalg.norm(scenarios.weights * each, ord=order) * 3.0
    assert np.exp(value) == pytest.approx(expected, rel=1e-12)
    numeric = _numeric(RobustObjective(scenarios, workload, order), c)
    assert slope == pytest.approx(numeric, rel=1e-5, abs=1e-7)


def test_one_certain_separation_is_the_banded_toeplitz_optimum():
    contract = Participation(120, 5, 24)
    scenarios = Scenarios((contract,), np.ones(1))
    for criterion in ("expected", "worst"):
        ours = robust_toeplitz(24, scenarios, criterion=criterion)
        assert _expected(ours, scenarios) <= _expected(banded_toeplitz(24, contract), scenarios) * (1 + 1e-6)


def test_better_on_average_than_taper_blt_and_every_single_separation():
    ours = robust_toeplitz(24, SEPARATIONS)
    upper = banded_toeplitz(24, SEPARATIONS.contracts[-1])
    rivals = [upper, tapered(upper, 12, 24)]
    rivals += [banded_toeplitz(own.min_separation, own) for own in SEPARATIONS.contracts]
    rivals += [blt(3, own) for own in SEPARATIONS.contracts]
    assert all(_expected(ours) < _expected(rival) for rival in rivals)
    assert (np.diff(ours.strategy) <= 0).all()
    assert ours.strategy.min() >= 0
    for start in (tapered(upper, 12, 24), Toeplitz(np.linspace(1, 0.5, 24), 120)):
        other = robust_toeplitz(24, SEPARATIONS, start=start)
        assert _expected(other) == pytest.approx(_expected(ours), rel=1e-6)


def test_worst_loss_against_knowing_the_separation():
    """With π_b = 1/best_b the worst criterion lowers the largest ratio; each single optimum loses more."""
    best = [
        _curve(banded_toeplitz(own.min_separation, own), Scenarios((own,), np.ones(1)))[0]
        for own in SEPARATIONS.contracts
    ]
    scenarios = Scenarios(SEPARATIONS.contracts, 1.0 / np.array(best))
    worst = robust_toeplitz(24, scenarios, criterion="worst")
    ratio = (_curve(worst) / best).max()
    assert ratio < (_curve(robust_toeplitz(24, SEPARATIONS)) / best).max()
    for own in SEPARATIONS.contracts:
        assert ratio < 0.99 * (_curve(banded_toeplitz(own.min_separation, own)) / best).max()


def test_equal_weights_make_the_smallest_separation_the_worst():
    """A smaller b allows all patterns of a larger one."""
    equal = Scenarios(SEPARATIONS.contracts, np.ones(3))
    curve = _curve(robust_toeplitz(24, equal, criterion="worst"))
    known = banded_toeplitz(12, SEPARATIONS.contracts[0])
    assert curve.max() <= _curve(known).max() * (1 + 1e-4)
    assert curve.argmax() == 0


def test_participations_follow_the_horizon_up_to_the_cap():
    found = Scenarios.separations(10, [2, 4, 9], 3).contracts
    assert [own.max_participations for own in found] == [3, 3, 2]
    assert Scenarios.separations(10, [2]).contracts[0].max_participations == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scenarios((), np.ones(1)), "each of 0 contracts"),
        (lambda: Scenarios((Participation(4, 1, 4),), np.array([-1.0])), "non-negative"),
        (lambda: Scenarios((Participation(4, 1, 4), Participation(5, 1, 5)), np.ones(2)), "same for all"),
        (lambda: robust_toeplitz(200, SEPARATIONS), "between 1 and n=120"),
        (lambda: robust_toeplitz(2, SEPARATIONS, prefix(9)), "n=120 rounds"),
        (lambda: robust_toeplitz(2, SEPARATIONS, criterion="mean"), "'expected' or 'worst'"),  # pyright: ignore
        (lambda: robust_toeplitz(2, SEPARATIONS, start=Toeplitz([1.0, 2.0], 120)), "got a rise"),
        (lambda: tapered(Toeplitz([1.0], 9), 4, 4), "below b_hat"),
    ],
)
def test_bad_requests_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
