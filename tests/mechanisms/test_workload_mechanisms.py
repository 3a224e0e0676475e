"""Mechanisms and errors for workloads other than prefix sums, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import query_variances, scalar_sensitivity

from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.series import multiply, reciprocal
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.closed_forms import power_series
from fedmf.mechanisms.objective import QuickError, errors
from fedmf.mechanisms.power_series import factored_power, power
from fedmf.mechanisms.registry import build, names
from fedmf.mechanisms.workload import ToeplitzWorkload, momentum, parse_workload, prefix, weighted
from fedmf.participation import Participation

TEXTS = ["prefix", "average", "exponential:0.8", "window:4", "momentum:0.9", "momentum:0.9:0.95"]


def test_fractional_powers():
    """The closed form, the recurrence and repeated multiplication agree."""
    for exponent in [0.5, -0.5, 0.3, -0.9]:
        for text in [*TEXTS[:1], *TEXTS[2:]]:
            workload = parse_workload(text, 60)
            a = workload.coefficients / workload.coefficients[0]
            closed = power_series(workload, exponent, 60)
            np.testing.assert_allclose(
                power(workload.coefficients, exponent, 60), closed, atol=1e-12
            )
            tenth = factored_power(workload.factors, 0.1, 60)
            product = np.ones(1)
            for _ in range(round(10 * abs(exponent))):
                product = multiply(product, tenth, 60)
            expected = product
            if exponent < 0:
                expected = reciprocal(product, 60)
            np.testing.assert_allclose(closed, expected, atol=1e-11)
            np.testing.assert_allclose(factored_power(workload.factors, 1.0, 60), a, atol=1e-12)


@pytest.mark.parametrize("text", ["average", "window:4", "momentum:0.9:0.95", "rows"])
def test_banded_toeplitz_beats_the_closed_forms_of_the_workload(text):
    n = 60
    p = 8
    contract = Participation(n, 4, 15)
    if text == "rows":
        workload = weighted(prefix(n), rows=np.linspace(0, 1, n))
    else:
        workload = parse_workload(text, n)

    def rmse(name):
        C = build(name, contract, workload, bands=p).factorization
        return errors(C, workload, sensitivity_of(C, contract)).rmse

    best = rmse("banded-toeplitz")
    for rival in ("bsr", "bfr", "one-parameter", "shifted-root"):
        assert best < rmse(rival)
    for_prefix = banded_toeplitz(p, contract)
    assert best < errors(for_prefix, workload, sensitivity_of(for_prefix, contract)).rmse


def _rates(kind: str, rounds: int) -> ToeplitzWorkload:
    """Learning rates that fall to a hundredth, queries ends of which do not count, or both."""
    t = np.arange(rounds)
    rates = np.geomspace(1.0, 0.01, rounds)
    counted = np.minimum(t, rounds - 1 - t)
    if kind == "rows":
        return weighted(prefix(rounds), rows=counted)
    if kind == "columns":
        return weighted(prefix(rounds), columns=rates)
    return weighted(momentum(0.5, rounds), rows=counted, columns=rates)


@pytest.mark.parametrize("name", [name for name in names() if "dense" not in name])
def test_weights_are_in_the_errors_of_every_mechanism(name):
    """The stated value and the errors of each name are those of the dense C under the dense A."""
    k = 3
    contract = Participation(8, k, 3)
    workload = _rates("both", 8)
    C = build(name, contract, workload).factorization
    dense = C.materialize()
    stated = sensitivity_of(C, contract)
    assert stated.value == pytest.approx(scalar_sensitivity(dense, k, 3), rel=1e-11)
    expected = query_variances(workload.materialize(), dense)
    reported = errors(C, workload, stated)
    assert reported.rmse == pytest.approx(expected.mean() ** 0.5 * stated.value, rel=1e-9)
    assert reported.max_se == pytest.approx(expected.max() ** 0.5 * stated.value, rel=1e-9)


def test_millions_of_rounds():
    """The reported errors for n = 10⁶ and 2·10⁶ are those of the true inverse."""
    n = 1_000_000
    contract = Participation(n, 100, 10_000)
    C = banded_toeplitz(16, contract)
    stated = sensitivity_of(C, contract)
    assert stated.kind == "exact"
    # What the search minimized, closed by the limit of w, is what all terms give.
    closed = QuickError(contract, prefix(n))(C)
    assert errors(C, prefix(n), stated).rmse == pytest.approx(closed, rel=1e-9)
    # The settled inverse: Σ_j c_j w_{t−j} = 1 exactly in the limit.
    w = np.cumsum(C.noising_coefs)
    assert w[-1] * C.coefficients.sum() == pytest.approx(1.0, abs=1e-10)
