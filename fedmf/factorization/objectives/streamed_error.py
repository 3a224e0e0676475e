"""The error of any linear queries, from two streaming operators: rows of C⁻¹, and the queries' own rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.matrices import Factorization
from fedmf.typing import Array

#: Makes a fresh operator: called with x_t, shape (m,), round by round, it returns [Ax]_t.
StreamingQueries = Callable[[], Callable[[Array], Array]]
_WIDTH = 256


def streamed_query_variances(
    factorization: Factorization, queries: StreamingQueries, width: int = _WIDTH
) -> NDArray[np.float64]:
    """‖(A C⁻¹)_{t,:}‖² for queries A that need not be Toeplitz, shape (n,).

    [A C⁻¹]_{t,:} is what the streaming rule of A makes of the rows of C⁻¹, and those are what C's streaming
    rule makes of unit vectors. Columns are taken in groups of m, so that n·m numbers are kept instead of n²;
    the time is n² times what one round of both rules costs.

    Args:
        factorization: C.
        queries: A, lower triangular, as a rule; it is started anew for each group of columns.
        width: m ≥ 1, columns at a time.

    Raises:
        ValueError: m is not positive, or the rule changes the shape of a row.

    References:
        McKenna (2024), Algorithm 5 and Definition D.1.

    >>> from fedmf.factorization import identity
    >>> def sums():
    ...     total = np.zeros(1)
    ...     def add(row):
    ...         nonlocal total
    ...         total = total + row
    ...         return total
    ...     return add
    >>> streamed_query_variances(identity(3), sums)
    array([1., 2., 3.])
    """
    if width < 1:
        raise ValueError(f"m (width) must be at least 1; got {width}. It is the number of columns at a time.")
    n = factorization.rounds
    rule, variances = factorization.recurrence(), np.zeros(n)
    for start in range(0, n, width):
        columns = np.arange(start, min(start + width, n))
        # Columns before round `start` are zero there, but the rules may depend on t.
        unit = np.zeros((n, columns.size))
        unit[columns, columns - start] = 1.0
        query = queries()
        for t, row in enumerate(rule.apply(unit)):
            answer = np.asarray(query(row))
            if answer.shape != row.shape:
                raise ValueError(
                    f"A (queries) must return a row of shape {row.shape} in round {t}; got {answer.shape}."
                )
            variances[t] += float(answer @ answer)
    return variances
