"""The search for the heaviest pattern: random matrices against enumeration, and at scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.oracles import contracts, patterns

from fedmf.factorization.matrices.closed_form import bisr
from fedmf.factorization.matrices.dense import Dense
from fedmf.factorization.matrices.toeplitz import Toeplitz, normalized
from fedmf.factorization.sensitivity.pattern_search import heaviest_pattern, row_bound
from fedmf.factorization.sensitivity.stated import exact_sensitivity
from fedmf.participation import Participation

# Two float64 summation orders of fewer than 200 terms, and the slack 2e-12 that the search allows itself.
EXACT = 1e-11


def padded_patterns(n: int, k: int, b: int) -> np.ndarray:
    """All patterns as rows of indices into n + 1 columns, the last of which is zero."""
    return np.array([[*pattern, *[n] * (k - len(pattern))] for pattern in patterns(n, k, b)])


def oracle(gram: np.ndarray, rows: np.ndarray) -> float:
    """max_π Σ_{i,j∈π} G_ij."""
    wide = np.pad(gram, (0, 1))
    return float(wide[rows[:, :, None], rows[:, None, :]].sum((1, 2)).max())


CONTRACTS = {n: [(k, b, padded_patterns(n, k, b)) for k, b in contracts(n)] for n in range(1, 11)}


def cases(seed: int, count: int) -> Iterator[tuple[np.random.Generator, int, int, int, np.ndarray]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n = int(rng.integers(1, 11))
        k, b, rows = CONTRACTS[n][int(rng.integers(len(CONTRACTS[n])))]
        yield rng, n, k, b, rows


def dense_entries(rng: np.random.Generator, n: int) -> np.ndarray:
    entries = np.tril(rng.random((n, n)))
    np.fill_diagonal(entries, rng.random(n) + 0.1)
    return entries


@pytest.mark.parametrize("signed", [False, True])
def test_a_thousand_searches_find_the_maximum(signed: bool) -> None:
    for rng, n, k, b, rows in cases(31 + signed, 1000):
        C = np.tril(rng.normal(size=(n, n)) if signed else rng.random((n, n)) ** int(rng.integers(1, 6)))
        gram = np.abs(C.T @ C)
        found = heaviest_pattern(gram, k, b)
        truth = oracle(gram, rows)
        assert found.finished
        assert found.value == pytest.approx(truth, rel=EXACT)
        assert found.bound >= truth * (1 - EXACT)
        assert gram[np.ix_(found.pattern, found.pattern)].sum() == pytest.approx(found.value, rel=EXACT)
        assert len(found.pattern) <= k
        assert (np.diff(found.pattern) >= b).all()


def test_without_work_the_search_still_bounds() -> None:
    unfinished = 0
    for rng, n, k, b, rows in cases(41, 300):
        C = np.tril(rng.normal(size=(n, n)))
        gram = np.abs(C.T @ C)
        found = heaviest_pattern(gram, k, b, work=0.0)
        truth = oracle(gram, rows)
        assert found.bound >= truth * (1 - EXACT)
        assert found.value <= truth * (1 + EXACT)
        assert row_bound(gram, k, b) >= truth * (1 - EXACT)
        unfinished += not found.finished
    assert unfinished == 0  # small cases finish within the least work


def test_exhausted_work_is_called_a_bound() -> None:
    rng = np.random.default_rng(0)
    C = np.tril(rng.normal(size=(160, 160)))
    gram = np.abs(C.T @ C)
    found = heaviest_pattern(gram, 40, 4, work=0.0)
    assert not found.finished
    rows = row_bound(gram, 40, 4)
    assert found.value < found.bound <= rows
    assert found.by_rows == (found.bound == rows)


@pytest.mark.parametrize(("k", "b"), [(6, 50), (4, 20), (3, 1)])
def test_matrices_of_every_kind_are_exact_at_scale(k: int, b: int) -> None:
    """Too many patterns to enumerate, and the worst one is not the earliest."""
    n, rng = 300, np.random.default_rng(9)
    bumpy = Toeplitz(np.array([1.0, *rng.random(99)]), n)
    for C in (normalized(bisr(80, n)), bumpy, Dense(dense_entries(rng, n))):
        stated = exact_sensitivity(C, Participation(n, k, b))
        dense = C.materialize()
        gram = dense.T @ dense
        for _ in range(200):
            pattern = np.sort(rng.choice(n - (k - 1) * (b - 1), k, replace=False)) + np.arange(k) * (b - 1)
            assert gram[np.ix_(pattern, pattern)].sum() <= stated.value**2 * (1 + EXACT)
    assert "search" in stated.case


def test_every_round_of_a_long_run_is_one_pattern() -> None:
    C = np.tril(np.random.default_rng(1).random((600, 600)))
    found = heaviest_pattern(C.T @ C, 600, 1)
    assert found.finished
    assert found.value == pytest.approx((C.sum(1) ** 2).sum(), rel=EXACT)


def test_three_rounds_at_scale_against_every_pattern() -> None:
    """The search against enumeration of 1.5 million patterns by one loop over the middle round."""
    n, b, rng = 220, 7, np.random.default_rng(3)
    C = np.tril(rng.random((n, n)))
    gram = C.T @ C
    own, truth = gram.diagonal(), 0.0
    for middle in range(b, n - b):
        first, last = slice(0, middle - b + 1), slice(middle + b, n)
        pairs = 2 * gram[first, last] + (own[first] + 2 * gram[first, middle])[:, None]
        truth = max(truth, own[middle] + float((pairs + own[last] + 2 * gram[middle, last]).max()))
    found = heaviest_pattern(gram, 3, b)
    assert found.finished
    assert found.value == pytest.approx(truth, rel=EXACT)
