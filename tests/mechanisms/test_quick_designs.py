"""What makes designs quick changes no result: settled sums, searches, scaled columns, banded inverses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.oracles import ltt, query_variances

from fedmf.mechanisms.banded_inverse import InverseObjective
from fedmf.mechanisms.closed_forms import bfr, bifr
from fedmf.mechanisms.errors import QuickError
from fedmf.mechanisms.errors import query_variances as variances_of
from fedmf.mechanisms.matrix import normalized
from fedmf.mechanisms.optimise import minimize_from, minimize_on_interval
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.sensitivity import quick_upper_bound, stated_sensitivity
from fedmf.mechanisms.series import (
    _past,
    _past_by_lags,
    binomial_series,
    reciprocal,
    scaled_query_variances,
    settled_reciprocal,
)
from fedmf.mechanisms.toeplitz import ColumnScaled, InverseToeplitz, Toeplitz
from fedmf.mechanisms.trees import kary_tree, tree
from fedmf.mechanisms.workload import average, parse_workload, prefix, weighted
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


@pytest.mark.parametrize(("n", "k", "b"), [(1, 1, 1), (7, 3, 2), (50, 50, 1), (100, 4, 20), (200, 2, 100)])
def test_trees_are_chosen_as_if_each_was_searched(n: int, k: int, b: int) -> None:
    contract = Participation(n, k, b)
    error = QuickError(contract, prefix(n))
    for columns in (lambda C: C, normalized):
        prefixed = "normalized-" if columns is normalized else ""
        arities = {arity: error(columns(kary_tree(arity, n))) for arity in (2, 3, 4, 6, 8, 12, 16)}
        kinds = {full: error(columns(tree(n, bool(full)))) for full in (1, 0)}
        arity = build(f"{prefixed}kary-tree", contract).params["arity"]
        full = build(f"{prefixed}tree", contract).params["full"]
        assert arities[arity] <= min(arities.values()) * (1 + 1e-12)
        assert kinds[full] <= min(kinds.values()) * (1 + 1e-12)


@pytest.mark.parametrize(("k", "b"), [(4, 20), (10, 3)])
def test_an_error_beyond_the_limit_is_bounded_from_below(k: int, b: int) -> None:
    error = QuickError(Participation(80, k, b), prefix(80))
    for C in (kary_tree(3, 80), normalized(tree(80)), normalized(bfr(0.5, 40, 80))):
        whole = error(C)
        assert 0 < error(C, 0.0) <= whole * (1 + 1e-12)
        assert error(C, whole * (1 + 1e-9)) == whole  # not above the limit: told exactly


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
    found = scaled_query_variances(np.ones(n), padded, scale)
    assert found == pytest.approx(expected, rel=1e-10)


def test_scaled_columns_of_other_workloads_have_a_limit() -> None:
    n = 131_073
    with pytest.raises(ValueError, match="at most 131072 for scaled columns"):
        scaled_query_variances(np.full(n, 0.5), np.ones(1), np.ones(n))


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


@pytest.mark.parametrize(("k", "b", "p"), [(1, 40, 6), (4, 10, 7), (3, 5, 40), (40, 1, 3), (2, 17, 12)])
@pytest.mark.parametrize("make", [prefix, average])
def test_the_curvature_of_a_banded_inverse_is_that_of_differences(k: int, b: int, p: int, make) -> None:
    n = 40
    contract, workload = Participation(n, k, b), make(n)
    if make is average:
        workload = weighted(prefix(n), rows=np.linspace(2.0, 0.5, n))
    objective = InverseObjective(p, contract, workload)
    h = binomial_series(0.4, p) * (1 + 0.05 * np.random.default_rng(p).normal(size=p))
    value, slope = objective(h)
    dense = np.asarray(np.linalg.inv(ltt(h, n)), dtype=np.float64)
    square = float(np.square(dense[:, : (k - 1) * b + 1 : b].sum(axis=1)).sum())
    assert math.exp(value) == pytest.approx(
        query_variances(workload.materialize(), dense).sum() * square, rel=1e-11
    )
    second = objective.hessian(h)
    for i in range(p):
        step = 1e-6 * np.eye(p)[i]
        up, down = objective(h + step), objective(h - step)
        assert slope[i] == pytest.approx((up[0] - down[0]) / 2e-6, rel=1e-5, abs=1e-6)
        assert second[i] == pytest.approx((up[1] - down[1]) / 2e-6, rel=1e-4, abs=1e-4 * np.abs(second).max())


def test_a_banded_inverse_beyond_the_old_limit_is_exact_and_beats_bifr() -> None:
    contract = Participation(100_000, 5, 20_000)
    inverse = build("banded-inverse", contract, bands=8).factorization
    stated = stated_sensitivity(inverse, contract)
    assert stated.kind == "exact"
    error = QuickError(contract, prefix(100_000))
    assert error(inverse) < error(build("bifr", contract, bands=8).factorization)


@pytest.mark.parametrize("start", [0.0, 0.02, 0.4, 0.77, 1.0])
@pytest.mark.parametrize("target", [0.0, 0.123, 0.77, 1.0])
def test_a_search_from_a_near_point_finds_inner_and_end_minima(start: float, target: float) -> None:
    calls: list[float] = []

    def objective(x: float) -> float:
        assert 0.0 <= x <= 1.0
        calls.append(x)
        return (x - target) ** 2 * (1 + 0.5 * x)

    x, value = minimize_from(objective, start, 0.0, 1.0, 0.04, 1e-4)
    assert x == pytest.approx(target, abs=2e-4)
    assert value == (x - target) ** 2 * (1 + 0.5 * x)
    assert len(calls) == len(set(calls)) < 25


def test_a_smooth_search_takes_few_evaluations() -> None:
    calls: list[float] = []

    def objective(x: float) -> float:
        calls.append(x)
        return math.cosh(3 * (x - 0.3456))

    x, _ = minimize_on_interval(objective, 0.0, 1.0, 17, 1e-4)
    assert x == pytest.approx(0.3456, abs=1e-4)
    assert len(calls) <= 25
