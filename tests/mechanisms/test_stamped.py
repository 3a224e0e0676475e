"""Stamping and tapering, by name and as values."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import contracts, query_variances, scalar_sensitivity

from fedmf.accounting.comparison import design
from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.matrix import Stamped
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.sensitivity import exact_sensitivity, stated_sensitivity
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.mechanisms.workload import momentum, parse_workload
from fedmf.participation import Participation


def test_sensitivity_equals_enumeration_on_every_small_contract():
    rng = np.random.default_rng(0)
    for k, b in contracts(8):
        c = np.concatenate([[1.0], rng.random(2)])
        C = Stamped(Toeplitz(c, int(rng.integers(3, 9))), 8)
        truth = scalar_sensitivity(C.materialize(), k, b)
        stated = stated_sensitivity(C, Participation(8, k, b))
        assert stated.value >= truth * (1 - 1e-12)
        if stated.kind == "exact":
            assert stated.value == pytest.approx(truth, rel=1e-12)


def test_blocks_no_longer_than_the_separation_are_exact():
    C = build("square-root", Participation(100, 10, 10), params={"stamps": 10}).factorization
    found = exact_sensitivity(C, Participation(100, 10, 10))
    first = np.linalg.norm(C.materialize()[:, 0])
    assert found.value == pytest.approx(np.sqrt(10) * first, rel=1e-12)


@pytest.mark.parametrize("text", ["prefix", "momentum:0.9", "window:3", "average"])
def test_errors_of_stamped_mechanisms(text):
    contract, workload = Participation(22, 3, 7), parse_workload(text, 22)
    for name in ("bisr", "normalized-bsr", "banded-toeplitz"):
        mechanism = build(name, contract, workload, bands=3, params={"stamps": 3})
        assert mechanism.params["stamps"] == 3
        C = mechanism.factorization
        assert isinstance(C, Stamped)
        assert C.base.rounds == 8
        stated = stated_sensitivity(C, contract)
        expected = query_variances(workload.materialize(), C.materialize()).mean() ** 0.5 * stated.value
        assert errors(C, workload, stated).rmse == pytest.approx(expected, rel=1e-10)
        again = build(name, contract, workload, params=mechanism.params)
        assert again.factorization.to_dict() == C.to_dict()


def test_taper_follows_its_formula():
    contract = Participation(200, 4, 50)
    plain = build("banded-toeplitz", contract).factorization.strategy
    mechanism = build("banded-toeplitz", contract, params={"taper": 20})
    assert mechanism.params == {"bands": 50, "taper": 20}
    i = np.arange(200)
    expected = plain * np.where(i < 20, 1.0, np.clip((50 - i) / 30, 0, None))
    np.testing.assert_allclose(mechanism.factorization.strategy, expected, rtol=1e-14)
    scaled = build("normalized-banded-toeplitz", contract, params={"taper": 20}).factorization
    np.testing.assert_allclose(np.linalg.norm(scaled.materialize(), axis=0), 1.0, rtol=1e-12)


def test_taper_helps_where_the_separation_was_overestimated():
    """Optimised for b = 50; a user returns after 25 rounds."""
    contract, true = Participation(200, 4, 50), Participation(200, 4, 25)
    plain = build("banded-toeplitz", contract).factorization
    tapered = build("banded-toeplitz", contract, params={"taper": 25}).factorization
    workload = momentum(0.0, 200)
    rmse = [errors(C, workload, stated_sensitivity(C, true)).rmse for C in (plain, tapered)]
    assert rmse[1] < rmse[0]


def test_design_takes_both():
    rows = design(Participation(60, 3, 20), ["banded-toeplitz", "bsr"], params={"stamps": 2, "taper": 5})
    assert rows[0]["params"] == {"bands": 20, "taper": 5, "stamps": 2}
    assert rows[1]["params"]["stamps"] == 2
    assert all(row["sensitivity_kind"] == "exact" for row in rows)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("bsr", {"stamps": 0}, r"s \(stamps\) must be an integer between 1 and n=60; got 0"),
        ("bsr", {"stamps": 2.5}, "stamps"),
        ("bsr", {"stamps": 61}, "between 1 and n=60"),
        ("bsr", {"taper": 3}, "bsr takes"),
        ("banded-toeplitz", {"taper": 20}, r"b_0 \(taper\) must be an integer between 0 and 19; got 20"),
        ("banded-toeplitz", {"taper": float("nan")}, "taper"),
        ("bsr", {"stamps": 4, "bands": 16}, "between 1 and n=15"),
    ],
)
def test_bad_requests_are_refused(name, given, message):
    with pytest.raises(ValueError, match=message) as refusal:
        build(name, Participation(60, 3, 20), params=given)
    assert "\n" not in str(refusal.value)
