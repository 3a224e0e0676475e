"""The pieces of every loss against dense linear algebra, their gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.oracles import earliest_norm, ltt

from fedmf.matrices.blt import BufferedToeplitz
from fedmf.mechanisms.banded_family import variances_of_band
from fedmf.mechanisms.banded_inverse import _exponentials
from fedmf.mechanisms.banded_toeplitz import ToeplitzLoss
from fedmf.mechanisms.blt_family import _BufferedLoss
from fedmf.mechanisms.closed_forms import bisr, bsr
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.optimize import (
    log_earliest,
    log_earliest_exponentials,
    log_error,
    log_mean,
    optimize,
    series_reciprocal,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, parse_workload, prefix, weighted
from fedmf.participation import Participation

N = 9
ROWS = np.append(0.0, np.linspace(0.5, 2.0, N - 1))
RATES = np.linspace(1.0, 0.2, N)
WORKLOADS = [
    prefix(N),
    parse_workload("exponential:0.7", N),
    weighted(prefix(N), rows=ROWS),
    weighted(prefix(N), columns=RATES),
    weighted(parse_workload("window:3", N), rows=ROWS, columns=RATES),
]


def _differs(loss, x) -> float:
    """The largest difference between the gradient and central differences."""
    point = torch.tensor(x, requires_grad=True)
    slope = torch.autograd.grad(loss(point), point)[0].numpy()
    steps = 1e-6 * np.eye(x.size).reshape(x.size, *x.shape)
    differences = np.zeros(x.size)
    for i, step in enumerate(steps):
        up = float(loss(torch.tensor(x + step)))
        down = float(loss(torch.tensor(x - step)))
        differences[i] = (up - down) / 2e-6
    return float(np.abs(slope - differences.reshape(x.shape)).max())


@pytest.mark.parametrize("queries", WORKLOADS, ids=lambda w: w.name)
@pytest.mark.parametrize("order", [1.0, 8.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_errors_are_power_means_of_the_rows_of_the_dense_matrix(
    queries: ToeplitzWorkload, order, scaled
) -> None:
    h = np.array([1.0, -0.6, 0.1, -0.2])
    scale = np.ones(N)
    given = None
    if scaled:
        scale = np.linspace(2.0, 0.5, N)
        given = torch.tensor(scale)
    dense = queries.materialize() @ np.diag(scale) @ ltt(h, N)
    rows = (dense**2).sum(axis=1)

    def loss(x):
        return log_error(x, queries, order, given)

    assert float(loss(torch.tensor(h))) == pytest.approx(
        np.log((rows**order).sum()) / order, rel=1e-12
    )
    assert _differs(loss, h) < 1e-7
    assert _differs(lambda c: loss(series_reciprocal(c, N)), h) < 1e-7


@pytest.mark.parametrize(("k", "b"), [(1, 9), (3, 3), (4, 2)])
@pytest.mark.parametrize("terms", [2, 9])
def test_the_earliest_pattern_moves_what_the_dense_matrix_says(k: int, b: int, terms: int) -> None:
    c = np.array([1.0, -0.6, 0.1, 0.4, 0.3, 0.2, 0.1, 0.3, 0.1])[:terms]
    contract = Participation(N, k, b)
    computed = float(log_earliest(torch.tensor(c), contract))
    assert computed == pytest.approx(2 * np.log(earliest_norm(ltt(c, N), k, b)), rel=1e-12)
    assert _differs(lambda x: log_earliest(x, contract), c) < 1e-7


@pytest.mark.parametrize(
    ("n", "k", "b"), [(40, 1, 40), (40, 5, 8), (41, 3, 12), (40, 40, 1), (3000, 2, 1400)]
)
def test_sums_of_exponentials_are_those_of_their_series(n: int, k: int, b: int) -> None:
    contract = Participation(n, k, b)
    C = BufferedToeplitz([0.99, 0.5], [0.1, 0.3], n)
    theta = torch.tensor(C.decays)
    omega = torch.tensor(C.weights)
    rho = omega / theta
    computed = log_earliest_exponentials(1.0 - rho.sum(), rho, theta, contract)
    assert float(computed) == pytest.approx(
        float(log_earliest(torch.tensor(C.strategy_coefs.copy()), contract)), abs=1e-9
    )
    h = torch.tensor(bisr(8, n).noising_coefs[:8].copy())
    computed = log_earliest_exponentials(0.0, *_exponentials(h), contract)
    assert float(computed) == pytest.approx(
        float(log_earliest(series_reciprocal(h, n), contract)), abs=1e-7
    )
    assert (
        _differs(lambda x: log_earliest_exponentials(0.0, *_exponentials(x), contract), h.numpy())
        < 1e-5
    )


@pytest.mark.parametrize("text", ["prefix", "momentum:0.8"])
@pytest.mark.parametrize("n", [60, 3000])
def test_the_loss_of_a_blt_is_its_error_at_the_earliest_pattern(text: str, n: int) -> None:
    contract = Participation(n, 2, n // 2)
    queries = parse_workload(text, n)
    loss = _BufferedLoss(contract, queries, 1.0)
    x = np.array([4.0, 0.3, -2.0, -1.0])
    C = BufferedToeplitz(*loss.pair(x), n)
    square = np.linalg.norm(C.column_sum([0, n // 2])) ** 2 * query_variances(C, queries).sum()
    assert float(loss(torch.tensor(x))) == pytest.approx(np.log(square), abs=1e-7)
    assert _differs(loss, x) < 1e-6


def test_the_loss_of_a_banded_toeplitz_matrix_is_closed_by_its_limit() -> None:
    for text in ("prefix", "momentum:0.9", "exponential:0.8"):
        n = 20_000
        contract = Participation(n, 4, 5000)
        queries = parse_workload(text, n)
        loss = ToeplitzLoss(8, contract, queries, 1.0)
        C = bsr(8, n)
        assert loss.terms < n
        assert loss.settles(C.coefficients)
        square = (
            np.linalg.norm(C.column_sum([0, 5000, 10_000, 15_000])) ** 2
            * query_variances(C, queries).sum()
        )
        assert float(loss(torch.tensor(C.coefficients.copy()))) == pytest.approx(
            np.log(square), rel=1e-12
        )


@pytest.mark.parametrize("queries", WORKLOADS, ids=lambda w: w.name)
@pytest.mark.parametrize("p", [1, 4, N])
def test_variances_of_a_banded_matrix_and_their_gradient(queries: ToeplitzWorkload, p: int) -> None:
    band = np.where(
        np.add.outer(np.arange(N), np.arange(p)) < N,
        np.random.default_rng(1).random((N, p)) + 0.2,
        0.0,
    )
    C = np.zeros((N, N))
    for d in range(p):
        C[np.arange(d, N), np.arange(N - d)] = band[: N - d, d]
    rows = ((queries.materialize() @ np.linalg.inv(C)) ** 2).sum(axis=1)
    variances = variances_of_band(queries, (N, p))

    def loss(x):
        return log_mean(variances(x.reshape(N, p)), queries)

    assert float(loss(torch.tensor(band))) == pytest.approx(np.log(rows.sum()), rel=1e-11)
    inside = np.add.outer(np.arange(N), np.arange(p)) < N
    assert (
        _differs(
            lambda x: loss(torch.where(torch.tensor(inside.reshape(-1)), x, 0.0)), band.reshape(-1)
        )
        < 1e-6
    )


def test_the_optimizer_keeps_the_best_point_within_bounds_and_leaves_out_what_overflows() -> None:
    def walled(x):
        return torch.where(x[0] > 2.0, torch.inf, (x**2).sum() - 4.0 * x[0])

    assert optimize(walled, np.array([1.0, 1.0])) == pytest.approx([2.0, 0.0], abs=1e-3)
    bounded = optimize(lambda x: (x**2).sum(), np.ones(2), lowest=np.array([0.5, -1.0]))
    assert bounded == pytest.approx([0.5, 0.0], abs=1e-12)
