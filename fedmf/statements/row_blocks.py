"""The sensitivity of some consecutive rows of a mechanism, such as those of a continued copy.

A user's contributions u_i, ‖u_i‖ ≤ 1, in the rounds i of a pattern π move the rows F of C by the
norm of Σ_{i∈π} C_{F,i} u_i, and its square is at most Σ_{i,j∈π} |G_ij| with G = C_FᵀC_F. Rounds
before the rows count as well: later rows of C depend on them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.sensitivity import (
    ROUNDING,
    best_separated_sum,
    count_patterns,
    heaviest_pattern,
    row_weights,
)
from fedmf.participation import Participation

#: How many patterns are enumerated at most.
_MOST_PATTERNS: Final = 200_000
#: How many entries of Gram matrices are gathered at once.
_CHUNK_PAIRS: Final = 2_000_000


def gram_of_rows(C: Factorization, first: int, stop: int) -> Array:
    """|C_FᵀC_F| of the rows F = first … stop − 1, shape (n, n).

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> gram_of_rows(Toeplitz([1.0, -0.5], 3), 2, 3)
    array([[0.  , 0.  , 0.  ],
           [0.  , 0.25, 0.5 ],
           [0.  , 0.5 , 1.  ]])
    """
    rows = C.materialize()[first:stop]
    return np.abs(rows.T @ rows)


def largest_movement(gram: Array, participation: Participation) -> float:
    """At least the movement of these rows by any user within (n, k, b), for clip norm 1.

    Every pattern is enumerated where there are few; otherwise it is the bound by rows of the Gram
    matrix.

    Args:
        gram: of the rows, as `gram_of_rows` gives it.
        participation: (n, k, b).

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> gram = gram_of_rows(Toeplitz([1.0, 0.5], 3), 2, 3)
    >>> round(largest_movement(gram, Participation(3, 2, 1)), 9)
    1.5
    """
    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    if count_patterns(n, k, b) <= _MOST_PATTERNS:
        square, _ = heaviest_pattern(gram, k, b)
    else:
        square = float(best_separated_sum(row_weights(gram, k, b)[0], k, b))
    return square**0.5 * (1 + ROUNDING)


def recorded_movements(gram: Array, patterns: NDArray[np.integer]) -> Vector:
    """At least the movement of these rows by users with recorded patterns of equally many rounds.

    Args:
        gram: of the rows, as `gram_of_rows` gives it.
        patterns: distinct 0-based rounds of one user in each row, shape (patterns, k).

    Returns:
        Shape (patterns,).

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> gram = gram_of_rows(Toeplitz([1.0, 0.5], 3), 2, 3)
    >>> recorded_movements(gram, np.array([[0, 1], [1, 2]])).round(9)
    array([0.5, 1.5])
    """
    squares = np.zeros(len(patterns))
    step = max(1, _CHUNK_PAIRS // max(1, patterns.shape[1]) ** 2)
    for start in range(0, len(patterns), step):
        chunk = patterns[start : start + step]
        pairs = gram[chunk[:, :, None], chunk[:, None, :]]
        squares[start : start + step] = pairs.sum(axis=(1, 2))
    return np.sqrt(squares) * (1 + ROUNDING)
