"""The error of a matrix mechanism: RMSE and MaxSE over the released queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.matrices import Factorization
from fedmf.factorization.objectives.objective import RMSE, Objective
from fedmf.factorization.sensitivity import Sensitivity
from fedmf.workload import ToeplitzWorkload


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
