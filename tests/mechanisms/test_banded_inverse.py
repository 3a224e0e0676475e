"""The banded inverse: gradient, optimum, certified sensitivity, and the published errors."""

from __future__ import annotations

import numpy as np
import pytest

from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.banded_inverse import banded_inverse
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

SIGMA = 0.60023  # of (8, 1e-5) for sensitivity 1
TEN_EPOCHS = Participation(3900, 10, 390)


def _rmse(C, contract, workload=None):
    stated = sensitivity_of(C, contract)
    assert stated.kind == "exact"
    return errors(C, workload or prefix(contract.rounds), stated).rmse


@pytest.mark.parametrize(("n", "k", "b", "p"), [(30, 3, 10, 6), (12, 12, 1, 3)])
def test_a_derivative_free_search_with_the_true_sensitivity_finds_nothing_better(n, k, b, p):
    from scipy.optimize import minimize

    contract = Participation(n, k, b)
    best = _rmse(banded_inverse(p, contract), contract)

    def exact(x):
        C = type(banded_inverse(1, contract))(np.concatenate([[1.0], x]), n)
        stated = sensitivity_of(C, contract)
        return errors(C, prefix(n), stated).rmse

    start = -0.5 * np.random.default_rng(1).random(p - 1) / np.arange(1, p)
    optimum = minimize(exact, start, method="Nelder-Mead", options={"maxfev": 400})
    assert optimum.fun >= best * (1 - 1e-6)


@pytest.mark.parametrize(("p", "published"), [(2, 12.69), (16, 8.54)])
def test_no_worse_than_published(p, published):
    """Kalinin, McKenna, Pagh & Lampert (2026), Table 4, first column."""
    assert SIGMA * _rmse(banded_inverse(p, TEN_EPOCHS), TEN_EPOCHS) <= published * 1.002


@pytest.mark.parametrize(
    ("contract", "p"), [(Participation(200, 2, 100), 8), (Participation(200, 20, 10), 4)]
)
def test_beats_bifr_and_is_exact(contract, p):
    ours = _rmse(banded_inverse(p, contract), contract)
    assert ours <= _rmse(build("bifr", contract, bands=p).factorization, contract) * (1 + 1e-6)


def test_bad_requests_are_rejected():
    with pytest.raises(ValueError, match="between 1 and n=10"):
        banded_inverse(11, Participation(10, 2, 5))
    with pytest.raises(ValueError, match="n=10 rounds"):
        banded_inverse(2, Participation(10, 2, 5), prefix(9))
    assert banded_inverse(1, Participation(10, 2, 5)).noising_coefs[1:].max() == 0.0
