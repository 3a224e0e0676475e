"""Joint optimisation of c and its column scale."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import ltt, query_variances

from fedmf.mechanisms.banded_toeplitz import (
    banded_toeplitz,
    normalized_banded_toeplitz,
)
from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.matrix import normalized
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.workload import momentum, parse_workload, prefix, weighted
from fedmf.participation import Participation

RATES = 0.1 + np.linspace(1.0, 0.0, 18)
WORKLOADS = {
    "prefix": prefix(18),
    "average": parse_workload("average", 18),
    "momentum": momentum(0.9, 18),
    "window": parse_workload("window:5", 18),
    "weighted": weighted(momentum(0.5, 18), rows=np.linspace(1, 2, 18), columns=RATES),
}


def _rmse(C, contract, workload):
    return errors(C, workload, stated_sensitivity(C, contract)).rmse


@pytest.mark.parametrize(
    ("n", "k", "b", "p"), [(9, 1, 9, 4), (60, 2, 30, 8), (200, 4, 50, 50), (100, 1, 100, 100), (60, 3, 5, 9)]
)
@pytest.mark.parametrize("text", ["prefix", "momentum:0.9"])
def test_never_worse_than_normalising_the_optimum(n, k, b, p, text):
    contract, workload = Participation(n, k, b), parse_workload(text, n)
    joint = _rmse(normalized_banded_toeplitz(p, contract, workload), contract, workload)
    heuristic = _rmse(normalized(banded_toeplitz(p, contract, workload=workload)), contract, workload)
    assert joint <= heuristic
    if p <= b:
        assert joint < heuristic * (1 - 1e-6)


def test_no_other_start_or_method_finds_better():
    from scipy.optimize import minimize

    contract = Participation(12, 1, 12)
    best = _rmse(normalized_banded_toeplitz(4, contract), contract, prefix(12))

    def dense_rmse(tail):
        dense = ltt(np.concatenate([[1.0], tail]), 12)
        dense = dense / np.linalg.norm(dense, axis=0)
        return float(np.sqrt(query_variances(prefix(12).materialize(), dense).mean()))

    rng = np.random.default_rng(0)
    for _ in range(4):
        found = minimize(
            dense_rmse, rng.random(3), method="Nelder-Mead", options={"xatol": 1e-7, "maxfev": 2000}
        )
        assert found.fun >= best * (1 - 1e-8)


def test_learning_rates_enter_the_objective():
    """A schedule that ends at a tenth: c fitted to it beats c fitted to a constant rate."""
    n, contract = 120, Participation(120, 4, 30)
    workload = weighted(prefix(n), columns=np.linspace(1.0, 0.1, n))
    fitted = banded_toeplitz(30, contract, workload)
    assert (
        _rmse(fitted, contract, workload) < _rmse(banded_toeplitz(30, contract), contract, workload) * 0.999
    )
    joint = normalized_banded_toeplitz(30, contract, workload)
    assert _rmse(joint, contract, workload) < _rmse(normalized(fitted), contract, workload)


def test_what_cannot_be_joint_is_the_normalised_optimum():
    contract = Participation(5000, 2, 2500)
    C = normalized_banded_toeplitz(4, contract)
    assert np.array_equal(C.strategy, banded_toeplitz(4, contract).strategy)
