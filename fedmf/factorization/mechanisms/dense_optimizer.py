"""Dense strategy matrices for multi-epoch participation: the optimum for k = 1, a local one for k > 1."""

from __future__ import annotations

import numpy as np

from fedmf.factorization.matrices import Dense, lower_factor
from fedmf.factorization.mechanisms.banded_optimizer import banded, counting_all_rows
from fedmf.factorization.mechanisms.dense_refinement import refined
from fedmf.factorization.objectives import errors
from fedmf.factorization.sensitivity import stated_sensitivity
from fedmf.participation import Participation
from fedmf.typing import Array, Vector
from fedmf.workload import ToeplitzWorkload, prefix

__all__ = ["dense", "single_participation_gram"]

_LARGEST_OPTIMIZED = 2048
_MOST_ITERATIONS = 200
_GAP = 1e-8


def dense(participation: Participation, workload: ToeplitzWorkload | None = None) -> Dense:
    """Minimise the RMSE over all C.

    The error depends on X = CᵀC alone, as tr(AᵀA X⁻¹), and the constraint max_π Σ_{i,j∈π} |X_ij| ≤ 1 is
    convex in X. For k = 1 it says X_ii ≤ 1 and a fixed point gives the optimum. For k > 1 the search starts
    from the optimal b-banded C with falling column norms, on which separated columns are orthogonal, and lets
    them overlap where that pays and patterns are few (`refined`).

    Args:
        participation: (n, k, b), n ≤ 2048.
        workload: A; prefix sums by default. Row weights below 1e-4 of the largest count as that.

    Returns:
        C, lower triangular, with its largest column norm scaled to 1.

    Raises:
        ValueError: n > 2048.

    Guarantees:
        For k = 1 the squared error is within 1e-6 (relative) of the optimum. For k > 1 the error with the
        stated sensitivity is no larger than that of the b-banded C. `certified_dense_bound` says how far
        from the optimum that is at most.

    References:
        Denisov et al. (2022); Choquette-Choo et al. (2023), "Multi-Epoch Matrix Factorization".

    >>> dense(Participation(2, 1, 2)).matrix.round(4)
    array([[0.9242, 0.    ],
           [0.382 , 1.    ]])
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    if n > _LARGEST_OPTIMIZED:
        raise ValueError(
            f"n (rounds) must be at most {_LARGEST_OPTIMIZED} for dense; got {n}. "
            "Use banded-toeplitz, banded-inverse or blt."
        )
    queries = counting_all_rows(prefix(n) if workload is None else workload)
    if k == 1:
        A = queries.materialize()
        return Dense(lower_factor(single_participation_gram(A.T @ A)))
    start = banded(min(b, n), participation, queries).materialize()
    other = refined(start, queries, participation)
    found = [Dense(start)] if other is None else [Dense(start), Dense(other)]
    best = min(found, key=lambda C: errors(C, queries, stated_sensitivity(C, participation)).rmse)
    return Dense(best.matrix / np.sqrt(best.gram_diagonal(0).max()))


def single_participation_gram(square: Array) -> Array:
    """The X with X_ii = 1 that minimises tr(W X⁻¹), for W = AᵀA.

    With multipliers v of X_ii ≤ 1 and R = (V^{½} W V^{½})^{½}, the minimiser of the Lagrangian is
    X = V^{−½} R V^{−½} and the dual value is 2·tr R − Σv. At the optimum v = diag R =: r. The fixed-point
    iteration v ← r converges linearly; v ← r³/v² takes a third of its steps. It ends when the value of X
    rescaled to a unit diagonal is within 1e-8 (relative) of the dual one, or after 200 steps.

    Args:
        square: W, symmetric and positive definite, shape (n, n).

    References:
        Denisov et al. (2022), "Improved Differential Privacy for SGD via Optimal Private Linear Operators on
        Adaptive Streams", Theorem 3.2.

    >>> single_participation_gram(np.diag([4.0, 1.0]))
    array([[1., 0.],
           [0., 1.]])
    """
    v = np.sqrt(np.diagonal(square)).copy()
    best, smallest = np.eye(len(v)), np.inf
    for _ in range(_MOST_ITERATIONS):
        half = np.sqrt(v)
        values, vectors = np.linalg.eigh(half[:, None] * square * half)
        roots = np.sqrt(np.maximum(values, values[-1] * 1e-300))
        root = (vectors * roots) @ vectors.T
        diagonal = np.diagonal(root).copy()
        # X has the diagonal d/v. Divided by its square roots on both sides it is feasible, with this error.
        scale = np.sqrt(diagonal / v)
        inverse_diagonal = _weighted_trace(vectors, roots, half, square, scale)
        if inverse_diagonal < smallest:
            norms = np.sqrt(diagonal)
            best, smallest = root / np.outer(norms, norms), inverse_diagonal
        # Scaled to its best multiple, v has the dual value (Σd)²/Σv.
        if smallest - diagonal.sum() ** 2 / v.sum() <= _GAP * smallest:
            break
        v = diagonal * (diagonal / v) ** 2
    np.fill_diagonal(best, 1.0)
    return best


def _weighted_trace(vectors: Array, roots: Vector, half: Vector, square: Array, scale: Vector) -> float:
    """tr(W S X⁻¹ S) for X⁻¹ = V^{½} R⁻¹ V^{½}, R the root, S = diag(scale)."""
    right = (scale * half)[:, None] * vectors
    return float(np.einsum("ij,ij->j", right, square @ right) @ (1.0 / roots))
