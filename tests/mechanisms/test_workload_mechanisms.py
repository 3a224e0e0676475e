"""Mechanisms and errors for workloads other than prefix sums, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import query_variances, rmse, scalar_sensitivity

from fedmf.mechanisms.banded_inverse import banded_inverse
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.closed_forms import identity, power_series
from fedmf.mechanisms.errors import QuickError, errors
from fedmf.mechanisms.errors import query_variances as variances
from fedmf.mechanisms.registry import build, names
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.series import factored_power, multiply, power, reciprocal
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.mechanisms.workload import ToeplitzWorkload, momentum, parse_workload, prefix, weighted
from fedmf.participation import Participation

TEXTS = ["prefix", "average", "exponential:0.8", "window:4", "momentum:0.9", "momentum:0.9:0.95"]
N = 24
CLOSED = ["square-root", "bsr", "bisr", "bifr", "bfr", "nu-ftrl", "shifted-root", "optimal-diagonal"]


def _weighted(rounds: int) -> ToeplitzWorkload:
    rates = 0.5 + 0.5 * np.cos(np.linspace(0.0, 3.0, rounds))
    return weighted(momentum(0.5, rounds), rows=np.linspace(0.0, 2.0, rounds), columns=rates)


def test_query_variances_include_rows_and_columns():
    for text in [*TEXTS, "weighted"]:
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


def test_fractional_powers():
    """The closed form, the recurrence and repeated multiplication agree."""
    for exponent in [0.5, -0.5, 0.3, -0.9]:
        for text in [*TEXTS[:1], *TEXTS[2:]]:
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
    for_prefix = banded_toeplitz(p, contract)
    assert best < errors(for_prefix, workload, stated_sensitivity(for_prefix, contract)).rmse


def test_every_workload_builds():
    for name in [*CLOSED, "banded-toeplitz", "normalized-banded-toeplitz", "normalized-bisr"]:
        for text in [*TEXTS, "weighted"]:
            contract = Participation(N, 3, 8)
            workload = _weighted(N) if text == "weighted" else parse_workload(text, N)
            C = build(name, contract, workload).factorization
            dense = C.materialize()
            stated = stated_sensitivity(C, contract)
            assert stated.value >= scalar_sensitivity(dense[:12, :12], 3, 8) - 1e-12
            found = errors(C, workload, stated)
            expected = query_variances(workload.materialize(), dense)
            assert found.max_se == pytest.approx(expected.max() ** 0.5 * stated.value, rel=1e-9)


def _rates(kind: str, rounds: int) -> ToeplitzWorkload:
    """Learning rates that fall to a hundredth, queries ends of which do not count, or both."""
    t = np.arange(rounds)
    rates, counted = np.geomspace(1.0, 0.01, rounds), np.minimum(t, rounds - 1 - t)
    plain = momentum(0.5, rounds) if kind == "both" else prefix(rounds)
    return weighted(
        plain,
        rows=counted if kind in {"rows", "both"} else None,
        columns=rates if kind in {"columns", "both"} else None,
    )


@pytest.mark.parametrize("name", names())
def test_weights_are_in_the_errors_of_every_mechanism(name):
    """The stated value and the errors of each name are those of the dense C under the dense A."""
    k = 3
    contract, workload = Participation(10, k, 3), _rates("both", 10)
    C = build(name, contract, workload).factorization
    dense, stated = C.materialize(), stated_sensitivity(C, contract)
    assert stated.value == pytest.approx(scalar_sensitivity(dense, k, 3), rel=1e-11)
    expected = query_variances(workload.materialize(), dense)
    found = errors(C, workload, stated)
    assert found.rmse == pytest.approx(expected.mean() ** 0.5 * stated.value, rel=1e-9)
    assert found.max_se == pytest.approx(expected.max() ** 0.5 * stated.value, rel=1e-9)


@pytest.mark.weekly
@pytest.mark.parametrize("kind", ["columns", "rows", "both"])
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("blt", {"buffers": 2}),
        ("banded-inverse", {"bands": 4}),
        ("banded-toeplitz", {"bands": 4}),
        ("normalized-banded-toeplitz", {"bands": 4}),
        ("banded", {"bands": 4}),
        ("normalized-banded", {"bands": 4}),
        ("dense", {}),
        ("optimal-diagonal", {}),
    ],
)
def test_optimisers_are_made_for_the_weights(name, params, kind):
    """Optimised for the weights, the error under them is lower than optimised without; judged by dense C."""
    contract, workload = Participation(30, 3, 10), _rates(kind, 30)
    plain = momentum(0.5, 30) if kind == "both" else prefix(30)

    def judged(made_for: ToeplitzWorkload) -> float:
        C = build(name, contract, made_for, params=params).factorization
        dense = C.materialize()
        return rmse(workload.materialize(), dense, stated_sensitivity(C, contract).value)

    # Without the weights the two would be equal; optimisers end within 1e-8 of their optimum.
    assert judged(workload) < (1 - 1e-5) * judged(plain)


@pytest.mark.parametrize(
    ("name", "params"),
    [("blt", {"buffers": 1}), ("banded-inverse", {"bands": 2}), ("banded-toeplitz", {"bands": 2})],
)
def test_beyond_4096_rounds_learning_rates_count_in_the_errors_only(name, params):
    n = 4100
    contract, rates = Participation(n, 1, n), np.linspace(1.0, 0.5, n)
    workload = weighted(prefix(n), columns=rates)
    C = build(name, contract, workload, params=params).factorization
    assert C.to_dict() == build(name, contract, params=params).factorization.to_dict()
    # Query t is a sum over columns i of the prefix sums of eta_i h_(i-j).
    h, expected = C.correlation, np.zeros(n)
    sums = np.zeros(n)
    for t in range(n):
        sums[: t + 1] += rates[t] * h[t::-1]
        expected[t] = sums @ sums
    np.testing.assert_allclose(variances(C, workload), expected, rtol=1e-9)


def test_unfit_workloads_are_refused():
    with pytest.raises(ValueError, match="must have n=9 rounds; got 8"):
        banded_toeplitz(2, Participation(9, 1, 9), workload=prefix(8))
    long = weighted(prefix(5000), columns=np.ones(5000))
    with pytest.raises(ValueError, match="at most 4096 to optimise for column weights; got 5000"):
        banded_inverse(2, Participation(5000, 1, 5000), long)


def test_millions_of_rounds():
    """n = 10⁶ and 2·10⁶ with the reported error computed from the true inverse, not the closed sum."""
    n = 1_000_000
    contract = Participation(n, 100, 10_000)
    C = banded_toeplitz(16, contract)
    stated = stated_sensitivity(C, contract)
    assert stated.kind == "exact"
    # What the search minimised, closed by the limit of w, is what all terms give.
    closed = QuickError(contract, prefix(n))(C)
    assert errors(C, prefix(n), stated).rmse == pytest.approx(closed, rel=1e-9)
    # The settled inverse: Σ_j c_j w_{t−j} = 1 exactly in the limit.
    w = np.cumsum(C.correlation)
    assert w[-1] * C.coefficients.sum() == pytest.approx(1.0, abs=1e-10)
