"""Sensitivity to users by the rounds that a record says they joined, for their spent ε."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.queries import PairQuery, SumQuery
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.joint_sensitivity import UserRange

_CHUNK_PAIRS = 2_000_000
_TABLE_BYTES = 1 << 27


def recorded_sensitivities(
    query: SumQuery, rows: NDArray[np.integer], released_rounds: int | None = None
) -> NDArray[np.float64]:
    """The sensitivity of a run to recorded patterns with the same number of rounds.

    Args:
        query: of the run.
        rows: one pattern of 0-based rounds a row, shape (patterns, k).
        released_rounds: T ≤ n; all by default.

    Returns:
        Shape (patterns,), in the units of `SumQuery.stated`.

    Raises:
        ValueError: a round is repeated or lies outside 0 … T−1, or T outside 1 … n.

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> recorded_sensitivities(SumQuery(Toeplitz([1.0, 0.75], 4)), np.array([[0, 3], [0, 1]]))
    array([1.6007..., 2.1505...])
    """
    C = query.factorization
    if not isinstance(query, PairQuery):
        return equal_length_sensitivities(C, rows, released_rounds)
    C_2 = query.second.factorization
    weight, users = query.weight_and_range
    sensitivities = equal_length_joint_sensitivities(C, C_2, rows, weight, users, released_rounds)
    sensitivities /= query.distance_unit
    if query.feature_rounding:
        second = equal_length_sensitivities(C_2, rows, released_rounds)
        sensitivities += query.feature_rounding * second
    return sensitivities


def pattern_sensitivity(
    factorization: Factorization, pattern: Sequence[int], released_rounds: int | None = None
) -> float:
    """How far one user with this pattern can move the released outputs, for clip norm 1.

    It is sqrt(Σ_{i,j∈π} |[CᵀC]_{ij}|), with C cut to the rows that were released. Where those Gram
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
    rows = np.asarray([pattern])
    return float(equal_length_sensitivities(factorization, rows, released_rounds)[0])


def equal_length_sensitivities(
    factorization: Factorization, rows: NDArray[np.integer], released_rounds: int | None = None
) -> NDArray[np.float64]:
    """`pattern_sensitivity` of millions of patterns with the same number of rounds.

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


def equal_length_joint_sensitivities(
    first: Factorization,
    second: Factorization,
    rows: NDArray[np.integer],
    weight: float,
    users: UserRange,
    released_rounds: int | None = None,
) -> NDArray[np.float64]:
    """How far users with these patterns can move (C₁X, √λ·C₂(X•X)).

    The values are ζ·√(Σ_{i∈π} φ(r_{1,i}, r_{2,i})): exact under zero-out adjacency where both Gram
    matrices are non-negative on the pattern, and whatever the adjacency where the bound of
    `joint_sensitivity` is attained; a sound upper bound otherwise.

    Args:
        first: C₁.
        second: C₂.
        rows: one pattern of 0-based rounds a row, shape (patterns, k).
        weight: λ ≥ 0.
        users: ζ, the dimension class and the adjacency.
        released_rounds: T ≤ n, how many rounds were released; all by default.

    Returns:
        Shape (patterns,).

    Raises:
        ValueError: a round is repeated or lies outside 0 … T−1, or T outside 1 … n.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> users = UserRange(1.0, 2, "zero-out")
    >>> C = Toeplitz([1.0, 0.5], 4)
    >>> equal_length_joint_sensitivities(C, identity(4), np.array([[0], [3]]), 1.0, users)
    array([1.5       , 1.41421356])
    """
    if rows.ndim != 2 or rows.size == 0:
        return np.zeros(len(rows))
    r_1 = equal_length_row_sums(first, rows, released_rounds)
    r_2 = equal_length_row_sums(second, rows, released_rounds)
    square = users.reach(r_1, r_2, weight * users.norm_bound**2).sum(axis=1)
    return users.norm_bound * np.sqrt(square)


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
