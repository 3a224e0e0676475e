"""Lower the error of a dense C at its true (k, b) sensitivity: L-BFGS over C, over all patterns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.sensitivity import count_patterns, pattern_layers
from fedmf.participation import Participation
from fedmf.typing import Array, Vector
from fedmf.workload import ToeplitzWorkload

__all__ = ["log_smooth_error", "refined"]

Patterns = NDArray[np.int64]

# (β, ε) of `log_smooth_error`, from smooth to sharp.
_STAGES = ((60.0, 1e-2), (200.0, 3e-3), (800.0, 1e-3), (3000.0, 3e-4))
_WORK = 2.5e11
_MOST_PAIRS = 2_000_000


def refined(start: Array, workload: ToeplitzWorkload, participation: Participation) -> Array | None:
    """A lower-triangular C near the start with a smaller error; None where patterns are too many to hold.

    They are few for k = 2 and n ≤ 1000, k = 3 and n ≤ 100, and short horizons. The result
    is a local optimum without a certificate.

    Args:
        start: C, shape (n, n), lower triangular.
        workload: A.
        participation: (n, k, b).

    Returns:
        Shape (n, n), lower triangular, positive diagonal. Not always better than the start.
    """
    from scipy.optimize import minimize

    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    if count_patterns(n, k, b) * k**2 > _MOST_PAIRS:
        return None
    lower, queries, patterns = np.tril_indices(n), workload.materialize(), _all_patterns(n, k, b)
    evaluations = int(np.clip(_WORK / n**3, 60, 3000)) // len(_STAGES)
    options = {"maxfun": evaluations, "maxiter": evaluations, "ftol": 1e-12, "gtol": 1e-9, "maxcor": 12}
    x = start[lower] / np.sqrt(np.einsum("ij,ij->j", start, start).max())
    matrix = np.zeros((n, n))
    for beta, epsilon in _STAGES:

        def objective(x: Vector, beta: float = beta, epsilon: float = epsilon) -> tuple[float, Vector]:
            matrix[lower] = x
            value, slope = log_smooth_error(matrix, queries, patterns, beta, epsilon)
            return value, slope[lower]

        x = minimize(objective, x, jac=True, method="L-BFGS-B", options=options).x
    matrix[lower] = x
    return matrix * np.sign(np.diagonal(matrix))[:, None]


def log_smooth_error(
    C: Array, queries: Array, patterns: Patterns, beta: float, epsilon: float
) -> tuple[float, Array]:
    """log ‖A C⁻¹‖_F² + log (Σ_π q_π^β)^{1/β} with q_π = Σ_{i,j∈π} sqrt(X_ij² + ε²), and its gradient in C.

    Above the logarithm of the squared error under these patterns, and falling to it as β → ∞ and ε → 0.

    Args:
        C: lower triangular, shape (n, n).
        queries: A, shape (n, n).
        patterns: shape (m, k), 0-based rounds; n stands for no round.
        beta: β ≥ 1.
        epsilon: ε > 0.

    Returns:
        The value and the gradient, shape (n, n). (inf, 0) where C is singular.
    """
    from scipy.linalg import solve_triangular

    n = len(C)
    if not np.diagonal(C).all():
        return float("inf"), np.zeros_like(C)
    with np.errstate(over="ignore", invalid="ignore"):
        B = solve_triangular(C, queries.T, lower=True, trans=1, check_finite=False).T
        error = float(np.einsum("ij,ij->", B, B))
    if not np.isfinite(error) or error > 1e200:
        return float("inf"), np.zeros_like(C)
    slope = -2.0 / error * solve_triangular(C, B.T @ B, lower=True, check_finite=False).T
    X = C.T @ C
    smooth = np.sqrt(X * X + epsilon * epsilon)
    size = np.zeros((n + 1, n + 1))
    size[:n, :n] = smooth
    places = (patterns[:, :, None] * (n + 1) + patterns[:, None, :]).reshape(len(patterns), -1)
    sums = size.reshape(-1)[places].sum(axis=1)
    exponents = beta * np.log(sums)
    top = exponents.max()
    weights = np.exp(exponents - top)
    log_norm = (top + np.log(weights.sum())) / beta
    weights /= weights.sum() * sums
    pull = np.bincount(places.reshape(-1), np.repeat(weights, places.shape[1]), minlength=(n + 1) ** 2)
    slope_gram = pull.reshape(n + 1, n + 1)[:n, :n] * (X / smooth)
    return float(np.log(error) + log_norm), slope + 2.0 * C @ slope_gram


def _all_patterns(n: int, k: int, b: int) -> Patterns:
    """Shape (m, k), filled up with n."""
    layers = pattern_layers(n, k, b)
    return np.concatenate([np.pad(own, ((0, 0), (0, k - own.shape[1])), constant_values=n) for own in layers])
