from __future__ import annotations

import numpy as np
import pytest
from support.oracles import ltt, query_variances, scalar_sensitivity

from fedmf.mechanisms import banded as banded_optimizer
from fedmf.mechanisms.banded import (
    Banded,
    banded,
    inverse_norm,
    inverse_row_norms,
    log_error,
    workload_inverse,
)
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.closed_forms import optimal_diagonal
from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.matrix import normalized
from fedmf.mechanisms.optimise import Descent
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.workload import average, exponential, momentum, prefix, weighted, window
from fedmf.participation import Participation

# McKenna (2024), Appendix B.1: the optimal 3-banded C for n = 9, by columns from the diagonal down.
PUBLISHED = [
    [0.740, 0.500, 0.450],
    [0.822, 0.492, 0.286],
    [0.876, 0.395, 0.278],
    [0.821, 0.462, 0.335],
    [0.855, 0.442, 0.272],
    [0.882, 0.403, 0.243],
    [0.892, 0.409, 0.194],
    [0.936, 0.353, 0.0],
    [1.000, 0.0, 0.0],
]

WORKLOADS = [
    prefix(23),
    exponential(0.8, 23),
    momentum(0.9, 23, weight_decay=0.95),
    average(23),
    weighted(prefix(23), columns=np.linspace(1.0, 0.2, 23)),
    window(4, 23),
    weighted(window(4, 23), rows=np.linspace(0.0, 1.0, 23), columns=np.linspace(1.0, 0.2, 23)),
]
every_workload = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)


def _random_band(rng, n, p):
    band = rng.normal(0, 0.3, (n, p))
    band[:, 0] = rng.uniform(0.7, 1.5, n)
    band[np.add.outer(np.arange(n), np.arange(p)) >= n] = 0.0
    return band


@pytest.mark.parametrize(("n", "p"), [(1, 1), (5, 5), (16, 1), (33, 2), (40, 17), (64, 16), (61, 40)])
def test_inverse_norms_are_those_of_the_dense_inverse(n, p):
    rng = np.random.default_rng(n)
    band, weights = _random_band(rng, n, p), rng.uniform(0, 2, n)
    inverse = np.linalg.inv(Banded(band).materialize())
    value, slope = inverse_norm(band, lambda norms: weights)
    gradient = -2 * (inverse @ inverse.T @ (weights[:, None] * inverse)).T
    inside = np.add.outer(np.arange(n), np.arange(p)) < n
    j, d = np.nonzero(inside)
    assert value == pytest.approx(weights @ (inverse**2).sum(axis=1), rel=1e-12)
    assert np.allclose(inverse_row_norms(band), (inverse**2).sum(axis=1), rtol=1e-12)
    assert np.allclose(slope[j, d], gradient[j + d, j], rtol=0, atol=1e-12 * np.abs(gradient).max())
    assert not slope[~inside].any()


def test_an_overflowing_inverse_has_infinite_norm():
    band = np.ones((3000, 2)) * [1.0, 4.0]
    assert inverse_norm(band, np.ones_like)[0] == np.inf


@every_workload
def test_gradient_is_that_of_finite_differences(workload):
    rng = np.random.default_rng(3)
    parameters = _random_band(rng, workload.rounds, 4)
    norms = rng.uniform(0.5, 2.0, workload.rounds)
    value, slope, slope_norms = log_error(parameters, workload, norms)
    C = norms[:, None] * parameters / np.linalg.norm(parameters, axis=1, keepdims=True)
    dense = workload.materialize() @ np.linalg.inv(Banded(C).materialize())
    assert value == pytest.approx(np.log(np.sum(dense**2)), rel=1e-12)
    step = 1e-6
    for j, d in [(0, 0), (0, 3), (7, 1), (15, 2), (16, 3), (21, 1), (22, 0)]:
        up, down = parameters.copy(), parameters.copy()
        up[j, d] += step
        down[j, d] -= step
        measured = (log_error(up, workload, norms)[0] - log_error(down, workload, norms)[0]) / (2 * step)
        assert slope[j, d] == pytest.approx(measured, rel=1e-6, abs=1e-8)
    for j in (0, 11, 22):
        nudge = step * np.eye(23)[j]
        up, down = (
            log_error(parameters, workload, norms + nudge),
            log_error(parameters, workload, norms - nudge),
        )
        assert slope_norms[j] == pytest.approx((up[0] - down[0]) / (2 * step), rel=1e-6, abs=1e-8)


@every_workload
def test_errors_are_those_of_dense_matrices(workload):
    C = Banded(_random_band(np.random.default_rng(4), workload.rounds, 3))
    contract = Participation(workload.rounds, 3, 5)
    stated = stated_sensitivity(C, contract)
    expected = query_variances(workload.materialize(), C.materialize())
    assert errors(C, workload, stated).rmse == pytest.approx(
        np.sqrt(expected.mean()) * stated.value, rel=1e-10
    )


def test_published_matrix_to_its_printed_digits():
    found = banded(3, Participation(9, 3, 3), equal_norms=True)
    assert np.abs(found.band - PUBLISHED).max() <= 0.0006
    assert found.query_variances(np.ones(9)).sum() <= Banded(PUBLISHED).query_variances(np.ones(9)).sum() * (
        np.linalg.norm(PUBLISHED, axis=1).max() ** 2
    )


@every_workload
def test_columns_have_norm_one_and_the_gradient_vanishes(workload):
    C = banded(4, Participation(workload.rounds, 5, 5), workload, equal_norms=True)
    assert np.allclose(C.gram_diagonal(0), 1.0, rtol=1e-12)
    assert np.abs(log_error(C.band, workload)[1]).max() < 1e-5


def test_no_worse_than_the_normalized_toeplitz_matrix_and_than_neighbours():
    contract, ones = Participation(96, 4, 24), np.ones(96)
    toeplitz = normalized(banded_toeplitz(12, contract))
    best = banded(12, contract, equal_norms=True)
    error = best.query_variances(ones).sum()
    assert error < toeplitz.query_variances(ones).sum()
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        moved = best.band * (1 + size * rng.normal(size=best.band.shape))
        other = Banded(moved / np.linalg.norm(moved, axis=1, keepdims=True))
        assert error < other.query_variances(ones).sum()


@pytest.mark.parametrize(("k", "b"), [(1, 9), (2, 3), (2, 5), (3, 3), (3, 4)])
def test_sensitivity_is_exact_and_falling_norms_pay(k, b):
    contract = Participation(9, k, b)
    equal, falling = banded(3, contract, equal_norms=True), banded(3, contract)
    stated = [stated_sensitivity(C, contract) for C in (equal, falling)]
    for C, found in zip((equal, falling), stated, strict=True):
        assert found.kind == "exact"
        assert found.value == pytest.approx(scalar_sensitivity(C.materialize(), k, b), rel=1e-12)
    assert stated[0].value == pytest.approx(np.sqrt(k), rel=1e-12)
    squares = falling.gram_diagonal(0)
    blocks = squares[: k * b : b]
    assert np.allclose(squares, blocks[np.minimum(np.arange(9) // b, k - 1)], rtol=1e-12)
    assert stated[1].value == pytest.approx(np.sqrt(blocks.sum()), rel=1e-12)
    rmse = [errors(C, prefix(9), found).rmse for C, found in zip((equal, falling), stated, strict=True)]
    assert rmse[1] == pytest.approx(rmse[0], rel=1e-9) if k == 1 else rmse[1] < rmse[0]


def test_users_in_every_round_get_the_optimal_diagonal():
    contract = Participation(30, 30, 1)
    found = banded(1, contract).band[:, 0]
    best = optimal_diagonal(30).entries
    assert np.allclose(found, best / best[0], rtol=1e-3)


def test_published_errors_of_ten_epochs():
    """Kalinin et al. (2026), Table 4, rows BandMF: no worse by more than 0.2 %."""
    contract, sigma = Participation(3900, 10, 390), 0.60023
    C = banded(2, contract, equal_norms=True)
    assert errors(C, prefix(3900), stated_sensitivity(C, contract), sigma).rmse <= 59.44 * 1.002


def test_short_inverses_of_workloads():
    assert np.allclose(workload_inverse(exponential(0.9, 50).coefficients), [1.0, -0.9])
    assert np.allclose(workload_inverse(momentum(0.9, 50, 0.95).coefficients), [1.0, -1.85, 0.855])
    assert workload_inverse(window(5, 50).coefficients) is None
    assert workload_inverse(np.array([2.0])).tolist() == [0.5]


def test_general_query_variances_in_several_chunks(monkeypatch):
    monkeypatch.setattr("fedmf.mechanisms.banded._CHUNK_ENTRIES", 70)
    C, a = Banded(_random_band(np.random.default_rng(5), 23, 4)), window(4, 23).coefficients
    assert np.allclose(C.query_variances(a), query_variances(ltt(a, 23), C.materialize()), rtol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Banded([[1.0, 1.0]]), "1 <= p <= n; got"),
        (lambda: Banded([1.0, 1.0]), "shape"),
        (lambda: Banded([[1.0, np.nan], [1.0, 0.0]]), "finite; got nan at column 0, diagonal 1"),
        (lambda: Banded([[1.0, 1.0], [0.0, 0.0]]), "positive; got 0.0 at j=1"),
        (lambda: Banded([[1.0, 1.0], [1.0, 2.0]]), "end at row n=2; got 2.0 at row 2"),
        (lambda: Banded([[1.0], [1.0]]).leading(3), "between 1 and n=2"),
        (lambda: banded(10, Participation(9, 1, 9)), "between 1 and n=9"),
        (
            lambda: banded(2, Participation(2049, 1, 9), window(3, 2049)),
            "at most 2048 .* Use banded-toeplitz",
        ),
    ],
)
def test_bad_values_are_refused_on_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refusal:
        make()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("equal_norms", [False, True])
@pytest.mark.parametrize(("n", "p", "k", "b"), [(96, 12, 4, 24), (60, 15, 2, 20), (120, 6, 1, 120)])
def test_the_search_ends_within_its_tolerance_of_the_optimum(n, p, k, b, equal_norms, monkeypatch):
    contract = Participation(n, k, b)

    def rmse():
        C = banded(p, contract, equal_norms=equal_norms)
        return errors(C, prefix(n), stated_sensitivity(C, contract)).rmse

    found = rmse()
    exact = Descent(tolerance=1e-15, gradient=1e-12, evaluations=10_000, memory=20)
    monkeypatch.setattr(banded_optimizer, "_DESCENT", exact)
    assert rmse() <= found <= rmse() * (1 + 2e-7)
