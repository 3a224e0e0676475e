"""Tree aggregation as lower-triangular strategy matrices.

`tree` is the binary tree with Honaker's estimators, `kary_tree` the unweighted tree of any arity.
"""

from __future__ import annotations

import numpy as np

from fedmf.matrices.arrays import Array
from fedmf.matrices.factorization import LARGEST_DENSE
from fedmf.matrices.series import check_count
from fedmf.matrices.streaming_inverse import BlockSums, closed_levels, levels
from fedmf.matrices.trees import BlockTree, KaryTree
from fedmf.mechanisms.lower_factor import lower_factor
from fedmf.mechanisms.registry import (
    MechanismFamily,
    Parameter,
    SearchedParameter,
    one_of,
    register,
)


def tree(rounds: int, full: bool = True) -> BlockTree:
    """Binary tree aggregation: a noisy sum for every dyadic block that is complete by round n.

    The tree's own strategy matrix T has a row per node. Releases depend on it through the
    covariance of the noise in the prefix sums, so a square C with the same covariance releases the
    same distribution.

    *full*: every query is the best linear unbiased estimate from all nodes, that is B = A·T⁺. C is
    the lower-triangular matrix with CᵀC = TᵀT, which makes that estimate round by round. *online*:
    prefix t is the sum of the dyadic blocks of t, each estimated from the nodes inside it by
    inverse variance. Here CᵀC = (NNᵀ)⁻¹ with N = A⁻¹B, at most TᵀT: what the estimator drops is not
    paid for.

    Args:
        rounds: n, at most 4096.
        full: whether to use Honaker's full estimator rather than his online one.

    Returns:
        C, lower triangular.

    Raises:
        ValueError: n is out of range.

    References:
        Honaker (2015), "Efficient Use of Differentially Private Binary Trees"; Denisov et al.
        (2022), on lower-triangular factors.

    >>> tree(2, full=True).matrix.round(3), tree(2, full=False).noise_row_variances().round(3)
    (array([[1.225, 0.   ],
           [0.707, 1.414]]), array([1., 1.]))
    """
    _check_rounds(rounds)
    if full:
        return BlockTree(BlockSums.of_strategy(lower_factor(_node_gram(rounds))))
    return BlockTree(_online(rounds))


def _online(rounds: int) -> BlockSums:
    """x_t = a_v·z_t − Σ_{j<v} g_vj·D_j for rounds at which v levels close.

    The estimate of a block from its node y and its halves' estimates is E_v = w_v·y + (1 − w_v)(E^L
    + E^R), w_v = 2V/(1 + 2V) with V = w_{v−1} the variance of a half's, w_0 = 1. All halves that
    end with round t are new in it, so E_v = a_v·z + Σ_{j<v} b_vj·D_j with b_vj = Π_{j<i≤v} (1 −
    w_i), D_j the left half next to level j, and a_v² = w_v² + (1 − w_v)²·a_{v−1}². The row is the
    new part: E_v − Σ_{j<v} D_j.
    """
    w = [1.0]
    gain = [1.0]
    while 2 ** len(w) <= rounds:
        w.append(2 * w[-1] / (1 + 2 * w[-1]))
        gain.append(float(np.hypot(w[-1], (1 - w[-1]) * gain[-1])))
    gains = np.zeros(rounds)
    weights = np.zeros((rounds, levels(rounds)))
    for t in range(rounds):
        gains[t] = gain[closed_levels(t)]
        share = 1.0
        for j in range(closed_levels(t) - 1, -1, -1):
            share *= 1 - w[j + 1]
            weights[t, j] = 1 - share
    return BlockSums(gains, weights, np.ones(rounds))


def kary_tree(arity: int, rounds: int) -> KaryTree:
    """The unweighted tree: row t of C sums the last a^v rounds.

    Here a^v is the largest power of a that divides t. Prefix t is the sum of as many rows as the
    digits of t in base a add up to. Blocks that end where their parent ends are left out: they
    occur in no prefix. For arity 2 this is the Fenwick tree.

    Args:
        arity: a, 2 ≤ a.
        rounds: n, at most 4096.

    Returns:
        C with entries 0 and 1.

    Raises:
        ValueError: a or n is out of range.

    References:
        Qardaji, Yang & Li (2013), "Understanding Hierarchical Methods for Differentially Private
        Histograms".

    >>> kary_tree(2, 4).matrix
    array([[1., 0., 0., 0.],
           [1., 1., 0., 0.],
           [0., 0., 1., 0.],
           [1., 1., 1., 1.]])
    """
    if isinstance(arity, bool) or not isinstance(arity, int) or arity < 2:
        raise ValueError(f"a (arity) must be an integer of at least 2; got {arity!r}.")
    _check_rounds(rounds)
    return KaryTree(arity, np.ones(rounds))


def _node_gram(rounds: int) -> Array:
    """The matrix TᵀT: entry ij is the number of complete dyadic blocks with both rounds."""
    gram = np.zeros((rounds, rounds))
    size = 1
    while size <= rounds:
        for start in range(0, rounds - size + 1, size):
            gram[start : start + size, start : start + size] += 1.0
        size *= 2
    return gram


def _check_rounds(rounds: int) -> None:
    if check_count(rounds, "n (rounds)") > LARGEST_DENSE:
        raise ValueError(
            f"n (rounds) must be at most {LARGEST_DENSE} for a tree; got {rounds}. "
            "Use banded-toeplitz, bisr or blt."
        )


register(
    MechanismFamily(
        "tree",
        "a binary tree of block sums",
        lambda request, values: tree(request.rounds, bool(values["full"])),
        (
            SearchedParameter(
                Parameter(
                    "full",
                    "1 for the full estimator, 0 for online",
                    integer=True,
                    lowest=0,
                    highest=1,
                ),
                one_of(1, 0),
            ),
        ),
        max_rounds=LARGEST_DENSE,
        max_rounds_compared=1024,
        optimized=True,
        aliases=("dp-ftrl", "binary-tree"),
    ),
    MechanismFamily(
        "kary-tree",
        "a tree of block sums, differences included",
        lambda request, values: kary_tree(values["arity"], request.rounds),
        (
            SearchedParameter(
                Parameter("arity", "children of a node", integer=True, lowest=2, highest=4096),
                one_of(2, 3, 4, 6, 8, 12, 16),
            ),
        ),
        max_rounds=LARGEST_DENSE,
        max_rounds_compared=1024,
        optimized=True,
    ),
)
