"""Stamping and tapering, by name and as values."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import query_variances

from fedmf.matrices.factorization import Stamped
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import parse_workload
from fedmf.participation import Participation


@pytest.mark.parametrize("text", ["prefix", "window:3"])
def test_errors_of_stamped_mechanisms(text):
    contract = Participation(22, 3, 7)
    workload = parse_workload(text, 22)
    for name in ("bisr", "normalized-bsr", "banded-toeplitz"):
        mechanism = build(name, contract, workload, bands=3, params={"stamps": 3})
        assert mechanism.params["stamps"] == 3
        C = mechanism.factorization
        assert isinstance(C, Stamped)
        assert C.base.rounds == 8
        stated = sensitivity_of(C, contract)
        expected = (
            query_variances(workload.materialize(), C.materialize()).mean() ** 0.5 * stated.value
        )
        assert errors(C, workload, stated).rmse == pytest.approx(expected, rel=1e-10)
        again = build(name, contract, workload, params=mechanism.params)
        assert again.factorization.to_dict() == C.to_dict()


def test_taper_follows_its_formula():
    contract = Participation(200, 4, 50)
    plain = build("banded-toeplitz", contract).factorization.strategy_coefs
    mechanism = build("banded-toeplitz", contract, params={"taper": 20})
    assert mechanism.params == {"bands": 50, "taper": 20}
    i = np.arange(200)
    expected = plain * np.where(i < 20, 1.0, np.clip((50 - i) / 30, 0, None))
    np.testing.assert_allclose(mechanism.factorization.strategy_coefs, expected, rtol=1e-14)
    scaled = build("normalized-banded-toeplitz", contract, params={"taper": 20}).factorization
    np.testing.assert_allclose(np.linalg.norm(scaled.materialize(), axis=0), 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("bsr", {"stamps": 0}, r"s \(stamps\) must be an integer between 1 and n=60; got 0"),
        ("bsr", {"stamps": 2.5}, "stamps"),
        ("bsr", {"stamps": 61}, "between 1 and n=60"),
        ("bsr", {"taper": 3}, "bsr takes"),
        (
            "banded-toeplitz",
            {"taper": 20},
            r"b_0 \(taper\) must be an integer between 0 and 19; got 20",
        ),
        ("banded-toeplitz", {"taper": float("nan")}, "taper"),
        ("bsr", {"stamps": 4, "bands": 16}, "between 1 and n=15"),
    ],
)
def test_bad_requests_are_rejected(name, given, message):
    with pytest.raises(ValueError, match=message) as raised:
        build(name, Participation(60, 3, 20), params=given)
    assert "\n" not in str(raised.value)
