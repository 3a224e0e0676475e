"""Banded Toeplitz strategy matrices optimised with a column scale: normalised, or for learning rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import Descent
from fedmf.factorization.matrices import Factorization, Toeplitz, normalized
from fedmf.factorization.mechanisms.banded_toeplitz_optimizer import banded_toeplitz
from fedmf.factorization.objectives import (
    LARGEST_RATED,
    RMSE,
    Objective,
    ScaledObjective,
    ToeplitzObjective,
)
from fedmf.participation import Participation
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload, prefix

_WIDEST_CURVED = 1024
_DESCENT = Descent(tolerance=1e-11, gradient=1e-9, evaluations=300, memory=30)


def normalized_banded_toeplitz(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> Factorization:
    """Minimise the objective over LTT(c)·D⁻¹ with D the column norms: c is optimised *as normalised*.

    Normalising the optimum of `banded_toeplitz` is near the best for large n/p and up to 0.5 % off where the
    last p columns matter. The joint optimisation starts there. It is done for p ≤ b and n ≤ 4096; otherwise
    the start is returned.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A with n rounds; prefix sums by default.
        objective: which error.

    Raises:
        ValueError: p is out of range.

    Guarantees:
        For p ≤ b never worse than the normalised optimum of `banded_toeplitz`.

    References:
        McKenna (2024), Appendix K.

    >>> normalized_banded_toeplitz(2, Participation(8, 1, 8)).gram_diagonal(0).round(12)
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    queries = prefix(participation.rounds) if workload is None else workload
    start = rated_banded_toeplitz(bands, participation, queries, objective)
    if bands == 1 or bands > participation.min_separation or participation.rounds > LARGEST_RATED:
        return normalized(start)
    return normalized(_scaled(start, participation, queries, objective, normalize=True))


def rated_banded_toeplitz(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> Toeplitz:
    """`banded_toeplitz` for a workload that may have column weights (learning rates).

    With column weights c is optimised for them if p ≤ b and n ≤ 4096, starting from the optimum without
    them; otherwise that start is returned.

    Raises:
        ValueError: p is out of range.
    """
    queries = prefix(participation.rounds) if workload is None else workload
    if queries.column_weights is None:
        return banded_toeplitz(bands, participation, workload=workload, objective=objective)
    start = banded_toeplitz(
        bands, participation, workload=replace(queries, column_weights=None), objective=objective
    )
    if bands == 1 or bands > participation.min_separation or participation.rounds > LARGEST_RATED:
        return start
    return _scaled(start, participation, queries, objective, normalize=False)


def _scaled(
    start: Toeplitz,
    participation: Participation,
    workload: ToeplitzWorkload,
    objective: Objective,
    normalize: bool,
) -> Toeplitz:
    """C that is best with its scale; no worse than the start."""
    queries, bands = objective.queries(workload), start.coefficients.size
    means = [ScaledObjective(bands, participation, queries, normalize, order) for order in objective.orders]
    best = start.coefficients
    for mean in means:
        best = _minimize(best, mean, participation)
    return Toeplitz(best, start.rounds) if means[-1](best)[0] <= means[-1](start.coefficients)[0] else start


def _minimize(initial: Vector, objective: ScaledObjective, participation: Participation) -> Vector:
    """L-BFGS in coordinates y with x = x_0 + L⁻ᵀy, where LLᵀ is the curvature for unscaled prefix sums."""
    back = _coordinates(initial, participation)

    def in_coordinates(y: Vector) -> tuple[float, Vector]:
        value, slope = objective(np.concatenate([[1.0], initial[1:] + back @ y]))
        return value, back.T @ slope[1:]

    # Steps far outside are unstable and overflow; near the start the curvature hardly changes.
    zero = np.zeros(initial.size - 1)
    best = _DESCENT.least(in_coordinates, zero, zero - 1.0, zero + 1.0)
    if not in_coordinates(best)[0] < in_coordinates(zero)[0]:
        return initial
    return np.concatenate([[1.0], initial[1:] + back @ best])


def _coordinates(c: Vector, participation: Participation) -> NDArray[np.float64]:
    """L⁻ᵀ, or the identity where the curvature is too large to factor or not positive."""
    p = c.size
    if p > _WIDEST_CURVED:
        return np.eye(p - 1)
    second = ToeplitzObjective(p, participation, prefix(participation.rounds)).hessian(c)[1:, 1:]
    try:
        return np.asarray(np.linalg.inv(np.linalg.cholesky(second)).T, dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.eye(p - 1)
