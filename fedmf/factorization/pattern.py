"""Sensitivity of recorded participation patterns: what the ledger's users actually did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.base import Factorization

__all__ = ["pattern_sensitivities", "pattern_sensitivity"]

_CHUNK_PAIRS = 2_000_000


def pattern_sensitivity(
    factorization: Factorization, pattern: Sequence[int], released_rounds: int | None = None
) -> float:
    """How far one user with this recorded pattern of rounds can move the released outputs, for clip norm 1.

    sqrt(Σ_{i,j∈π} |[CᵀC]_{ij}|), with C cut to the rows that were released. Where those Gram entries are
    non-negative this is the norm of the sum of the columns and exact; otherwise contributions of varying
    direction could exceed that norm, and the absolute values make the result a sound upper bound.

    Args:
        factorization: C.
        pattern: distinct 0-based rounds, in any order; empty for a user who never took part.
        released_rounds: T ≤ n, how many rounds were released; all of them by default.

    Raises:
        ValueError: a round is repeated or lies outside 0 … T−1, or T outside 1 … n.

    >>> from fedmf.factorization import Toeplitz
    >>> pattern_sensitivity(Toeplitz([1.0, 0.75], 4), [0])
    1.25
    >>> pattern_sensitivity(Toeplitz([1.0, 0.75], 4), [0], released_rounds=1)
    1.0
    """
    return float(pattern_sensitivities(factorization, [pattern], released_rounds)[0])


def pattern_sensitivities(
    factorization: Factorization,
    patterns: Sequence[Sequence[int] | NDArray[np.integer]],
    released_rounds: int | None = None,
) -> NDArray[np.float64]:
    """`pattern_sensitivity` of many users at once, shape (len(patterns),).

    Gram entries are computed diagonal by diagonal, for the gaps that occur; memory stays O(n + users).

    >>> from fedmf.factorization import Toeplitz
    >>> pattern_sensitivities(Toeplitz([1.0, 0.75], 4), [[], [0], [3]])
    array([0.  , 1.25, 1.  ])
    """
    C = factorization if released_rounds is None else factorization.leading(released_rounds)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for user, pattern in enumerate(patterns):
        groups[len(pattern)].append(user)
    squares = np.zeros(len(patterns))
    for size, users in groups.items():
        step = max(1, _CHUNK_PAIRS // max(1, size * size))
        for start in range(0, len(users) if size else 0, step):
            members = users[start : start + step]
            rows = _checked([patterns[user] for user in members], C.rounds)
            distinct, member_of = np.unique(rows, axis=0, return_inverse=True)
            squares[members] = _gram_sums(C, distinct)[member_of.reshape(-1)]
    return np.sqrt(squares)


def _checked(patterns: Sequence[Sequence[int] | NDArray[np.integer]], rounds: int) -> NDArray[np.int64]:
    """Patterns of one size as sorted rows."""
    rows = np.asarray(patterns)
    if not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"pi (pattern) must hold integer rounds; got {rows.dtype}.")
    rows = np.sort(rows.astype(np.int64), axis=1)
    outside = rows[(rows < 0) | (rows >= rounds)]
    if outside.size:
        raise ValueError(
            f"pi (pattern) must hold 0-based rounds below T={rounds}; got {outside[0]}. "
            "A round that was never released cannot be part of a recorded history."
        )
    repeated = rows[:, 1:][rows[:, 1:] == rows[:, :-1]]
    if repeated.size:
        raise ValueError(f"pi (pattern) must not repeat a round; got {repeated[0]} twice.")
    return rows


def _gram_sums(C: Factorization, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Σ_{i,j∈π} |[CᵀC]_{ij}| for each row π, sorted by gap so that every diagonal is computed once."""
    members, size = rows.shape
    first, second = np.triu_indices(size)
    starts, gaps = rows[:, first].reshape(-1), (rows[:, second] - rows[:, first]).reshape(-1)
    order = np.argsort(gaps, kind="stable")
    entries = np.empty(gaps.size)
    sorted_gaps = gaps[order]
    edges = np.flatnonzero(np.diff(sorted_gaps, prepend=-1))
    for begin, end in zip(edges, [*edges[1:], gaps.size], strict=True):
        at = order[begin:end]
        entries[at] = np.abs(C.gram_diagonal(int(sorted_gaps[begin]))[starts[at]])
    weight = np.where(first == second, 1.0, 2.0)
    return entries.reshape(members, -1) @ weight
