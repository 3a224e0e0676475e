"""The error of a matrix mechanism: RMSE and MaxSE over the released queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import multiply, product, reciprocal
from fedmf.factorization.matrices import Factorization
from fedmf.factorization.objectives.objective import RMSE, Objective, PowerMean
from fedmf.factorization.objectives.rated_error import LARGEST_RATED, RatedError
from fedmf.factorization.sensitivity import Sensitivity
from fedmf.typing import Array, Vector
from fedmf.workload import ToeplitzWorkload

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


_OVERFLOW, _OVERFLOWING_INVERSE = 1e200, 1e100


class StrategyError:
    """Σ_t S_t w_t² with w = LTT(c)⁻¹a and S_t = Σ_{i ≥ t} ρ_i, for A = diag(r)·LTT(a).

    ρ = r² gives ‖A C⁻¹‖_F²; of another order it is `PowerMean` of the variances v_t = Σ_{s ≤ t} w_s². With
    learning rates, A = diag(r)·LTT(a)·diag(η), it is `RatedError`, which takes O(n²).

    Args:
        workload: A; with column weights of at most 4096 rounds.
        order: q ≥ 1 of the power mean of r_t² v_t.

    Raises:
        ValueError: A has column weights and n > 4096.

    >>> from fedmf.workload import prefix
    >>> StrategyError(prefix(3))(np.array([1.0, 0.5]))
    (4.0625, array([-7.125, -2.   ]))
    """

    def __init__(self, workload: ToeplitzWorkload, order: float = 1.0) -> None:
        rates = workload.column_weights
        if rates is not None and workload.rounds > LARGEST_RATED:
            raise ValueError(
                f"n (rounds) must be at most {LARGEST_RATED} to optimise for column weights; got "
                f"{workload.rounds}. Optimise without them: errors include them for every C."
            )
        self._rates, self._rated = rates, None if rates is None else RatedError(workload, order)
        self._a, self._power = workload.coefficients, PowerMean.of(workload, order)
        self._prefix = bool((self._a == 1.0).all())

    def __call__(self, c: Vector, inverse: Vector | None = None) -> tuple[float, Vector]:
        """E and its gradient, shape of c: ∂E/∂c_j = −2·Σ_t v_t w_{t−j} with v = LTT(c)⁻ᵀ(S w).

        (inf, 0) where w overflows.

        Args:
            c: the first column of C.
            inverse: that of C⁻¹, shape (n,), where it is known.
        """
        n = self._a.size
        inverse = reciprocal(c, n) if inverse is None else inverse
        if self._rated is not None and self._rates is not None:
            return self._with_rates(self._rated, self._rates, inverse, c.size)
        with np.errstate(over="ignore", invalid="ignore"):
            w = np.cumsum(inverse) if self._prefix else multiply(self._a, inverse, n)
            rows = self._power(np.cumsum(w * w))
            weighted = np.cumsum(rows[::-1])[::-1] * w
            error = float(weighted @ w)
        if not error < _OVERFLOW:
            return float("inf"), np.zeros_like(c)
        later = weighted[::-1]
        if self._prefix:  # w is h/(1 − x)
            slope = np.cumsum(product((inverse, inverse, later), n))
        else:
            slope = product((inverse, w, later), n)
        return error, -2.0 * slope[::-1][: c.size]

    @staticmethod
    def _with_rates(rated: RatedError, rates: Vector, inverse: Vector, terms: int) -> tuple[float, Vector]:
        """From h·c = 1 follows dh = −h·h·dc as power series; its adjoint carries the slope from h to c."""
        if not (np.abs(inverse) < _OVERFLOWING_INVERSE).all():
            return float("inf"), np.zeros(terms)
        n = inverse.size
        error, _, slope = rated(inverse, rates)
        adjoint = multiply(inverse, slope[::-1], n)[::-1]
        return error, -multiply(inverse, adjoint[::-1], n)[::-1][:terms]


@dataclass(frozen=True)
class Errors:
    """Errors of the released queries per coordinate, for clip norm ζ = 1.

    Args:
        rmse: (1/√n)·‖A C⁻¹‖_F · noise standard deviation.
        max_se: max_t ‖(A C⁻¹)_{t,:}‖₂ · noise standard deviation.
        objective: the error that was asked for, one of the two or another (`Objective`).
    """

    rmse: float
    max_se: float
    objective: float


def query_variances(factorization: Factorization, workload: ToeplitzWorkload) -> NDArray[np.float64]:
    """‖(A C⁻¹)_{t,:}‖², the variance of query t for unit noise z, shape (n,); all weights included.

    Args:
        factorization: C.
        workload: A = diag(r)·LTT(a)·diag(η), with at least as many rounds as C; its leading block is used.

    Raises:
        ValueError: the workload is shorter than the horizon, or it has column weights, C is stamped and n
            exceeds 4096.

    >>> from fedmf.factorization import identity
    >>> from fedmf.workload import prefix
    >>> query_variances(identity(3), prefix(3))
    array([1., 2., 3.])
    """
    n = factorization.rounds
    if workload.rounds < n:
        raise ValueError(f"A (workload) must have at least n={n} rounds; got {workload.rounds}.")
    queries = workload.leading(n)
    if queries.column_weights is None:
        variances = factorization.query_variances(queries.coefficients)
    else:
        # LTT(a)·diag(η)·C⁻¹ = LTT(a)·(C·diag(η)⁻¹)⁻¹: learning rates act like a column scale.
        scaled = factorization.columns_divided_by(queries.column_weights)
        variances = scaled.query_variances(queries.coefficients)
    return variances if queries.row_weights is None else queries.row_weights**2 * variances


def errors(
    factorization: Factorization,
    workload: ToeplitzWorkload,
    sensitivity: Sensitivity,
    noise_multiplier: float = 1.0,
    objective: Objective = RMSE,
) -> Errors:
    """RMSE, MaxSE and the objective with the noise standard deviation sens(C)·σ.

    Args:
        factorization: C.
        workload: A.
        sensitivity: of C under the participation in force, exact or a bound.
        noise_multiplier: σ > 0; 1 leaves the budget out. Multiply by 2 for replace-one adjacency.
        objective: which further error is wanted.

    Raises:
        ValueError: σ is not positive and finite, or the workload is shorter than the horizon.

    >>> from fedmf.factorization import identity, stated_sensitivity
    >>> from fedmf.participation import Participation
    >>> from fedmf.workload import prefix
    >>> errors(identity(4), prefix(4), stated_sensitivity(identity(4), Participation(4, 2, 2)))
    Errors(rmse=2.2360679774997..., max_se=2.8284271247461..., objective=2.2360679774997...)
    """
    if not 0 < noise_multiplier < float("inf"):
        raise ValueError(f"sigma (noise_multiplier) must be positive and finite; got {noise_multiplier}.")
    variances = query_variances(factorization, workload)
    deviation = sensitivity.value * noise_multiplier
    squares = (float(variances.mean()), float(variances.max()), objective.squared_error(variances))
    return Errors(*(deviation * square**0.5 for square in squares))
