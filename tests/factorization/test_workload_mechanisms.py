"""Mechanisms and errors for workloads other than prefix sums, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import ltt, query_variances, scalar_sensitivity

from fedmf.factorization import Toeplitz, banded_toeplitz, build, errors, identity, stated_sensitivity
from fedmf.factorization import query_variances as variances
from fedmf.factorization.banded_toeplitz import log_objective
from fedmf.factorization.series import factored_power, multiply, power, reciprocal
from fedmf.factorization.toeplitz_objective import ToeplitzObjective
from fedmf.factorization.workload_power import power_series
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload, momentum, parse_workload, prefix, weighted

TEXTS = ["prefix", "average", "exponential:0.8", "window:4", "momentum:0.9", "momentum:0.9:0.95"]
N = 24
CLOSED = ["square-root", "bsr", "bisr", "bifr", "bfr", "nu-ftrl", "shifted-root", "optimal-diagonal"]


def _weighted(rounds: int) -> ToeplitzWorkload:
    rates = 0.5 + 0.5 * np.cos(np.linspace(0.0, 3.0, rounds))
    return weighted(momentum(0.5, rounds), rows=np.linspace(0.0, 2.0, rounds), columns=rates)


@pytest.mark.parametrize("text", [*TEXTS, "weighted"])
def test_query_variances_include_rows_and_columns(text):
    workload = _weighted(N) if text == "weighted" else parse_workload(text, N)
    contract = Participation(N, 3, 8)
    for C in (
        build("normalized-bisr", contract, bands=4).factorization,
        build("banded", contract, bands=3).factorization,
        Toeplitz([1.0, 0.6, 0.3], N),
        identity(N),
    ):
        expected = query_variances(workload.materialize(), C.materialize())
        np.testing.assert_allclose(variances(C, workload), expected, rtol=1e-10, atol=1e-14)
        stated = stated_sensitivity(C, contract)
        assert errors(C, workload, stated).rmse == pytest.approx(expected.mean() ** 0.5 * stated.value)


@pytest.mark.parametrize("text", [*TEXTS[:1], *TEXTS[2:]])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 0.3, -0.9])
def test_fractional_powers(text, exponent):
    """The closed form, the recurrence and repeated multiplication agree."""
    workload = parse_workload(text, 60)
    a = workload.coefficients / workload.coefficients[0]
    closed = power_series(workload, exponent, 60)
    np.testing.assert_allclose(power(workload.coefficients, exponent, 60), closed, atol=1e-12)
    tenth = factored_power(workload.factors, 0.1, 60)
    product = np.ones(1)
    for _ in range(round(10 * abs(exponent))):
        product = multiply(product, tenth, 60)
    expected = product if exponent > 0 else reciprocal(product, 60)
    np.testing.assert_allclose(closed, expected, atol=1e-11)
    np.testing.assert_allclose(factored_power(workload.factors, 1.0, 60), a, atol=1e-12)


def test_a_workload_without_factors_has_the_same_mechanisms():
    bare = ToeplitzWorkload("bare", momentum(0.9, N).coefficients)
    contract = Participation(N, 3, 8)
    for name in ("square-root", "bsr", "bisr"):
        given = {} if name == "square-root" else {"bands": 5}
        one, two = (build(name, contract, work, **given).factorization for work in (bare, momentum(0.9, N)))
        np.testing.assert_allclose(one.materialize(), two.materialize(), atol=1e-12)


def test_the_square_root_multiplies_to_the_workload():
    contract, work = Participation(N, 3, 8), momentum(0.9, N, weight_decay=0.99)
    C = build("square-root", contract, work).factorization.materialize()
    np.testing.assert_allclose(C @ C, work.materialize(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("n", "k", "b", "p"), [(9, 1, 9, 4), (12, 3, 4, 6), (11, 4, 3, 3), (10, 10, 1, 5)])
@pytest.mark.parametrize("text", [*TEXTS, "rows"])
def test_objective_gradient_and_hessian(text, n, k, b, p):
    weights = np.random.default_rng(3).random(n)
    workload = weighted(prefix(n), rows=weights) if text == "rows" else parse_workload(text, n)
    objective = ToeplitzObjective(p, Participation(n, k, b), workload)
    c = np.concatenate([[1.2], np.sort(np.random.default_rng(0).random(p - 1))[::-1]])
    value, slope = objective(c)
    dense = ltt(c, n)
    expected = query_variances(workload.materialize(), dense).sum() * scalar_sensitivity(dense, k, b) ** 2
    assert np.exp(value) == pytest.approx(expected, rel=1e-12)
    second = objective.hessian(c)
    for j in range(p):
        step = 1e-6 * np.eye(p)[j]
        (high, up), (low, down) = objective(c + step), objective(c - step)
        assert slope[j] == pytest.approx((high - low) / 2e-6, rel=1e-6, abs=1e-8)
        np.testing.assert_allclose(second[j], (up - down) / 2e-6, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", [*TEXTS, "rows"])
def test_long_horizons_are_closed_by_the_limit(text):
    """n = 9000 is summed to fewer terms; the true errors and finite differences decide."""
    n, p = 9000, 8
    contract = Participation(n, 3, 3000)
    rows = np.linspace(1.0, 0.1, n)
    workload = weighted(prefix(n), rows=rows) if text == "rows" else parse_workload(text, n)
    objective = ToeplitzObjective(p, contract, workload)
    c = power_series(workload, 0.5, p)
    value, slope = objective(c)
    assert objective._terms < n
    C = Toeplitz(c, n)
    true = variances(C, workload).sum() * stated_sensitivity(C, contract).value ** 2
    assert value == pytest.approx(np.log(true), abs=1e-9)
    second = objective.hessian(c)
    for j in range(p):
        step = 1e-5 * np.eye(p)[j]
        (high, up), (low, down) = objective(c + step), objective(c - step)
        assert slope[j] == pytest.approx((high - low) / 2e-5, rel=1e-5, abs=1e-7)
        np.testing.assert_allclose(second[j], (up - down) / 2e-5, rtol=1e-4, atol=1e-4)


def test_a_start_near_instability_is_summed_further():
    """c = (1, −0.999): w_t tends to 1000 slowly, and m grows until it has."""
    contract = Participation(100_000, 1, 100_000)
    objective = ToeplitzObjective(2, contract, prefix(100_000))
    c = np.array([1.0, -0.999])
    before = objective._terms
    value, _ = objective(c)
    assert before < objective._terms < 100_000
    assert value == pytest.approx(
        np.log(variances(Toeplitz(c, 100_000), prefix(100_000)).sum() * (1 + 0.999**2))
    )


@pytest.mark.parametrize("text", [*TEXTS[1:], "rows"])
def test_banded_toeplitz_beats_the_closed_forms_of_the_workload(text):
    n, p = 120, 12
    contract = Participation(n, 4, 30)
    workload = weighted(prefix(n), rows=np.linspace(0, 1, n)) if text == "rows" else parse_workload(text, n)

    def rmse(name):
        C = build(name, contract, workload, bands=p).factorization
        return errors(C, workload, stated_sensitivity(C, contract)).rmse

    best = rmse("banded-toeplitz")
    for rival in ("bsr", "bfr", "one-parameter", "shifted-root"):
        assert best < rmse(rival)
    c = build("banded-toeplitz", contract, workload, bands=p).factorization.strategy[:p]
    assert np.abs(log_objective(c, contract, workload)[1]).max() < 1e-7
    for_prefix = banded_toeplitz(p, contract)
    assert best < errors(for_prefix, workload, stated_sensitivity(for_prefix, contract)).rmse


@pytest.mark.parametrize("text", [*TEXTS, "weighted"])
@pytest.mark.parametrize(
    "name", [*CLOSED, "banded-toeplitz", "normalized-banded-toeplitz", "normalized-bisr"]
)
def test_every_workload_builds(name, text):
    contract = Participation(N, 3, 8)
    workload = _weighted(N) if text == "weighted" else parse_workload(text, N)
    C = build(name, contract, workload).factorization
    dense = C.materialize()
    stated = stated_sensitivity(C, contract)
    assert stated.value >= scalar_sensitivity(dense[:12, :12], 3, 8) - 1e-12
    found = errors(C, workload, stated)
    expected = query_variances(workload.materialize(), dense)
    assert found.max_se == pytest.approx(expected.max() ** 0.5 * stated.value, rel=1e-9)


def test_the_diagonal_is_the_best_for_its_workload():
    """k = n, b = 1: no other diagonal does better, found by random perturbation."""
    contract, workload = Participation(8, 8, 1), parse_workload("momentum:0.5", 8)
    d = (
        build("optimal-diagonal", contract, workload).factorization.strategy * 0
        + build("optimal-diagonal", contract, workload).factorization.materialize().diagonal()
    )
    A = workload.materialize()

    def cost(entries):
        return float(query_variances(A, np.diag(entries)).sum() * (entries**2).sum())

    rng = np.random.default_rng(0)
    for _ in range(200):
        assert cost(d) <= cost(d * np.exp(0.1 * rng.normal(size=8))) * (1 + 1e-12)


def test_unfit_workloads_are_refused():
    with pytest.raises(ValueError, match="must have n=9 rounds; got 8"):
        banded_toeplitz(2, Participation(9, 1, 9), workload=prefix(8))
    with pytest.raises(ValueError, match="no column weights"):
        banded_toeplitz(2, Participation(9, 1, 9), workload=_weighted(9))


def test_millions_of_rounds():
    """n = 10⁶ and 2·10⁶ with the reported error computed from the true inverse, not the closed sum."""
    n = 1_000_000
    contract = Participation(n, 100, 10_000)
    C = banded_toeplitz(16, contract)
    value, slope = log_objective(C.coefficients, contract)
    assert np.abs(slope[1:]).max() < 1e-8
    stated = stated_sensitivity(C, contract)
    assert stated.kind == "exact"
    assert errors(C, prefix(n), stated).rmse == pytest.approx(np.sqrt(np.exp(value) / n), rel=1e-9)
    # The settled inverse: Σ_j c_j w_{t−j} = 1 exactly in the limit.
    w = np.cumsum(C.correlation)
    assert w[-1] * C.coefficients.sum() == pytest.approx(1.0, abs=1e-10)
