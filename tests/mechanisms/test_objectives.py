"""Objectives: the errors themselves, their power means, and gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.oracles import (
    ltt,
    objective_by_definition,
    query_variances,
    scalar_sensitivity,
)

from fedmf.mechanisms.banded import log_error
from fedmf.mechanisms.banded_inverse import EarliestObjective
from fedmf.mechanisms.banded_toeplitz import ScaledObjective, ToeplitzObjective
from fedmf.mechanisms.blt import BufferedObjective
from fedmf.mechanisms.closed_forms import rated_power
from fedmf.mechanisms.dense import log_smooth_error
from fedmf.mechanisms.errors import LAST, MAX, RMSE, Objective, PowerMean, QuickError, StrategyError, errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.mechanisms.workload import exponential, parse_workload, prefix, weighted
from fedmf.participation import Participation

WEIGHTS = Objective("weights", (1.0, 0.2, 3.0))
ORDER = 8.0


def _numeric(function, x, step=1e-6):
    return np.array([(function(x + e) - function(x - e)) / (2 * step) for e in step * np.eye(x.size)])


def test_every_mechanism_is_judged_by_the_definition():
    for name in ["bsr", "bisr", "normalized-cgd", "banded", "dense", "tree"]:
        for text in ["prefix", "average", "momentum:0.5*linear"]:
            for objective in [RMSE, MAX, LAST, WEIGHTS]:
                contract, A = Participation(9, 2, 4), parse_workload(text, 9)
                C = build(name, contract, A).factorization
                stated = stated_sensitivity(C, contract)
                found = errors(C, A, stated, 0.7, objective)
                variances = query_variances(A.materialize(), C.materialize())
                expected = 0.7 * stated.value * np.sqrt(objective_by_definition(objective, list(variances)))
                assert found.objective == pytest.approx(expected, rel=1e-9)
                if isinstance(C, Toeplitz) or name == "bisr":
                    assert QuickError(contract, A, objective)(C) == pytest.approx(
                        found.objective / 0.7, rel=1e-9
                    )


def test_text_is_read_back_and_nonsense_is_refused():
    for objective in (RMSE, MAX, LAST, WEIGHTS):
        assert Objective.parse(objective.text) == objective
    assert WEIGHTS.label == "weighted RMSE"
    for text, message in [
        ("mse", "must be rmse, max, last or weights"),
        ("weights", "must be given"),
        ("max:1", "must be given"),
        ("weights:1,x", "Separate them by commas"),
        ("weights:0,0", "not all zero"),
        ("weights:1,-1", "non-negative"),
        ("weights:inf", "finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            Objective.parse(text)
    with pytest.raises(ValueError, match="at most n=2; got 3"):
        WEIGHTS.spread(2)


def _power_mean(rows):
    return float((rows**ORDER).sum() ** (1 / ORDER))


def test_power_means_lie_between_the_largest_and_its_multiple():
    rng = np.random.default_rng(0)
    for order in MAX.orders:
        squares, v = rng.random(30), rng.random(30)
        value = float(PowerMean(squares, order)(v) @ v)
        largest = (squares * v).max()
        assert largest * (1 - 1e-12) <= value <= largest * 30 ** (1 / order) * (1 + 1e-12)


@pytest.mark.parametrize("rows", [None, np.linspace(0.5, 2, 8)], ids=["", "rows"])
@pytest.mark.parametrize("columns", [None, np.linspace(1, 0.2, 8)], ids=["", "columns"])
@pytest.mark.parametrize("make", [prefix, lambda n: exponential(0.7, n)], ids=["prefix", "exponential"])
def test_every_objective_is_the_dense_power_mean_and_its_gradient_is_right(make, columns, rows):
    contract, A = Participation(8, 2, 4), weighted(make(8), rows=rows, columns=columns)
    dense, c = A.materialize(), np.array([1.0, 0.6, 0.3])

    def of(C):
        return _power_mean(query_variances(dense, C))

    def logged(C):
        return np.log(of(C) * scalar_sensitivity(C, 2, 4) ** 2)

    value, slope = StrategyError(A, ORDER)(c)
    assert value == pytest.approx(of(ltt(c, 8)), rel=1e-11)
    assert slope == pytest.approx(_numeric(lambda x: of(ltt(x, 8)), c), rel=1e-6, abs=1e-6)

    cases = [
        (EarliestObjective(contract, A, ORDER), c[1:], lambda x: logged(np.linalg.inv(ltt(_inverse(x), 8)))),
        (ScaledObjective(3, contract, A, True, ORDER), c, lambda x: logged(_normalized(ltt(x, 8)))),
        (ScaledObjective(3, contract, A, False, ORDER), c, lambda x: logged(ltt(x, 8))),
    ]
    if columns is None:
        cases.append((ToeplitzObjective(3, contract, A, ORDER), c, lambda x: logged(ltt(x, 8))))
    buffered = BufferedObjective(contract, A, ORDER)
    point = buffered.parameters(np.array([0.9, 0.4]), np.array([0.2, 0.3]))

    def blt_matrix(x):
        theta, omega = buffered.pair(x)
        return ltt(np.append(1.0, theta ** np.arange(7)[:, None] @ omega), 8)

    cases.append((buffered, point, lambda x: logged(blt_matrix(x))))
    for objective, x, truth in cases:
        value, slope = objective(x)
        assert value == pytest.approx(truth(x), rel=1e-9, abs=1e-9)
        assert slope == pytest.approx(_numeric(truth, x), rel=1e-5, abs=1e-7)

    exists = np.add.outer(np.arange(8), np.arange(3)) < 8
    band = np.where(exists, np.random.default_rng(1).random((8, 3)) + 0.3, 0.0)
    norms = np.linspace(1.0, 0.5, 8)
    value, slope, slope_norms = log_error(band, A, norms, ORDER)

    def banded_value(band, norms):
        C = np.zeros((8, 8))
        for j, d in itertools.product(range(8), range(3)):
            if j + d < 8:
                C[j + d, j] = norms[j] * band[j, d] / np.linalg.norm(band[j])
        return np.log(of(C))

    assert value == pytest.approx(banded_value(band, norms), rel=1e-9, abs=1e-9)
    inside = exists.reshape(-1)
    measured = _numeric(lambda x: banded_value(x.reshape(8, 3), norms), band.reshape(-1))
    assert slope.reshape(-1)[inside] == pytest.approx(measured[inside], rel=1e-5, abs=1e-7)
    assert slope_norms == pytest.approx(_numeric(lambda s: banded_value(band, s), norms), rel=1e-5, abs=1e-7)


def _inverse(tail):
    """h for c = (1, tail): its first coefficients."""
    p = tail.size + 1
    return np.linalg.inv(ltt(np.append(1.0, tail), p))[:, 0]


def _normalized(C):
    return C / np.linalg.norm(C, axis=0)


def test_the_smooth_error_of_a_dense_matrix_follows_the_order():
    C, A = np.tril(np.random.default_rng(0).random((5, 5))) + np.eye(5), np.tril(np.ones((5, 5)))
    pairs = np.array([[0, 3], [1, 4]])
    plain = log_smooth_error(C, A, pairs, 10.0, 0.1)[0] - np.log(query_variances(A, C).sum())
    value, slope = log_smooth_error(C, A, pairs, 10.0, 0.1, ORDER)
    assert value == pytest.approx(plain + np.log(_power_mean(query_variances(A, C))), rel=1e-12)
    at = np.tril_indices(5)

    def of(x):
        moved = np.zeros((5, 5))
        moved[at] = x
        return log_smooth_error(moved, A, pairs, 10.0, 0.1, ORDER)[0]

    assert slope[at] == pytest.approx(_numeric(of, C[at]), rel=1e-6, abs=1e-8)


def test_the_largest_error_of_a_toeplitz_matrix_is_the_last():
    """Without weights; with them it need not be."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        C = ltt(rng.normal(size=7) + np.array([3, 0, 0, 0, 0, 0, 0]), 7)
        A = ltt(rng.normal(size=7), 7)
        v = query_variances(A, C)
        assert (np.diff(v) >= -1e-12).all()
    falling = parse_workload("prefix*linear", 7)
    assert MAX.for_toeplitz(prefix(7)) == LAST
    assert MAX.for_toeplitz(falling) is MAX
    assert np.argmax(query_variances(falling.materialize(), ltt(np.array([1.0, 0.9]), 7))) != 6


def test_the_earliest_pattern_is_the_worst_of_falling_columns():
    """The theorem of docs/theory/mechanisms.md, by enumeration; wider than the separation too."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        n, k, b = 9, int(rng.integers(1, 5)), int(rng.integers(1, 5))
        contract = Participation(n, min(k, -(-n // b)), b)
        rates = np.sort(rng.random(n) + 0.05)[::-1]
        A = weighted(prefix(n), columns=rates)
        C = rated_power(A, rng.uniform(0.1, 1), int(rng.integers(1, n + 1)), rng.uniform(0, 2))
        stated = stated_sensitivity(C, contract)
        truth = scalar_sensitivity(C.materialize(), contract.max_participations, b)
        earliest = C.materialize()[:, np.arange(0, n, b)[: contract.max_participations]].sum(1)
        assert stated.value == pytest.approx(truth, rel=1e-12)
        assert np.linalg.norm(earliest) == pytest.approx(truth, rel=1e-12)
        assert stated.kind == "exact"


def test_stamped_blocks_have_no_weights():
    with pytest.raises(ValueError, match="must be left out for weighted queries"):
        build("bsr", Participation(8, 1, 8), params={"stamps": 2}, objective=WEIGHTS)
    assert build("bsr", Participation(8, 1, 8), params={"stamps": 2}, objective=MAX).params["stamps"] == 2
