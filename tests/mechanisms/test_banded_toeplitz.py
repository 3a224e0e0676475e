"""The optimizer reaches the optimum: gradient, other starts, and the mechanisms it must beat."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import ltt, prefix_sums, rmse

from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation


def _rmse(C, contract):
    return errors(C, prefix(contract.rounds), sensitivity_of(C, contract)).rmse


@pytest.mark.parametrize(("n", "k", "b", "p"), [(30, 3, 10, 6), (24, 2, 4, 6), (20, 20, 1, 3)])
def test_other_starts_and_a_derivative_free_search_find_nothing_better(n, k, b, p):
    from scipy.optimize import minimize

    contract = Participation(n, k, b)
    best = _rmse(banded_toeplitz(p, contract), contract)
    rng = np.random.default_rng(1)
    for _ in range(2):
        start = np.concatenate([[1.0], np.sort(rng.random(p - 1) * rng.random())[::-1]])
        assert _rmse(banded_toeplitz(p, contract, start=start), contract) >= best * (1 - 1e-6)
        # Oracle: dense inverse, and the sensitivity of orthogonal or of non-increasing columns.
        optimum = minimize(
            lambda x: _dense_rmse(np.concatenate([[1.0], x]), n, k, b),
            start[1:],
            method="Nelder-Mead",
            options={"maxfev": 1500},
        )
        assert optimum.fun >= best * (1 - 1e-6)


def _dense_rmse(c, n, k, b):
    monotone = (np.diff(c) <= 0).all() and c[-1] >= 0
    if c.size > b and not monotone:
        return 1e6
    dense = ltt(c, n)
    return rmse(
        prefix_sums(n), dense, float(np.linalg.norm(dense[:, : (k - 1) * b + 1 : b].sum(axis=1)))
    )


@pytest.mark.parametrize(
    ("contract", "bands"),
    [(Participation(320, 5, 64), bands) for bands in (2, 8, 64)]
    + [(Participation(200, 2, 10), 40)],
)
def test_beats_bsr_and_the_one_parameter_family(contract, bands):
    optimal = _rmse(banded_toeplitz(bands, contract), contract)
    for other in ("bsr", "one-parameter", "bfr"):
        rival = _rmse(build(other, contract, bands=bands).factorization, contract)
        margin = 1.0
        if bands == 2:
            margin = 1 + 1e-7  # every family has one coefficient, and a search gives the same
        assert optimal < rival * margin


@pytest.mark.parametrize(("n", "k", "b", "p"), [(60, 2, 5, 20), (24, 24, 1, 6)])
def test_beyond_the_separation_the_result_is_monotone_and_exact(n, k, b, p):
    contract = Participation(n, k, b)
    C = banded_toeplitz(p, contract)
    assert (np.diff(C.strategy_coefs) <= 1e-15).all()
    assert C.strategy_coefs.min() >= 0
    assert sensitivity_of(C, contract).kind == "exact"
    assert _rmse(C, contract) <= _rmse(banded_toeplitz(min(b, p), contract), contract) * (1 + 1e-6)


def test_bad_requests_are_rejected():
    with pytest.raises(ValueError, match="finite inverse over n=3000"):
        banded_toeplitz(2, Participation(3000, 1, 3000), start=np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="between 1 and n=10"):
        banded_toeplitz(11, Participation(10, 3, 4))
