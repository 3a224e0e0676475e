"""Lower bounds: below every C tried at its enumerated sensitivity, and reached where the optimum is known."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import ltt, patterns, prefix_sums, rmse, scalar_sensitivity

from fedmf.factorization.bounds.dense_certificate import (
    banded_inverse_bound,
    certified_dense_bound,
    dense_bound,
    heavier_users,
    pattern_users,
)
from fedmf.factorization.mechanisms.banded_inverse_optimizer import banded_inverse
from fedmf.factorization.mechanisms.dense_optimizer import dense
from fedmf.factorization.objectives.error import errors
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.participation import Participation
from fedmf.workload.toeplitz import average, exponential, prefix, weighted

SMALL = [Participation(8, 2, 4), Participation(9, 3, 3), Participation(7, 3, 2), Participation(8, 8, 1)]


def _every_user(contract):
    """All signed patterns, with random weights."""
    rng = np.random.default_rng(1)
    own = patterns(contract.rounds, contract.max_participations, contract.min_separation)
    users = pattern_users([np.array(at) for at in own], contract)
    users *= rng.choice([-1.0, 1.0, 1.0, 1.0], size=users.shape)
    return users, rng.dirichlet(np.full(users.shape[1], 0.3))


@pytest.mark.parametrize("contract", SMALL)
def test_no_matrix_is_below_the_dense_bound(contract):
    n, k, b = contract.rounds, contract.max_participations, contract.min_separation
    users, weights = _every_user(contract)
    bound, rng = dense_bound(users, weights, prefix(n)), np.random.default_rng(2)
    tried = [np.eye(n), np.linalg.cholesky(prefix_sums(n) @ prefix_sums(n).T)]
    tried += [np.eye(n) + 0.3 * np.tril(rng.normal(size=(n, n)), -1) for _ in range(30)]
    assert bound > 0
    assert all(rmse(prefix_sums(n), C, scalar_sensitivity(C, k, b)) >= bound * (1 - 1e-12) for C in tried)


def test_the_dense_bound_is_the_norm_of_the_best_matrix_for_the_mixture():
    """X = Aᵀ(A M Aᵀ)^{−½}A minimises tr(W X⁻¹)·tr(M X): the bound is attained for users drawn from M."""
    rng, n = np.random.default_rng(3), 6
    users, weights = rng.uniform(-1, 1, (n, 9)), rng.random(9)
    A, M = prefix_sums(n), users @ np.diag(weights / weights.sum()) @ users.T
    values, vectors = np.linalg.eigh(A @ M @ A.T)
    X = A.T @ (vectors / np.sqrt(values)) @ vectors.T @ A
    attained = np.sqrt(np.trace(A.T @ A @ np.linalg.inv(X)) * np.trace(M @ X) / n)
    assert dense_bound(users, weights, prefix(n)) == pytest.approx(attained, rel=1e-9)


@pytest.mark.parametrize("contract", SMALL)
@pytest.mark.parametrize(
    "make", [prefix, average, lambda n: weighted(exponential(0.8, n), rows=np.linspace(1, 2, n))]
)
def test_no_banded_inverse_is_below_its_bound(contract, make):
    n, k, b, p = contract.rounds, contract.max_participations, contract.min_separation, 4
    users, weights = _every_user(contract)
    rng, workload = np.random.default_rng(4), make(n)
    best = banded_inverse(p, contract, workload).correlation[:p]
    tried = [best, *(best + 0.2 * rng.normal(size=p) for _ in range(40))]
    values = []
    for h in tried:
        C = np.linalg.inv(ltt(h, n))
        values.append(rmse(workload.materialize(), C, scalar_sensitivity(C, k, b)))
    for filters in (best[:, None], np.column_stack([best, 0.2 * rng.normal(size=p)])):
        bound = banded_inverse_bound(filters, users, weights, workload)
        assert 0 < bound <= min(values) * (1 + 1e-10)


def test_the_banded_inverse_bound_is_tight_for_one_participation():
    """Users of the first round alone, where the largest column of LTT is."""
    contract = Participation(40, 1, 40)
    h = banded_inverse(5, contract).correlation[:5]
    C = banded_inverse(5, contract)
    reached = errors(C, prefix(40), stated_sensitivity(C, contract)).rmse
    bound = banded_inverse_bound(h[:, None], np.eye(40)[:, :1], np.ones(1), prefix(40))
    assert reached * (1 - 1e-3) < bound <= reached * (1 + 1e-10)


@pytest.mark.parametrize("contract", [*SMALL, Participation(40, 2, 20), Participation(60, 3, 20)])
def test_dense_is_near_its_certified_optimum(contract):
    C = dense(contract)
    reached = errors(C, prefix(contract.rounds), stated_sensitivity(C, contract)).rmse
    bound = certified_dense_bound(contract)
    assert reached * 0.98 <= bound <= reached * (1 + 1e-9)


@pytest.mark.parametrize("contract", SMALL)
def test_heavier_users_are_users_and_gain_where_all_products_are_positive(contract):
    n, k, b = contract.rounds, contract.max_participations, contract.min_separation
    own, rng = patterns(n, k, b), np.random.default_rng(5)
    starts = pattern_users([np.array(own[at]) for at in rng.integers(0, len(own), 12)], contract)
    for C in (np.tril(rng.random((n, n))), np.tril(rng.normal(size=(n, n)))):
        gram = C.T @ C
        found = heavier_users(gram, contract, list(starts.T))
        values = np.einsum("ij,ij->j", found, gram @ found)
        assert {tuple(np.flatnonzero(user)) for user in found.T} <= set(own)
        assert set(np.unique(found)) <= {-1.0, 0.0, 1.0}
        assert (values <= scalar_sensitivity(C, k, b) ** 2 * (1 + 1e-12)).all()
        if (gram >= 0).all():
            assert (values >= np.einsum("ij,ij->j", starts, gram @ starts) * (1 - 1e-12)).all()


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="at least b=3 apart"):
        pattern_users([np.array([0, 2])], Participation(6, 2, 3))
    columns = weighted(prefix(4), columns=np.ones(4) * 2)
    with pytest.raises(ValueError, match="no column weights"):
        banded_inverse_bound(np.ones((2, 1)), np.eye(4), np.ones(4), columns)
