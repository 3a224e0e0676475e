"""Tree aggregation as lower-triangular strategy matrices: binary with Honaker's estimators, and k-ary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.dense import LARGEST_DENSE, Dense, lower_factor

__all__ = ["kary_tree", "tree"]

Array = NDArray[np.float64]


def tree(rounds: int, full: bool = True) -> Dense:
    """Binary tree aggregation: a noisy sum for every dyadic block of rounds that is complete by round n.

    The tree's own strategy matrix T has a row per node. Releases depend on it through the covariance of the
    noise in the prefix sums, so a square C with the same covariance releases the same distribution.

    *full*: every query is the best linear unbiased estimate from all nodes, that is B = A·T⁺. C is the
    lower-triangular matrix with CᵀC = TᵀT, which makes that estimate round by round.
    *online*: prefix t is the sum of the dyadic blocks of t, each estimated from the nodes inside it by
    inverse variance. Here CᵀC = (NNᵀ)⁻¹ with N = A⁻¹B, at most TᵀT: what the estimator drops is not paid for.

    Args:
        rounds: n, at most 4096.
        full: which of Honaker's estimators.

    Returns:
        C, lower triangular.

    Raises:
        ValueError: n is out of range.

    References:
        Honaker (2015), "Efficient Use of Differentially Private Binary Trees"; Denisov et al. (2022), on
        factors that are made lower triangular.

    >>> tree(2, full=True).matrix.round(3), tree(2, full=False).noise_row_variances().round(3)
    (array([[1.225, 0.   ],
           [0.707, 1.414]]), array([1., 1.]))
    """
    _check_rounds(rounds)
    if full:
        return Dense(lower_factor(_node_gram(rounds)))
    covariance = np.diff(np.diff(_online_covariance(rounds), axis=0, prepend=0.0), axis=1, prepend=0.0)
    return Dense(_inverse(np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)))


def kary_tree(arity: int, rounds: int) -> Dense:
    """The unweighted tree: row t of C sums the last a^v rounds, a^v the largest power of a dividing t.

    Prefix t is the sum of as many rows as the digits of t in base a add up to. Blocks that end where their
    parent ends are left out: they occur in no prefix. For arity 2 this is the Fenwick tree.

    Args:
        arity: a, 2 ≤ a.
        rounds: n, at most 4096.

    Returns:
        C with entries 0 and 1.

    Raises:
        ValueError: a or n is out of range.

    References:
        Qardaji, Yang & Li (2013), "Understanding Hierarchical Methods for Differentially Private Histograms".

    >>> kary_tree(2, 4).matrix
    array([[1., 0., 0., 0.],
           [1., 1., 0., 0.],
           [0., 0., 1., 0.],
           [1., 1., 1., 1.]])
    """
    if isinstance(arity, bool) or not isinstance(arity, int) or arity < 2:
        raise ValueError(f"a (arity) must be an integer of at least 2; got {arity!r}.")
    _check_rounds(rounds)
    last = np.arange(1, rounds + 1)
    width = np.ones(rounds, dtype=np.int64)
    power = arity
    while power <= rounds:
        width[last % power == 0] = power
        power *= arity
    lag = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    return Dense(((lag >= 0) & (lag < width[:, None])).astype(np.float64))


def _node_gram(rounds: int) -> Array:
    """[TᵀT]_ij: how many complete dyadic blocks hold both rounds."""
    gram = np.zeros((rounds, rounds))
    size = 1
    while size <= rounds:
        for start in range(0, rounds - size + 1, size):
            gram[start : start + size, start : start + size] += 1.0
        size *= 2
    return gram


def _online_covariance(rounds: int) -> Array:
    """The covariance of the online estimates of prefixes 1 … n, built from the leaves up.

    Let P be that of one subtree and v = P_{mm} the variance of its whole sum. Two of them, L then R, and the
    node y above give the estimates S^L_t, then S^L_m + S^R_t, and last w·y + (1 − w)(S^L_m + S^R_m) with
    w = 2v/(1 + 2v).
    """
    P = np.ones((1, 1))
    while (m := len(P)) < rounds:
        v, whole = P[-1, -1], P[:, -1]
        joined = np.empty((2 * m, 2 * m))
        joined[:m, :m] = P
        joined[:m, m:] = whole[:, None]
        joined[m:, :m] = whole
        joined[m:, m:] = v + P
        w = 2 * v / (1 + 2 * v)
        joined[-1] *= 1 - w
        joined[:, -1] *= 1 - w
        joined[-1, -1] = w
        P = joined
    return P[:rounds, :rounds]


def _inverse(lower: Array) -> Array:
    from scipy.linalg import solve_triangular

    return np.tril(solve_triangular(lower, np.eye(len(lower)), lower=True, check_finite=False))


def _check_rounds(rounds: int) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= LARGEST_DENSE:
        raise ValueError(
            f"n (rounds) must be an integer between 1 and {LARGEST_DENSE} for a tree; got {rounds!r}. "
            "Use banded-toeplitz, bisr or blt."
        )
