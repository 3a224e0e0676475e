"""Sums over min-separated participation patterns: dynamic program, enumeration, the earliest pattern."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import padded
from fedmf.typing import Array

# Rows of the dynamic program that fit a processor's cache.
_CHUNK_ENTRIES = 100_000


def earliest_pattern(max_participations: int, min_separation: int) -> NDArray[np.int64]:
    """The pattern {0, b, 2b, …, (k−1)b}."""
    return np.arange(max_participations, dtype=np.int64) * min_separation


def monotone_envelope(column: Array) -> Array:
    """The least non-increasing sequence above a column ≥ 0: ĉ_j = max_{l ≥ j} c_l.

    >>> monotone_envelope(np.array([1.0, 0.2, 0.4, 0.1]))
    array([1. , 0.4, 0.4, 0.1])
    """
    return np.maximum.accumulate(column[::-1])[::-1]


def best_separated_sum(values: Array, max_participations: int, min_separation: int) -> Array:
    """max over patterns π of Σ_{i∈π} v_i along the last axis, at most k picks at least b apart.

    With F_m(i) the best of at most m picks from positions ≤ i:
    F_m(i) = max(F_m(i−1), v_i + F_{m−1}(i−b)).

    Args:
        values: v ≥ 0, shape (…, n).
        max_participations: k ≥ 0.
        min_separation: b ≥ 1.

    Returns:
        Shape (…).

    >>> best_separated_sum(np.array([1.0, 3.0, 2.5, 2.0]), 2, 2)
    array(5.)
    """
    n = values.shape[-1]
    if values.ndim == 1 and not (values[1:] > values[:-1]).any():
        # The m-th pick lies at mb or later, so the earliest picks are the largest.
        return np.asarray(values[::min_separation][:max_participations].sum())
    # best[…, b + i] is F_m(i). Floats ≥ 0 are ordered like their bits, and integers are compared in a quarter
    # of the time.
    best, taken = np.zeros((*values.shape[:-1], n + min_separation)), np.empty(values.shape)
    later, bits = best[..., min_separation:].view(np.int64), taken.view(np.int64)
    for _ in range(min(max_participations, -(-n // min_separation))):
        np.add(values, best[..., :n], out=taken)
        np.maximum.accumulate(bits, axis=-1, out=later)
    return best[..., -1]


def row_bound(gram: Array, k: int, b: int) -> float:
    """max_π Σ_{i∈π} w_i ≥ max_π Σ_{i,j∈π} W_ij with w_i = max_{π∋i} Σ_{j∈π} W_ij, by dynamic programs.

    Args:
        gram: W ≥ 0, shape (n, n).
        k: most rounds.
        b: least distance.

    References:
        Choquette-Choo et al. (2023), Theorem 2.
    """
    return float(best_separated_sum(row_weights(gram, k, b), k, b))


def row_weights(gram: Array, k: int, b: int) -> Array:
    """w_i = max_{π∋i} Σ_{j∈π} W_ij, or a little more, shape (n,); the arguments are those of `row_bound`."""
    n = len(gram)
    weights = np.empty(n)
    step = max(1, _CHUNK_ENTRIES // (n + b))
    for start in range(0, n, step):
        rows = gram[start : start + step].copy()
        for i, row in enumerate(rows, start):
            # Rounds closer than b to i cannot join it; those on its two sides are then 2b apart.
            row[max(0, i - b + 1) : i + b] = 0.0
        diagonal = gram.diagonal()[start : start + step]
        weights[start : start + step] = diagonal + best_separated_sum(rows, k - 1, b)
    return weights


def comb_sum(column: Array, max_participations: int, min_separation: int) -> Array:
    """Σ_{l<k} of the column shifted down by l·b: the sum of the earliest columns of LTT(column), shape (n,).

    >>> comb_sum(np.array([4.0, 2.0, 1.0, 0.5, 0.25]), 2, 2)
    array([4.  , 2.  , 5.  , 2.5 , 1.25])
    """
    n, b = column.size, min_separation
    blocks = -(-n // b)
    sums = np.cumsum(padded(column, blocks * b).reshape(blocks, b), axis=0)
    if max_participations < blocks:
        window = sums.copy()
        window[max_participations:] -= sums[:-max_participations]
        sums = window
    return sums.reshape(-1)[:n]


def comb_sum_adjoint(row: Array, max_participations: int, min_separation: int) -> Array:
    """The transpose of `comb_sum`: Σ_{l<k} of the vector shifted up by l·b."""
    return comb_sum(row[::-1], max_participations, min_separation)[::-1]


def count_patterns(rounds: int, max_participations: int, min_separation: int) -> int:
    """How many non-empty patterns there are: Σ_{m ≤ k} binom(n − (m−1)(b−1), m).

    >>> count_patterns(4, 2, 2)
    7
    """
    sizes = range(1, max_participations + 1)
    return sum(comb(max(0, rounds - (m - 1) * (min_separation - 1)), m) for m in sizes)


def pattern_layers(rounds: int, max_participations: int, min_separation: int) -> Iterator[NDArray[np.int64]]:
    """All patterns of one size after the other, each layer of shape (patterns, size), entries increasing.

    >>> [layer.tolist() for layer in pattern_layers(3, 2, 2)]
    [[[0], [1], [2]], [[0, 2]]]
    """
    layer = np.arange(rounds, dtype=np.int64)[:, None]
    for size in range(1, max_participations + 1):
        if size > 1:
            parents, last = _continued(layer, rounds, min_separation)
            layer = np.concatenate([layer[parents], last[:, None]], axis=1)
        if not len(layer):
            return
        yield layer


def heaviest_pattern(
    gram: Array, max_participations: int, min_separation: int
) -> tuple[float, NDArray[np.int64]]:
    """max_π Σ_{i,j∈π} W_ij over every pattern, each sum made from that of the pattern without its last round.

    Args:
        gram: W, symmetric, shape (n, n).
        max_participations: k.
        min_separation: b.

    Returns:
        The sum and the first pattern that has it.

    >>> heaviest_pattern(np.array([[1.0, 0.0, 0.9], [0.0, 2.0, 0.0], [0.9, 0.0, 1.0]]), 2, 2)
    (3.8, array([0, 2]))
    """
    n, own = len(gram), gram.diagonal()
    layer, sums = np.arange(n, dtype=np.int64)[:, None], own
    best = float(sums.max()), layer[sums.argmax()]
    for _ in range(1, max_participations):
        parents, last = _continued(layer, n, min_separation)
        if not last.size:
            break
        layer, sums = layer[parents], sums[parents] + own[last]
        for earlier in layer.T:
            sums += 2.0 * gram[earlier, last]
        layer = np.concatenate([layer, last[:, None]], axis=1)
        at = int(sums.argmax())
        if sums[at] > best[0]:
            best = float(sums[at]), layer[at]
    return best


def _continued(
    layer: NDArray[np.int64], rounds: int, min_separation: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of every pattern with one more round: which pattern it continues, and that round."""
    choices = np.maximum(rounds - layer[:, -1] - min_separation, 0)
    parents = np.repeat(np.arange(len(layer)), choices)
    within = np.arange(choices.sum()) - np.repeat(np.cumsum(choices) - choices, choices)
    return parents, layer[parents, -1] + min_separation + within
