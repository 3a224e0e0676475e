"""What makes designs quick changes no result: settled sums, searches, scaled columns, banded
inverses.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.oracles import ltt

from fedmf.matrices.series import reciprocal
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import bfr, bifr
from fedmf.mechanisms.objective import QuickError
from fedmf.mechanisms.objective import query_variances as variances_of
from fedmf.mechanisms.power_series import binomial_series, settled_reciprocal
from fedmf.mechanisms.query_variances import _past, _past_by_lags, _scaled_query_variances
from fedmf.mechanisms.quick_sensitivity import quick_upper_bound
from fedmf.mechanisms.workload import parse_workload
from fedmf.participation import Participation


def test_the_quick_error_is_the_stated_one() -> None:
    for k, b in [(1, 2000), (4, 500), (40, 20)]:
        for workload in ["prefix", "momentum:0.9", "average", "prefix*linear"]:
            n = 2000
            contract = Participation(n, k, b)
            queries = parse_workload(workload, n)
            error = QuickError(contract, queries)
            signed = Toeplitz(np.array([1.0, 0.4, -0.2, 0.1, -0.05]), n)
            for C in (
                bifr(0.6, 16, n),
                bifr(0.5, 1600, n),
                bfr(0.4, 100, n),
                bfr(0.5, n, n),
                signed,
            ):
                variance = float(variances_of(C, queries).mean())
                assert error(C) == pytest.approx(
                    math.sqrt(variance) * quick_upper_bound(C, contract), rel=1e-10
                )


@pytest.mark.parametrize("bands", [2, 64, 20_000])
def test_settled_reciprocals_leave_out_nothing_that_counts(bands: int) -> None:
    c = binomial_series(-0.5, bands)
    n = 200_000
    whole = reciprocal(c, n)
    settled = settled_reciprocal(c, n)
    assert np.abs(whole[: settled.size] - settled).max() < 1e-15
    assert np.abs(whole[settled.size :]).sum() < 1e-13
    assert settled.size < n or bands > 1000


@pytest.mark.parametrize(("n", "p"), [(65_537, 65_000), (99_999, 600)])
def test_long_reciprocals_invert(n: int, p: int) -> None:
    c = binomial_series(-0.6, p)
    inverse = reciprocal(c, n)
    size = 1 << (2 * n).bit_length()
    product = np.fft.irfft(np.fft.rfft(c, size) * np.fft.rfft(inverse, size), size)[:n]
    assert np.abs(product - np.eye(1, n)[0]).max() < 1e-12
    assert np.abs(inverse[:p] - binomial_series(0.6, p)[: min(n, p)]).max() < 1e-13


@pytest.mark.parametrize(("n", "q"), [(1, 1), (257, 40), (300, 300)])
def test_halving_gives_the_row_norms_of_dense_matrices(n: int, q: int) -> None:
    rng = np.random.default_rng(n)
    h = rng.normal(size=q) / np.arange(1, q + 1)
    scale = rng.uniform(0.5, 2.0, n)
    dense = np.tril(np.ones((n, n))) @ (scale[:, None] * ltt(h, n))
    expected = np.square(dense).sum(axis=1)
    padded = np.pad(h, (0, n - q))
    assert _past(padded, scale) == pytest.approx(_past_by_lags(h, scale), rel=1e-9, abs=1e-11)
    variances = _scaled_query_variances(np.ones(n), padded, scale)
    assert variances == pytest.approx(expected, rel=1e-10)
