"""The banded inverse: gradient, optimum, certified sensitivity, and the published errors."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import prefix_sums, rmse, scalar_sensitivity

from fedmf.mechanisms.banded_inverse import banded_inverse
from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.workload import exponential, prefix, weighted
from fedmf.participation import Participation

SIGMA = 0.60023  # of (8, 1e-5) for sensitivity 1
TEN_EPOCHS = Participation(3900, 10, 390)


def _rmse(C, contract, workload=None):
    stated = stated_sensitivity(C, contract)
    assert stated.kind == "exact"
    return errors(C, workload or prefix(contract.rounds), stated).rmse


def _weighted(make):
    """Learning rates on top, and row weights where there are none."""

    def made(n):
        own = make(n)
        rows = np.linspace(0.5, 2.0, n) if own.row_weights is None else own.row_weights
        return weighted(own, rows=rows, columns=np.geomspace(1.0, 0.05, n))

    return made


DECAYING = _weighted(lambda n: exponential(0.8, n))


def _numeric(function, x):
    steps = 1e-6 * np.eye(x.size)
    return [(function(x + step)[0] - function(x - step)[0]) / 2e-6 for step in steps]


@pytest.mark.parametrize(
    ("n", "k", "b", "p"), [(30, 2, 15, 6), (30, 3, 10, 10), (40, 2, 4, 8), (12, 12, 1, 3), (24, 1, 24, 5)]
)
def test_a_derivative_free_search_with_the_true_sensitivity_finds_nothing_better(n, k, b, p):
    from scipy.optimize import minimize

    contract = Participation(n, k, b)
    best = _rmse(banded_inverse(p, contract), contract)

    def exact(x):
        C = type(banded_inverse(1, contract))(np.concatenate([[1.0], x]), n)
        stated = stated_sensitivity(C, contract)
        return errors(C, prefix(n), stated).rmse

    rng = np.random.default_rng(1)
    for _ in range(2):
        start = -0.5 * rng.random(p - 1) / np.arange(1, p)
        found = minimize(exact, start, method="Nelder-Mead", options={"maxfev": 400})
        assert found.fun >= best * (1 - 1e-6)


@pytest.mark.parametrize(
    "contract", [Participation(9, 3, 3), Participation(10, 3, 4), Participation(8, 8, 1)]
)
@pytest.mark.parametrize("p", [2, 4, 8])
def test_sensitivity_is_that_of_every_pattern(contract, p):
    C = banded_inverse(p, contract)
    stated = stated_sensitivity(C, contract)
    dense = C.materialize()
    k, b = contract.max_participations, contract.min_separation
    assert stated.kind == "exact"
    assert stated.value == pytest.approx(scalar_sensitivity(dense, k, b), rel=1e-10)
    assert _rmse(C, contract) == pytest.approx(
        rmse(prefix_sums(contract.rounds), dense, stated.value), rel=1e-10
    )


@pytest.mark.parametrize(("p", "published"), [(2, 12.69), (4, 10.27), (16, 8.54), (64, 8.15)])
def test_no_worse_than_published(p, published):
    """Kalinin, McKenna, Pagh & Lampert (2026), Table 4, first column."""
    assert SIGMA * _rmse(banded_inverse(p, TEN_EPOCHS), TEN_EPOCHS) <= published * 1.002


@pytest.mark.parametrize(
    "contract", [Participation(300, 3, 100), Participation(300, 30, 10), Participation(300, 1, 300)]
)
@pytest.mark.parametrize("p", [2, 8, 40])
def test_beats_bifr_and_is_exact(contract, p):
    ours = _rmse(banded_inverse(p, contract), contract)
    assert ours <= _rmse(build("bifr", contract, bands=p).factorization, contract) * (1 + 1e-6)


def test_constraints_are_needed_and_hold_with_as_many_bands_as_the_separation():
    """Without them the earliest columns cancel (negative c) while other users do not."""
    contract = Participation(400, 4, 100)
    C = banded_inverse(100, contract)
    assert _rmse(C, contract) < _rmse(banded_inverse(32, contract), contract) * 1.001


def test_users_in_every_round_want_the_identity():
    contract = Participation(50, 50, 1)
    ours = _rmse(banded_inverse(50, contract), contract)
    assert ours <= _rmse(build("identity", contract).factorization, contract) * (1 + 1e-12)


def test_other_workloads():
    contract = Participation(100, 2, 50)
    workload = weighted(exponential(0.95, 100), rows=np.linspace(1, 2, 100))
    own, other = banded_inverse(8, contract, workload), banded_inverse(8, contract)
    assert _rmse(own, contract, workload) < 0.99 * _rmse(other, contract, workload)


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="between 1 and n=10"):
        banded_inverse(11, Participation(10, 2, 5))
    with pytest.raises(ValueError, match="n=10 rounds"):
        banded_inverse(2, Participation(10, 2, 5), prefix(9))
    assert banded_inverse(1, Participation(10, 2, 5)).correlation[1:].max() == 0.0
