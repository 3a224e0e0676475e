"""Closed forms: published values, identities between them, and their limits."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.oracles import ltt, prefix_sums, query_variances

from fedmf.mechanisms.closed_forms import (
    bfr,
    bifr,
    bisr,
    bsr,
    cgd,
    identity,
    nu_ftrl,
    one_parameter,
    optimal_diagonal,
    square_root,
)
from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.errors import query_variances as fast_query_variances
from fedmf.mechanisms.matrix import normalized
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation

TEN_EPOCHS = Participation(3900, 10, 390)
SIGMA = 0.60023  # (8, 1e-5) at sensitivity 1

# Kalinin, McKenna, Pagh & Lampert (2026), Table 4, column "epsilon = 8 (w/o Amp)", recomputed to 4 digits.
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
        stated = stated_sensitivity(C, TEN_EPOCHS)
        assert stated.kind == "exact"
        assert errors(C, prefix(3900), stated, SIGMA).rmse == pytest.approx(expected, rel=1e-3)


def test_normalized_error_is_quick_at_scale():
    start = time.thread_time()
    fast_query_variances(normalized(square_root(3900)), prefix(3900))
    assert time.thread_time() - start < 1.0


def test_column_normalization_lowers_the_error_of_cgd():
    once = Participation(500, 1, 500)
    for decay in (0.5, 0.9, 0.99):
        plain, scaled = cgd(decay, 500), normalized(cgd(decay, 500))
        rmse = [errors(C, prefix(500), stated_sensitivity(C, once)).rmse for C in (plain, scaled)]
        assert rmse[1] < rmse[0]


def test_errors_against_dense_algebra():
    n, contract = 12, Participation(12, 3, 4)
    for C in (bisr(3, n), bsr(3, n), normalized(bisr(5, n)), optimal_diagonal(n)):
        stated = stated_sensitivity(C, contract)
        variances = query_variances(prefix_sums(n), C.materialize())
        found = errors(C, prefix(n), stated, 0.7)
        assert found.rmse == pytest.approx(np.sqrt(variances.mean()) * stated.value * 0.7, rel=1e-12)
        assert found.max_se == pytest.approx(np.sqrt(variances.max()) * stated.value * 0.7, rel=1e-12)


def test_a_longer_workload_is_cut_and_a_shorter_one_refused():
    C = bsr(2, 5)
    momentum = ToeplitzWorkload("momentum", 1 - 0.5 ** np.arange(1, 9))
    expected = query_variances(ltt(momentum.coefficients[:5], 5), C.materialize())
    assert np.allclose(fast_query_variances(C, momentum), expected)
    with pytest.raises(ValueError, match="at least n=5"):
        fast_query_variances(C, prefix(4))


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_a_noise_multiplier_that_is_no_noise_is_refused(sigma):
    with pytest.raises(ValueError, match="noise_multiplier"):
        errors(bsr(2, 5), prefix(5), stated_sensitivity(bsr(2, 5), Participation(5, 1, 5)), sigma)


def test_family_members_coincide():
    n = 40
    assert np.array_equal(bifr(0.5, 7, n).coefficients, bisr(7, n).coefficients)
    assert np.array_equal(bfr(0.5, 7, n).coefficients, bsr(7, n).coefficients)
    assert np.array_equal(bifr(0.83, 2, n).correlation, cgd(0.83, n).correlation)
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
    damped = square_root(60).strategy * 0.7**j
    assert np.allclose(nu_ftrl(0.3, 60).strategy, damped, rtol=1e-12)


def test_nu_ftrl_and_cgd_do_not_depend_on_the_horizon():
    for short, long in ((nu_ftrl(0.2, 10), nu_ftrl(0.2, 30)), (cgd(0.2, 10), cgd(0.2, 30))):
        assert np.allclose(short.strategy, long.strategy[:10], rtol=1e-15)


def test_optimal_diagonal_beats_identity_in_full_batch():
    """By (Σ√j)²/n against Σj: the limit is √8/3 = 0.943, 5.7 % less."""
    full = Participation(400, 400, 1)
    rmse = {
        name: errors(C, prefix(400), stated_sensitivity(C, full)).rmse
        for name, C in (("identity", identity(400)), ("diagonal", optimal_diagonal(400)))
    }
    assert rmse["diagonal"] / rmse["identity"] == pytest.approx(np.sqrt(8) / 3, rel=2e-3)
    rng = np.random.default_rng(0)
    weights = np.arange(400, 0, -1)
    best = (weights / optimal_diagonal(400).entries ** 2).sum() * (optimal_diagonal(400).entries ** 2).sum()
    for _ in range(20):
        other = optimal_diagonal(400).entries ** 2 * np.exp(0.1 * rng.normal(size=400))
        assert (weights / other).sum() * other.sum() > best


def test_parameters_out_of_range_are_refused():
    for make, message in [
        (lambda: cgd(1.0, 5), "lambda"),
        (lambda: cgd(-0.1, 5), "lambda"),
        (lambda: bifr(0.0, 2, 5), "gamma"),
        (lambda: bfr(1.1, 2, 5), "gamma"),
        (lambda: bifr(float("nan"), 2, 5), "gamma"),
        (lambda: nu_ftrl(0.0, 5), "nu"),
        (lambda: nu_ftrl(1.5, 5), "nu"),
        (lambda: bsr(0, 5), "p .bands."),
        (lambda: bisr(6, 5), "between 1 and n=5"),
        (lambda: one_parameter(-1.0, 2, 5), "c .shift."),
        (lambda: optimal_diagonal(0), "n .rounds."),
        (lambda: square_root(0), "n .rounds."),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
