"""The pair bound is never below the sensitivity, and certifies only what enumeration confirms."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import contracts, earliest_norm, ltt, patterns

from fedmf.mechanisms.sensitivity import (
    autocorrelation,
    earliest_is_worst,
    pair_bound_square,
    stated_sensitivity,
)
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.participation import Participation


def _worst_absolute_sum(C, k, b):
    gram = np.abs(C.T @ C)
    return max(gram[np.ix_(pattern, pattern)].sum() for pattern in patterns(len(C), k, b))


def test_bound_and_certificate_on_random_small_cases():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 9))
        signed = bool(rng.integers(2))
        c = rng.normal(size=n) if signed else np.sort(rng.random(n))[::-1] * (1 + 0.3 * rng.random(n))
        c[0] = 1.0 + abs(c[0])
        dense = ltt(c, n)
        for k, b in contracts(n):
            bound = pair_bound_square(c, k, b)
            assert bound >= _worst_absolute_sum(dense, k, b) * (1 - 1e-12)
            if earliest_is_worst(c, k, b):
                assert earliest_norm(dense, k, b) ** 2 >= _worst_absolute_sum(dense, k, b) * (1 - 1e-11)


def test_it_certifies_coefficients_that_rise():
    """c_1 = 0.3 < c_2; only lags of at least b matter, over which the autocorrelation falls."""
    n, k, b = 3000, 300, 10
    c = 0.9 ** np.arange(n)
    c[1] = 0.3
    stated = stated_sensitivity(Toeplitz(c, n), Participation(n, k, b))
    assert stated.kind == "exact"
    assert "pair by pair" in stated.case
    earliest = sum(np.concatenate([np.zeros(shift), c[: n - shift]]) for shift in range(0, k * b, b))
    assert stated.value == pytest.approx(float(np.linalg.norm(earliest)), rel=1e-12)


def test_a_later_bump_is_not_certified():
    c = np.array([1.0, 0.5, 0.1, 0.4, 0.1, 0.0])
    assert not earliest_is_worst(c, 2, 2)
    assert stated_sensitivity(Toeplitz(c, 6), Participation(6, 2, 2)).value > earliest_norm(ltt(c, 6), 2, 2)


def test_autocorrelation():
    c = np.random.default_rng(0).normal(size=9)
    expected = [float(c[: 9 - g] @ c[g:]) for g in range(9)]
    assert np.allclose(autocorrelation(c), expected, rtol=0, atol=1e-13)
