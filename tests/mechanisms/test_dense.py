from __future__ import annotations

import numpy as np
import pytest
from support.oracles import prefix_sums, query_variances, scalar_sensitivity

from fedmf.matrices.factorization import Dense
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.banded_family import banded
from fedmf.mechanisms.dense_family import dense
from fedmf.mechanisms.lower_factor import lower_factor
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.workload import momentum, prefix
from fedmf.participation import Participation


def _rmse(C, contract, workload=None):
    workload = prefix(contract.rounds) if workload is None else workload
    return errors(C, workload, sensitivity_of(C, contract)).rmse


def test_lower_factor_is_of_the_right_product():
    """CᵀC = X, where a Cholesky factor of X would have CCᵀ = X."""
    root = np.random.default_rng(0).normal(size=(7, 7))
    gram = root @ root.T + np.eye(7)
    C = lower_factor(gram)
    assert np.array_equal(C, np.tril(C))
    assert (np.diagonal(C) > 0).all()
    assert np.allclose(C.T @ C, gram, rtol=1e-12)
    assert not np.allclose(C @ C.T, gram, rtol=1e-2)


@pytest.mark.parametrize("make", [prefix, lambda n: momentum(0.5, n)])
def test_one_participation_is_optimal(make):
    """Stationarity, X⁻¹WX⁻¹ = diag(v) with v ≥ 0, is sufficient: the problem is convex."""
    n = 24
    A = make(n).materialize()
    W = A.T @ A
    C = dense(Participation(n, 1, n), make(n))
    X = C.materialize().T @ C.materialize()
    assert np.allclose(np.diagonal(X), 1.0, rtol=1e-12)
    multipliers = np.linalg.solve(X, np.linalg.solve(X, W).T)
    v = np.diagonal(multipliers)
    assert (v > 0).all()
    assert np.abs(multipliers - np.diag(v)).max() <= 1e-2 * v.max()
    value = np.trace(np.linalg.solve(X, W))
    half = np.sqrt(v)
    dual = np.sqrt(np.linalg.eigvalsh(half[:, None] * W * half)).sum() ** 2 / v.sum()
    assert dual <= value * (1 + 1e-12)
    assert value <= dual * (1 + 1e-6)


@pytest.mark.parametrize(("n", "k", "b"), [(9, 2, 3), (6, 6, 1)])
def test_many_participations_beat_separated_columns(n, k, b):
    contract = Participation(n, k, b)
    C = dense(contract)
    stated = sensitivity_of(C, contract)
    truth = scalar_sensitivity(C.materialize(), k, b)
    assert stated.value >= truth * (1 - 1e-12)
    if stated.kind == "exact":
        assert stated.value == pytest.approx(truth, rel=1e-12)
    assert _rmse(C, contract) <= _rmse(banded(b, contract), contract) * (1 + 1e-12)
    expected = np.sqrt(query_variances(prefix_sums(n), C.materialize()).mean()) * stated.value
    assert _rmse(C, contract) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dense([[1.0, 1.0], [0.0, 1.0]]), r"lower triangular; got 1.0 at \(0, 1\)"),
        (lambda: Dense([[1.0, 0.0], [np.nan, 1.0]]), r"finite; got nan at \(1, 0\)"),
        (lambda: Dense([[1.0, 0.0], [1.0, -1.0]]), "positive; got -1.0 at j=1"),
        (lambda: Dense(np.broadcast_to(np.zeros(1), (4097, 4097))), "at most 4096 .* Use banded"),
        (
            lambda: Dense.from_stored({"rows": [[1.0], [1.0]]}),
            "t=1 .* must have 2 entries; got 1",
        ),
        (lambda: dense(Participation(2049, 1, 9)), "at most 2048 for dense; got 2049. Use banded"),
    ],
)
def test_bad_values_are_rejected_on_one_line(make, message):
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)
