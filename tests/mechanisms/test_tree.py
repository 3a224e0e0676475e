from __future__ import annotations

import numpy as np
import pytest
from support.oracles import prefix_sums, query_variances

from fedmf.mechanisms.query_variances import toeplitz_query_variances
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.tree_families import kary_tree, tree
from fedmf.participation import Participation


def nodes(n: int) -> np.ndarray:
    """The rows of the binary tree: every dyadic block that is complete within n rounds."""
    rows = []
    size = 1
    while size <= n:
        rows += [
            np.isin(np.arange(n), np.arange(a, a + size)) for a in range(0, n - size + 1, size)
        ]
        size *= 2
    return np.array(rows, dtype=float)


def online_estimates(n: int) -> np.ndarray:
    """Estimates of prefixes from `nodes`: sums of blocks by least squares from inner nodes."""
    T = nodes(n)
    rows = np.zeros((n, len(T)))
    for t in range(1, n + 1):
        start = 0
        for bit in reversed(range(t.bit_length())):
            if t >> bit & 1:
                block = slice(start, start + 2**bit)
                inside = (T.sum(axis=1) == T[:, block].sum(axis=1)) & T[:, block].any(axis=1)
                rows[t - 1, inside] += np.linalg.pinv(T[inside, block]).sum(axis=0)
                start += 2**bit
    return rows


def test_full_estimator_is_least_squares_on_all_nodes():
    for n in [1, 2, 3, 4, 7, 8, 13, 16, 21]:
        T = nodes(n)
        C = tree(n, full=True)
        assert np.allclose(C.materialize().T @ C.materialize(), T.T @ T, atol=1e-12)
        best = prefix_sums(n) @ np.linalg.pinv(T)
        assert np.allclose(
            toeplitz_query_variances(C, np.ones(n)), (best**2).sum(axis=1), rtol=1e-10
        )


def test_online_estimator_has_the_covariance_of_its_definition():
    for n in [1, 2, 3, 4, 7, 8, 13, 16, 21]:
        B = online_estimates(n)
        C = tree(n, full=False)
        assert np.allclose(B @ nodes(n), prefix_sums(n), atol=1e-12)
        noise = prefix_sums(n) @ np.linalg.inv(C.materialize())
        assert np.allclose(noise @ noise.T, B @ B.T, atol=1e-10)


@pytest.mark.parametrize(
    ("arity", "n"), [(2, 1), (2, 16), (2, 23), (3, 27), (3, 31), (5, 30), (40, 30)]
)
def test_kary_prefixes_are_sums_of_as_many_rows_as_their_digits(arity, n):
    C = kary_tree(arity, n)
    dense = C.materialize()
    assert set(np.unique(dense)) <= {0.0, 1.0}
    assert np.array_equal(dense, np.tril(dense))
    digits = [sum(int(d) for d in _base(t, arity)) for t in range(1, n + 1)]
    assert np.allclose(toeplitz_query_variances(C, np.ones(n)), digits, rtol=1e-12)
    assert np.allclose(
        toeplitz_query_variances(C, np.ones(n)), query_variances(prefix_sums(n), dense), rtol=1e-9
    )


def _base(t: int, arity: int) -> list[int]:
    digits = []
    while t:
        t, digit = divmod(t, arity)
        digits.append(digit)
    return digits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tree(0), "of at least 1"),
        (lambda: tree(4097), "Use banded-toeplitz, bisr or blt"),
        (lambda: kary_tree(1, 4), "a .arity. must be an integer of at least 2; got 1"),
        (lambda: kary_tree(2, 5000), "at most 4096 for a tree"),
        (
            lambda: build("kary-tree", Participation(9, 1, 9), params={"arity": 2.5}),
            "integer between 2 and 4096; got 2.5",
        ),
    ],
)
def test_bad_values_are_rejected_on_one_line(make, message):
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("arity", "n"), [(2, 1), (2, 13), (3, 27), (4, 30), (8, 9)])
def test_a_scaled_kary_tree_knows_its_gram_matrix_and_its_inverse(arity, n):
    C = kary_tree(arity, n).columns_divided_by(np.random.default_rng(n).uniform(0.5, 2.0, n))
    gram = C.matrix.T @ C.matrix
    for gap in range(n):
        assert np.allclose(C.gram_diagonal(gap), np.diagonal(gram, gap), rtol=1e-13)
    assert np.allclose(C.inverse @ C.matrix, np.eye(n), atol=1e-12)
