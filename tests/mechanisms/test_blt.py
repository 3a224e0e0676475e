"""Buffered linear Toeplitz: the inverse pair, the accuracy of the stream, gradient, optimum."""

from __future__ import annotations

from itertools import pairwise

import mpmath
import numpy as np
import pytest

from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.blt_family import blt
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.query_variances import toeplitz_query_variances
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

PAIRS = [
    ([0.9], [0.4]),
    ([0.9999, 0.995, 0.95, 0.6], [0.004, 0.03, 0.12, 0.3]),
]


def _rmse(C, contract):
    stated = sensitivity_of(C, contract)
    assert stated.kind == "exact"
    return errors(C, prefix(contract.rounds), stated).rmse


@pytest.mark.parametrize(("theta", "omega"), PAIRS)
def test_stream_equals_the_dense_solve_at_two_thousand_rounds(theta, omega):
    n = 2000
    C = BufferedToeplitz(theta, omega, n)
    z = np.random.default_rng(0).normal(size=n)
    c = np.concatenate(
        [[1.0], np.power.outer(np.array(theta), np.arange(n - 1)).T @ np.array(omega)]
    )
    expected = np.linalg.solve(np.tril(c[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))]), z)
    stream = C.streaming_inverse()
    assert stream.memory_vectors == len(theta)
    assert np.abs(stream.apply(z) - expected).max() < 1e-12


@pytest.mark.parametrize(("theta", "omega"), PAIRS)
def test_the_inverse_is_buffered_too(theta, omega):
    C = BufferedToeplitz(theta, omega, 300)
    theta_hat, omega_hat = C.inverse_pair()
    series = -np.power.outer(theta_hat, np.arange(299)).T @ omega_hat
    assert np.abs(series.imag).max() < 1e-9
    assert np.allclose(C.noising_coefs[1:], series.real, rtol=0, atol=1e-9)
    slower = np.sort(theta_hat.real)[::-1]
    assert (slower < np.sort(theta)[::-1]).all()
    assert (slower[:-1] > np.sort(theta)[::-1][1:]).all()
    assert (omega_hat.real > 0).all()


CROWDED = [
    ([0.99995, 0.9999, 0.9998, 0.9997, 0.9995], [1e-4] * 5),
    ([0.9999] * 5, [0.15] * 5),
]


@pytest.mark.parametrize(("theta", "omega"), CROWDED)
def test_crowded_decays_stream_exactly_and_have_exact_errors(theta, omega):
    """The reference has 50 digits; a direct form of the same C loses 2 digits to 14."""
    n = 1000
    C = BufferedToeplitz(theta, omega, n)
    with mpmath.workdps(50):
        decays = np.array([mpmath.mpf(a) for a in theta])
        weights = np.array([mpmath.mpf(w) for w in omega])
        sums = mpmath.mpf(0) * decays
        h = []
        for t in range(n):
            h.append((t == 0) - weights @ sums)
            sums = decays * sums + h[-1]
        prefixes = np.cumsum(h)
        rows = np.cumsum(prefixes**2)
    impulse = np.eye(1, n)[0]
    assert np.abs(C.streaming_inverse().apply(impulse) - np.array(h, dtype=float)).max() < 1e-15
    assert np.abs(C.noising_coefs - np.array(h, dtype=float)).max() < 1e-14
    assert toeplitz_query_variances(C, np.ones(n)) == pytest.approx(rows.astype(float), rel=1e-12)
    z = np.random.default_rng(0).normal(size=n)
    assert (
        np.abs(np.convolve(C.strategy_coefs, C.streaming_inverse().apply(z))[:n] - z).max() < 1e-12
    )


@pytest.mark.parametrize(
    ("theta", "omega", "n", "message"),
    [
        ([1.0], [0.5], 4, r"theta .* in \(0, 1\); got 1.0 at index 0"),
        ([0.5, 0.0], [0.5, 0.5], 4, "at index 1"),
        ([0.5], [-0.5], 4, "omega .* positive"),
        ([0.5], [0.5, 0.1], 4, "m=1 entries"),
        ([0.5], [0.5], 0, "n .rounds."),
        ([], [], 4, "non-empty"),
    ],
)
def test_bad_values_are_rejected(theta, omega, n, message):
    with pytest.raises(ValueError, match=message):
        BufferedToeplitz(theta, omega, n)


def test_no_worse_than_published():
    """8.14 in Kalinin, McKenna, Pagh & Lampert (2026), Table 4, first column (4 or 5 buffers)."""
    contract = Participation(3900, 10, 390)
    assert 0.60023 * _rmse(blt(3, contract), contract) <= 8.14 * 1.002


@pytest.mark.parametrize("contract", [Participation(100, 4, 25), Participation(60, 60, 1)])
def test_more_buffers_never_hurt_and_other_values_are_no_better(contract):
    designs = [blt(m, contract) for m in (1, 2, 3)]
    rmses = [_rmse(C, contract) for C in designs]
    for fewer, more in pairwise(rmses):
        assert more <= fewer * (1 + 1e-8)
    rng = np.random.default_rng(0)
    best = designs[1]
    for size in (0.3, 1e-2, 1e-3) * 6:
        odds = best.decays / (1.0 - best.decays) * np.exp(size * rng.normal(size=2))
        other = BufferedToeplitz(
            odds / (1.0 + odds), best.weights * np.exp(size * rng.normal(size=2)), contract.rounds
        )
        assert _rmse(other, contract) >= rmses[1] * (1 - 1e-9)
