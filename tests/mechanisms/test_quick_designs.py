"""What makes designs quick changes no result: settled sums, searches, scaled columns, banded inverses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.oracles import ltt

from fedmf.mechanisms.closed_forms import bfr, bifr
from fedmf.mechanisms.errors import QuickError
from fedmf.mechanisms.errors import query_variances as variances_of
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.sensitivity import quick_upper_bound, stated_sensitivity
from fedmf.mechanisms.series import binomial_series, reciprocal, settled_reciprocal
from fedmf.mechanisms.toeplitz import (
    ColumnScaled,
    InverseToeplitz,
    Toeplitz,
    _past,
    _past_by_lags,
    _scaled_query_variances,
)
from fedmf.mechanisms.workload import parse_workload, prefix
from fedmf.participation import Participation


def test_the_quick_error_is_the_stated_one() -> None:
    for k, b in [(1, 5000), (4, 1250), (9, 500), (40, 20)]:
        for workload in ["prefix", "momentum:0.9", "average", "prefix*linear"]:
            n = 5000
            contract, queries = Participation(n, k, b), parse_workload(workload, n)
            error = QuickError(contract, queries)
            signed = Toeplitz(np.array([1.0, 0.4, -0.2, 0.1, -0.05]), n)
            for C in (bifr(0.6, 16, n), bifr(0.5, 4000, n), bfr(0.4, 100, n), bfr(0.5, n, n), signed):
                variance = float(variances_of(C, queries).mean())
                assert error(C) == pytest.approx(
                    math.sqrt(variance) * quick_upper_bound(C, contract), rel=1e-10
                )


def test_an_error_that_overflows_is_infinite() -> None:
    error = QuickError(Participation(4000, 1, 4000), prefix(4000))
    assert error(Toeplitz(np.array([1.0, 3.0]), 4000)) == math.inf
    assert error(InverseToeplitz(np.array([1.0, 3.0]), 4000)) == math.inf


@pytest.mark.parametrize("bands", [2, 17, 64, 1000, 20_000])
def test_settled_reciprocals_leave_out_nothing_that_counts(bands: int) -> None:
    c, n = binomial_series(-0.5, bands), 200_000
    whole, settled = reciprocal(c, n), settled_reciprocal(c, n)
    assert np.abs(whole[: settled.size] - settled).max() < 1e-15
    assert np.abs(whole[settled.size :]).sum() < 1e-13
    assert settled.size < n or bands > 1000


@pytest.mark.parametrize(("n", "p"), [(50_000, 50_000), (70_001, 9000), (65_537, 65_000), (99_999, 600)])
def test_long_reciprocals_invert(n: int, p: int) -> None:
    c = binomial_series(-0.6, p)
    inverse = reciprocal(c, n)
    size = 1 << (2 * n).bit_length()
    product = np.fft.irfft(np.fft.rfft(c, size) * np.fft.rfft(inverse, size), size)[:n]
    assert np.abs(product - np.eye(1, n)[0]).max() < 1e-12
    assert np.abs(inverse[:p] - binomial_series(0.6, p)[: min(n, p)]).max() < 1e-13


@pytest.mark.parametrize(("n", "q"), [(1, 1), (2, 2), (129, 129), (257, 40), (700, 700), (1023, 600)])
def test_halving_gives_the_row_norms_of_dense_matrices(n: int, q: int) -> None:
    rng = np.random.default_rng(n)
    h = rng.normal(size=q) / np.arange(1, q + 1)
    scale = rng.uniform(0.5, 2.0, n)
    dense = np.tril(np.ones((n, n))) @ (scale[:, None] * ltt(h, n))
    expected = np.square(dense).sum(axis=1)
    padded = np.pad(h, (0, n - q))
    assert _past(padded, scale) == pytest.approx(_past_by_lags(h, scale), rel=1e-9, abs=1e-11)
    found = _scaled_query_variances(np.ones(n), padded, scale)
    assert found == pytest.approx(expected, rel=1e-10)


def test_scaled_columns_of_other_workloads_have_a_limit() -> None:
    n = 131_073
    with pytest.raises(ValueError, match="at most 131072 for scaled columns"):
        _scaled_query_variances(np.full(n, 0.5), np.ones(1), np.ones(n))


def test_normalised_columns_at_a_long_horizon() -> None:
    """The last query's variance by the adjoint: ‖LTT(h)ᵀ(s ⊙ 1)‖²."""
    n = 150_000
    contract = Participation(n, 10, 15_000)
    C = build("normalized-bisr", contract, bands=20_000).factorization
    size = 1 << (2 * n).bit_length()
    assert isinstance(C, ColumnScaled)
    h, scale = C.correlation, C.scale
    last = np.fft.irfft(np.fft.rfft(h, size) * np.fft.rfft(scale[::-1], size), size)[:n]
    variances = variances_of(C, prefix(n))
    assert variances[-1] == pytest.approx(float(last @ last), rel=1e-8)
    assert np.abs(C.gram_diagonal(0) - 1.0).max() < 1e-10


def test_a_banded_inverse_beyond_the_old_limit_is_exact_and_beats_bifr() -> None:
    contract = Participation(100_000, 5, 20_000)
    inverse = build("banded-inverse", contract, bands=8).factorization
    stated = stated_sensitivity(inverse, contract)
    assert stated.kind == "exact"
    error = QuickError(contract, prefix(100_000))
    assert error(inverse) < error(build("bifr", contract, bands=8).factorization)
