"""Sensitivity of recorded participation patterns: what the ledger's users actually did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.factorization import Factorization

_CHUNK_PAIRS = 2_000_000
_TABLE_BYTES = 1 << 27


def pattern_sensitivity(
    factorization: Factorization, pattern: Sequence[int], released_rounds: int | None = None
) -> float:
    """How far one user with this recorded pattern of rounds can move the released outputs, for clip
    norm 1.

    sqrt(Σ_{i,j∈π} |[CᵀC]_{ij}|), with C cut to the rows that were released. Where those Gram
    entries are non-negative this is the norm of the sum of the columns and exact; otherwise
    contributions of varying direction could exceed that norm, and the absolute values make the
    result a sound upper bound.

    Args:
        factorization: C.
        pattern: distinct 0-based rounds, in any order; empty for a user who never took part.
        released_rounds: T ≤ n, how many rounds were released; all of them by default.

    Raises:
        ValueError: a round is repeated or lies outside 0 … T−1, or T outside 1 … n.

    >>> from fedmf.matrices.toeplitz import Toeplitz
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

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> pattern_sensitivities(Toeplitz([1.0, 0.75], 4), [[], [0], [3]])
    array([0.  , 1.25, 1.  ])
    """
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for user, pattern in enumerate(patterns):
        groups[len(pattern)].append(user)
    sensitivities = np.zeros(len(patterns))
    for users in groups.values():
        rows = np.asarray([patterns[user] for user in users])
        sensitivities[users] = equal_length_sensitivities(factorization, rows, released_rounds)
    return sensitivities


def equal_length_sensitivities(
    factorization: Factorization, rows: NDArray[np.integer], released_rounds: int | None = None
) -> NDArray[np.float64]:
    """`pattern_sensitivity` of many patterns with the same number of rounds; made for millions of
    them.

    Args:
        factorization: C.
        rows: one pattern a row, shape (patterns, k).
        released_rounds: T ≤ n; all by default.

    Returns:
        Shape (patterns,).

    Raises:
        ValueError: as `pattern_sensitivity`.
    """
    if rows.ndim != 2 or rows.size == 0:
        return np.zeros(len(rows))
    first, second = np.triu_indices(rows.shape[1])
    often = np.where(first == second, 1.0, 2.0)  # how often each pair counts in πᵀGπ
    return np.sqrt(_pair_sums(factorization, rows, often[:, None], released_rounds)[:, 0])


def equal_length_row_sums(
    factorization: Factorization, rows: NDArray[np.integer], released_rounds: int | None = None
) -> NDArray[np.float64]:
    """r_i = Σ_{j∈π} |[CᵀC]_{ij}| of every round i of many patterns with the same number of rounds.

    Args:
        factorization: C.
        rows: one pattern a row, shape (patterns, k).
        released_rounds: T ≤ n; all by default.

    Returns:
        Shape (patterns, k); column i belongs to the i-th round of the pattern in ascending order.

    Raises:
        ValueError: as `pattern_sensitivity`.

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> equal_length_row_sums(Toeplitz([1.0, 0.5], 3), np.array([[0, 1], [2, 0]]))
    array([[1.75, 1.75],
           [1.25, 1.  ]])
    """
    if rows.ndim != 2 or rows.size == 0:
        return np.zeros(rows.shape)
    first, second = np.triu_indices(rows.shape[1])
    member = np.arange(rows.shape[1])
    ends = (first[:, None] == member) | (second[:, None] == member)
    return _pair_sums(factorization, rows, ends.astype(np.float64), released_rounds)


def _pair_sums(
    factorization: Factorization,
    rows: NDArray[np.integer],
    weights: NDArray[np.float64],
    released_rounds: int | None,
) -> NDArray[np.float64]:
    """Σ over pairs i ≤ j of a pattern of |[CᵀC]_{ij}|·weights, for weights of shape (pairs,
    columns).
    """
    C = factorization if released_rounds is None else factorization.leading(released_rounds)
    rows = _checked(rows, C.rounds)
    step = max(1, _CHUNK_PAIRS // rows.shape[1] ** 2)
    chunks = [slice(start, start + step) for start in range(0, len(rows), step)]
    needed = np.zeros(C.rounds, dtype=np.int64)
    for chunk in chunks:
        _, gaps = _pairs(rows[chunk])
        needed += np.bincount(gaps.reshape(-1), minlength=C.rounds)
    sums = np.zeros((len(rows), weights.shape[1]))
    for gap_batch, table in _gram_tables(C, np.flatnonzero(needed)):
        # Gaps of another batch meet the last line of the table, which is zero.
        place = np.full(C.rounds, gap_batch.size)
        place[gap_batch] = np.arange(gap_batch.size)
        for chunk in chunks:
            starts, gaps = _pairs(rows[chunk])
            sums[chunk] += table[place[gaps], starts] @ weights
    return sums


def _pairs(rows: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Start i and gap j − i of all pairs i ≤ j of each pattern."""
    first, second = np.triu_indices(rows.shape[1])
    return rows[:, first], rows[:, second] - rows[:, first]


def _gram_tables(
    C: Factorization, gaps: NDArray[np.integer]
) -> Iterator[tuple[NDArray[np.integer], NDArray[np.float64]]]:
    """|[CᵀC]_{i,i+g}| for batches of gaps g: a line per gap and a last line of zeros."""
    most = max(1, _TABLE_BYTES // (8 * C.rounds))
    for begin in range(0, gaps.size, most):
        batch = gaps[begin : begin + most]
        table = np.zeros((batch.size + 1, C.rounds))
        for line, gap in enumerate(batch.tolist()):
            table[line, : C.rounds - gap] = np.abs(C.gram_diagonal(gap))
        yield batch, table


def _checked(rows: NDArray[np.integer], rounds: int) -> NDArray[np.integer]:
    """Patterns of one size with their rounds in ascending order."""
    if not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"pi (pattern) must hold integer rounds; got {rows.dtype}.")
    rows = np.sort(rows, axis=1)
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
