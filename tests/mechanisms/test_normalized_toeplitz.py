"""Joint optimization of c and its column scale."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import ltt, query_variances

from fedmf.matrices.factorization import normalized
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.banded_toeplitz import (
    banded_toeplitz,
    normalized_banded_toeplitz,
)
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.workload import parse_workload, prefix
from fedmf.participation import Participation


def _rmse(C, contract, workload):
    return errors(C, workload, sensitivity_of(C, contract)).rmse


@pytest.mark.parametrize(("n", "k", "b", "p"), [(9, 1, 9, 4), (60, 2, 30, 8), (60, 3, 5, 9)])
@pytest.mark.parametrize("text", ["prefix", "momentum:0.9"])
def test_never_worse_than_normalizing_the_optimum(n, k, b, p, text):
    contract = Participation(n, k, b)
    workload = parse_workload(text, n)
    joint = _rmse(normalized_banded_toeplitz(p, contract, workload), contract, workload)
    heuristic = _rmse(
        normalized(banded_toeplitz(p, contract, workload=workload)), contract, workload
    )
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
    for _ in range(2):
        optimum = minimize(
            dense_rmse, rng.random(3), method="Nelder-Mead", options={"xatol": 1e-7, "maxfev": 2000}
        )
        assert optimum.fun >= best * (1 - 1e-8)
