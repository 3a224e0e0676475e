"""Closed forms: published values, identities between them, and their limits."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import ltt, prefix_sums, query_variances

from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.closed_forms import (
    bfr,
    bifr,
    bisr,
    bsr,
    cgd,
    identity,
    nu_ftrl,
    one_parameter,
    square_root,
)
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.objective import query_variances as fast_query_variances
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation

TEN_EPOCHS = Participation(3900, 10, 390)
SIGMA = 0.60023  # (8, 1e-5) at sensitivity 1

# Kalinin, McKenna, Pagh & Lampert (2026), Table 4, column "epsilon = 8 (w/o Amp)", recomputed to 4
# digits.
TABLE = [
    ("identity", {}, 83.83),
    ("cgd", {"lambda": 0.975}, 12.72),
    ("cgd", {"lambda": 0.95}, 14.73),
    ("cgd", {"lambda": 0.9}, 19.71),
    ("bisr", {"bands": 2}, 48.44),
    ("bisr", {"bands": 4}, 33.46),
    ("bisr", {"bands": 16}, 17.94),
    ("bisr", {"bands": 64}, 10.50),
    ("bisr", {"bands": 390}, 8.45),
    ("bsr", {"bands": 2}, 62.50),
    ("bsr", {"bands": 4}, 46.79),
    ("bsr", {"bands": 16}, 26.27),
    ("bsr", {"bands": 64}, 14.88),
    ("bsr", {"bands": 390}, 8.15),
]


def test_published_rmse():
    for name, params, expected in TABLE:
        C = build(name, TEN_EPOCHS, params=params).factorization
        stated = sensitivity_of(C, TEN_EPOCHS)
        assert stated.kind == "exact"
        assert errors(C, prefix(3900), stated, SIGMA).rmse == pytest.approx(expected, rel=1e-3)


def test_a_longer_workload_is_cut_and_a_shorter_one_rejected():
    C = bsr(2, 5)
    momentum = ToeplitzWorkload("momentum", 1 - 0.5 ** np.arange(1, 9))
    expected = query_variances(ltt(momentum.coefficients[:5], 5), C.materialize())
    assert np.allclose(fast_query_variances(C, momentum), expected)
    with pytest.raises(ValueError, match="at least n=5"):
        fast_query_variances(C, prefix(4))


def test_family_members_coincide():
    n = 40
    assert np.array_equal(bifr(0.5, 7, n).coefficients, bisr(7, n).coefficients)
    assert np.array_equal(bfr(0.5, 7, n).coefficients, bsr(7, n).coefficients)
    assert np.array_equal(bifr(0.83, 2, n).noising_coefs, cgd(0.83, n).noising_coefs)
    assert np.array_equal(bisr(n, n).materialize(), square_root(n).materialize())
    assert np.array_equal(nu_ftrl(1.0, n).materialize(), identity(n).materialize())
    assert np.array_equal(cgd(0.0, n).materialize(), identity(n).materialize())
    assert np.allclose(bfr(1.0, n, n).materialize(), prefix_sums(n))


def test_square_root_squares_to_prefix_sums():
    C = square_root(50).materialize()
    assert np.allclose(C @ C, prefix_sums(50), rtol=1e-12, atol=1e-13)
    assert np.allclose(bsr(50, 50).materialize(), C, rtol=1e-12)


def test_nu_ftrl_tends_to_the_square_root_and_has_its_closed_forms():
    assert np.allclose(nu_ftrl(1e-13, 60).materialize(), square_root(60).materialize(), rtol=1e-10)
    j = np.arange(60)
    damped = square_root(60).strategy_coefs * 0.7**j
    assert np.allclose(nu_ftrl(0.3, 60).strategy_coefs, damped, rtol=1e-12)


def test_parameters_out_of_range_are_rejected():
    for make, message in [
        (lambda: cgd(1.0, 5), "lambda"),
        (lambda: bifr(0.0, 2, 5), "gamma"),
        (lambda: bfr(1.1, 2, 5), "gamma"),
        (lambda: nu_ftrl(0.0, 5), "nu"),
        (lambda: bsr(0, 5), "p .bands."),
        (lambda: bisr(6, 5), "between 1 and n=5"),
        (lambda: one_parameter(-1.0, 2, 5), "c .shift."),
        (lambda: square_root(0), "n .rounds."),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
