"""The error by which parameters are searched: as stated in the end, but summed over what has not settled."""

from __future__ import annotations

import math

import numpy as np

from fedmf.factorization.algebra import multiply, padded
from fedmf.factorization.matrices import Factorization
from fedmf.factorization.objectives.error import query_variances
from fedmf.factorization.objectives.objective import RMSE, Objective
from fedmf.factorization.sensitivity import (
    comb_sum,
    earliest_pattern,
    monotone_envelope,
    quick_upper_bound,
)
from fedmf.participation import Participation
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload

# Up to this many products per round, lags are summed one by one.
_FEW_LAGS = 4


class QuickError:
    """The objective times the cheapest sound bound on the sensitivity, as a function of C.

    For Toeplitz C without learning rates in A a mean is Σ_t S_t w_t² with w = a·h, S_t = Σ_{i ≥ t} r_i² (the
    weights of the objective included; where A has no weights, the largest error is the last), and the norm
    is that of the sum of the earliest columns of the monotone envelope ĉ of c (of c where it settles within
    b). Where a is constant and h has settled at 0 after m terms, w is constant; where c has, its sums are
    over m terms. So the time depends on the bands rather than on n. Any other C is judged by
    `query_variances` and `quick_upper_bound`, which give the same number to about 1e-12.

    Args:
        participation: (n, k, b).
        workload: A of n rounds.
        objective: which error.

    >>> from fedmf.factorization import bisr
    >>> from fedmf.workload import prefix
    >>> round(QuickError(Participation(10**6, 10, 10**5), prefix(10**6))(bisr(64, 10**6)), 3)
    254.124
    """

    def __init__(
        self, participation: Participation, workload: ToeplitzWorkload, objective: Objective = RMSE
    ) -> None:
        n, k, b = participation.rounds, participation.max_participations, participation.min_separation
        self._participation, self._workload, self._objective = participation, workload, objective
        toeplitz = objective.for_toeplitz(workload)
        self._settles = workload.column_weights is None and toeplitz.kind != "max"
        queries = toeplitz.queries(workload)
        rows = np.ones(n) if queries.row_weights is None else queries.row_weights**2
        self._counted = np.cumsum(rows[::-1])[::-1]
        self._rest = np.append(np.cumsum(self._counted[::-1])[::-1], 0.0)
        self._prefix = bool((workload.coefficients == 1.0).all())
        self._reached = np.minimum(k, -(-(n - np.arange(n)) // b)).astype(np.float64)

    def __call__(self, strategy: Factorization, limit: float = math.inf) -> float:
        """The error; σ and the budget left out.

        Args:
            strategy: C.
            limit: an error above it need not be told exactly. Where the bound on the sensitivity takes a
                search, the error of the user of the earliest pattern is returned if it is above.

        Raises:
            NotRepresentable: C or its inverse overflows.
        """
        pair = strategy.settled_pair() if self._settles else None
        if pair is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                error = self._variance(pair[1]) * self._square(pair[0])
            return math.sqrt(error / self._participation.rounds) if error < math.inf else math.inf
        deviation = math.sqrt(self._objective.squared_error(query_variances(strategy, self._workload)))
        if limit < math.inf:
            k, b = self._participation.max_participations, self._participation.min_separation
            least = deviation * float(np.linalg.norm(strategy.column_sum(earliest_pattern(k, b))))
            if least > limit:
                return least
        return deviation * quick_upper_bound(strategy, self._participation)

    def _variance(self, h: Vector) -> float:
        """Σ_t S_t w_t²."""
        n = self._participation.rounds
        if not self._prefix:
            w = multiply(self._workload.coefficients, h, n)
            return float((self._counted * w) @ w)
        w = np.cumsum(h)
        settled = float(w[-1] * w[-1] * self._rest[w.size])
        return float((self._counted[: w.size] * w) @ w) + settled

    def _square(self, c: Vector) -> float:
        """The squared bound on the sensitivity: Σ_h (2 − [h = 0])·Σ_l (N_l − h)⁺ ĉ_l ĉ_{l+hb}."""
        n, k, b = (
            self._participation.rounds,
            self._participation.max_participations,
            self._participation.min_separation,
        )
        if k == 1 or c.size <= b:
            return float((self._reached[: c.size] * c) @ c)
        envelope = monotone_envelope(np.abs(c))
        lags = min(k, -(-c.size // b))
        if lags * c.size > _FEW_LAGS * n:
            total = comb_sum(padded(envelope, n), k, b)
            return float(total @ total)
        square = 0.0
        for lag in range(lags):
            length = c.size - lag * b
            counts = np.maximum(self._reached[:length] - lag, 0.0) * (1.0 if lag == 0 else 2.0)
            square += float((counts * envelope[:length]) @ envelope[lag * b :])
        return square
