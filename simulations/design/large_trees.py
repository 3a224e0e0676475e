"""The error of a binary tree with more rounds than a dense matrix has room for (BandMF, Figures 1
(b) and 7).

n = 2^m rounds and n = kb with b a power of two. By symmetry a block's estimates depend on its level
alone, so variances of all prefixes take O(n) numbers. `tests/papers/test_bandmf.py` compares them
with dense ones.
"""

from __future__ import annotations

import math

import numpy as np

from fedmf.matrices.arrays import Vector
from fedmf.participation import Participation

__all__ = ["prefix_variances", "tree_rmse", "tree_sensitivity"]


def prefix_variances(levels: int) -> Vector:
    """Of the best linear unbiased estimates of all prefixes from a tree over 2^levels rounds, unit
    noise.

    Given the sum S of a block, the best estimate of its prefix of τ rounds is α(τ)·S plus what
    nodes inside say, of variance β(τ). Let w be the variance of a child's sum from its own node and
    those inside. Given S, the left child's sum has the mean S/2 plus known, variance w/2, since the
    right one's estimate is S less it. A prefix that ends in the left child is its prefix, one that
    ends in the right child is S less what the right child has beyond it:

        α = α_L/2, β = β_L + α_L²·w/2;   α = 1 − (1 − α_R)/2, β = β_R + (1 − α_R)²·w/2.

    The root's own sum has the variance w of its level, w_j = 2w_{j−1}/(1 + 2w_{j−1}), w_0 = 1.
    """
    carried = np.ones(1)
    spread = np.zeros(1)
    w = 1.0
    for _ in range(levels):
        beyond = 1.0 - carried
        spread = np.concatenate([spread + carried**2 * w / 2, spread + beyond**2 * w / 2])
        carried = np.concatenate([carried / 2, 1.0 - beyond / 2])
        w = 2 * w / (1 + 2 * w)
    return carried**2 * w + spread


def tree_sensitivity(contract: Participation) -> float:
    """√(k(log₂ b + 1) + 2k(k − 1)) for n = kb, k and b powers of two; exact.

    A user with k participations, one in each aligned block of b rounds, is in log₂ b + 1 blocks of
    at most b rounds each time, and in each of the k/2^j blocks of 2^j·b rounds 2^j times. No block
    of at most b rounds holds two participations and none of 2^j·b more than 2^j, so no pattern has
    a larger sum of squares.
    """
    n = contract.rounds
    k = contract.max_participations
    b = contract.min_separation
    if n != k * b or k & (k - 1) or b & (b - 1):
        raise ValueError(f"n (rounds) must be k·b with k and b powers of two; got {n}, {k}, {b}.")
    return math.sqrt(k * (b.bit_length()) + 2 * k * (k - 1))


def tree_rmse(contract: Participation) -> float:
    """RMSE of prefix sums of the full tree, sensitivity included, noise multiplier left out."""
    variances = prefix_variances(contract.rounds.bit_length() - 1)
    return math.sqrt(float(variances.mean())) * tree_sensitivity(contract)
