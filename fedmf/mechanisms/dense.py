"""Dense strategy matrices: the optimum for k = 1, a local one for k > 1; and the best diagonal one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedmf.mechanisms.banded import banded, counting_all_rows
from fedmf.mechanisms.cache import remembered
from fedmf.mechanisms.closed_forms import workload_diagonal
from fedmf.mechanisms.errors import RMSE, Objective, PowerMean, errors, query_variances
from fedmf.mechanisms.matrix import Dense, lower_factor
from fedmf.mechanisms.optimise import single_threaded
from fedmf.mechanisms.registry import Family, register
from fedmf.mechanisms.sensitivity import count_patterns, pattern_layers, stated_sensitivity
from fedmf.mechanisms.toeplitz import Diagonal
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix, weighted
from fedmf.participation import Participation
from fedmf.typing import Array, Vector

_OPTIONS = {"maxiter": 300, "maxfun": 300, "ftol": 1e-13, "gtol": 1e-9, "maxcor": 20}
_GAP = 1e-7


class _CloseEnough(Exception):
    """Primal and dual values agree."""


def least_max_gram(queries: Array) -> tuple[Array, float]:
    """The X = CᵀC with X_ii = 1 of least max_t a_tᵀX⁻¹a_t, and a lower bound on that for every C.

    L-BFGS ascends the logarithm of the nuclear norm over π and v = softmax of free numbers. With
    Π^{½}AV^{½} = UΣWᵀ, X = V^{−½}WΣWᵀV^{−½}, rescaled to a unit diagonal, is the candidate of each step. It
    ends when the best one is within 1e-7 (relative) of the bound, or after 300 evaluations.

    Args:
        queries: A, shape (n, n), weights included, no zero row.

    Returns:
        X, shape (n, n), and the bound on the squared error.

    References:
        Li et al. (2015), "The matrix mechanism"; Henzinger, Upadhyay & Upadhyay (2023) for γ₂.

    >>> least_max_gram(np.diag([1.0, 2.0]))[0]
    array([[1., 0.],
           [0., 1.]])
    """
    n = len(queries)
    best, least, bound = np.eye(n), np.inf, 0.0

    def dual(x: Vector) -> tuple[float, Vector]:
        nonlocal best, least, bound
        pi, v = _softmax(x[:n]), _softmax(x[n:])
        product = np.sqrt(pi)[:, None] * queries * np.sqrt(v)
        values, right = np.linalg.eigh(product.T @ product)
        sizes = np.sqrt(np.maximum(values, values[-1] * 1e-30))
        total = float(sizes.sum())
        left = (product @ right) / sizes
        pull_rows, pull_columns = (left**2) @ sizes, (right**2) @ sizes
        bound = max(bound, total**2)
        scale = np.sqrt(pull_columns / v)
        rows = (queries * (scale * np.sqrt(v))) @ (right / np.sqrt(sizes))
        largest = float(np.einsum("ij,ij->i", rows, rows).max())
        if largest < least:
            norms = np.sqrt(pull_columns)
            best, least = ((right * sizes) @ right.T) / np.outer(norms, norms), largest
        if least - bound <= _GAP * bound:
            raise _CloseEnough
        return -2.0 * np.log(total), np.concatenate([pi - pull_rows / total, v - pull_columns / total])

    _descend(dual, 2 * n)
    np.fill_diagonal(best, 1.0)
    return best, bound


def worst_diagonal_weights(workload: ToeplitzWorkload) -> Vector:
    """The π of mean 1 for which the best diagonal C does worst: it has d_i² = √S_i, S_i = Σ_t π_t A_ti².

    For users in every round the squared error of d is Σ_i S_i/d_i²·Σ_i d_i², least at (Σ_i √S_i)², which is
    concave in π.

    Args:
        workload: A.

    >>> from fedmf.mechanisms.workload import prefix
    >>> worst_diagonal_weights(prefix(3)).round(3)
    array([0., 0., 3.])
    """
    n = workload.rounds
    best, least = np.ones(n), np.inf

    def dual(x: Vector) -> tuple[float, Vector]:
        nonlocal best, least
        pi = _softmax(x)
        roots = np.sqrt(np.maximum(weighted(workload, rows=np.sqrt(pi)).column_squares(), 1e-300))
        total, rows = float(roots.sum()), query_variances(Diagonal(np.sqrt(roots)), workload)
        if (largest := float(rows.max())) * total < least:
            best, least = pi, largest * total
        if largest <= total * (1.0 + _GAP):
            raise _CloseEnough
        return -2.0 * np.log(total), pi * (1.0 - rows / total)

    _descend(dual, n)
    return best * n


def _descend(dual: Callable[[Vector], tuple[float, Vector]], size: int) -> None:
    from scipy.optimize import minimize

    try:
        minimize(dual, np.zeros(size), jac=True, method="L-BFGS-B", options=_OPTIONS)
    except _CloseEnough:
        return


def _softmax(x: Vector) -> Vector:
    powers = np.exp(x - x.max())
    return np.maximum(powers / powers.sum(), 1e-200)


Patterns = NDArray[np.int64]

LARGEST_OPTIMIZED = 2048
_MOST_ITERATIONS = 200
_GAP_dense_optimizer = 1e-8
# (β, ε) of `log_smooth_error`, from smooth to sharp, and the order of the power mean for the largest error.
_STAGES = ((60.0, 1e-2, 32.0), (200.0, 3e-3, 256.0), (800.0, 1e-3, 2048.0), (3000.0, 3e-4, 16384.0))
_WORK = 2.5e11
_MOST_PAIRS = 2_000_000


def dense(
    participation: Participation, workload: ToeplitzWorkload | None = None, objective: Objective = RMSE
) -> Dense:
    """Minimise the objective over all C.

    The error depends on X = CᵀC alone, as tr(AᵀA X⁻¹), and the constraint max_π Σ_{i,j∈π} |X_ij| ≤ 1 is
    convex in X. For k = 1 it says X_ii ≤ 1 and a fixed point gives the optimum (the dual problem that of the
    largest error, `least_max_gram`). For k > 1 the search starts
    from the optimal b-banded C with falling column norms, on which separated columns are orthogonal, and lets
    them overlap where that pays and patterns are few (`refined`).

    Args:
        participation: (n, k, b), n ≤ 2048.
        workload: A; prefix sums by default. Row weights below 1e-4 of the largest count as that.
        objective: which error; it must count every query.

    Returns:
        C, lower triangular, with its largest column norm scaled to 1.

    Raises:
        ValueError: n > 2048, or the objective leaves queries out.

    Guarantees:
        For k = 1 the squared error is within 1e-6 (relative) of the optimum; the largest one within 1e-6 for
        prefix sums and within 2e-3 in all settings tried, where some queries cannot be made equal. For k > 1
        the error with the stated sensitivity is no larger than that of the b-banded C.
        `certified_dense_bound` says how far from the optimal RMSE that is at most.

    References:
        Denisov et al. (2022); Choquette-Choo et al. (2023), "Multi-Epoch Matrix Factorization".

    >>> dense(Participation(2, 1, 2)).matrix.round(4)
    array([[0.9242, 0.    ],
           [0.382 , 1.    ]])
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    if n > LARGEST_OPTIMIZED:
        raise ValueError(
            f"n (rounds) must be at most {LARGEST_OPTIMIZED} for dense; got {n}. "
            "Use banded-toeplitz, banded-inverse or blt."
        )
    objective.check_counts_all("dense")
    asked = prefix(n) if workload is None else workload
    queries = counting_all_rows(objective.queries(asked))
    if k == 1:
        A = queries.materialize()
        largest = objective.kind == "max"
        return Dense(lower_factor(least_max_gram(A)[0] if largest else single_participation_gram(A.T @ A)))
    start = banded(min(b, n), participation, asked, objective=objective).materialize()
    other = refined(start, queries, participation, objective)
    candidates = [Dense(start)] if other is None else [Dense(start), Dense(other)]

    def error(C: Dense) -> float:
        return errors(C, asked, stated_sensitivity(C, participation), objective=objective).objective

    best = min(candidates, key=error)
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
        if smallest - diagonal.sum() ** 2 / v.sum() <= _GAP_dense_optimizer * smallest:
            break
        v = diagonal * (diagonal / v) ** 2
    np.fill_diagonal(best, 1.0)
    return best


def _weighted_trace(vectors: Array, roots: Vector, half: Vector, square: Array, scale: Vector) -> float:
    """tr(W S X⁻¹ S) for X⁻¹ = V^{½} R⁻¹ V^{½}, R the root, S = diag(scale)."""
    right = (scale * half)[:, None] * vectors
    return float(np.einsum("ij,ij->j", right, square @ right) @ (1.0 / roots))


def refined(
    start: Array, workload: ToeplitzWorkload, participation: Participation, objective: Objective = RMSE
) -> Array | None:
    """A lower-triangular C near the start with a smaller error; None where patterns are too many to hold.

    They are few for k = 2 and n ≤ 1000, k = 3 and n ≤ 100, and short horizons. The result
    is a local optimum without a certificate.

    Args:
        start: C, shape (n, n), lower triangular.
        workload: A.
        participation: (n, k, b).
        objective: which error; its weights are those of the workload's rows.

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
    for beta, epsilon, order in _STAGES:
        smoothing = (beta, epsilon, order if objective.kind == "max" else 1.0)

        def error(x: Vector, *smoothing: float) -> tuple[float, Vector]:
            matrix[lower] = x
            value, slope = log_smooth_error(matrix, queries, patterns, *smoothing)
            return value, slope[lower]

        x = minimize(error, x, smoothing, jac=True, method="L-BFGS-B", options=options).x
    matrix[lower] = x
    return matrix * np.sign(np.diagonal(matrix))[:, None]


def log_smooth_error(
    C: Array, queries: Array, patterns: Patterns, beta: float, epsilon: float, order: float = 1.0
) -> tuple[float, Array]:
    """log ‖A C⁻¹‖_F² + log (Σ_π q_π^β)^{1/β} with q_π = Σ_{i,j∈π} sqrt(X_ij² + ε²), and its gradient in C.

    Above the logarithm of the squared error under these patterns, and falling to it as β → ∞ and ε → 0. With
    another order ‖A C⁻¹‖_F² is a power mean of the rows (`PowerMean`).

    Args:
        C: lower triangular, shape (n, n).
        queries: A, shape (n, n).
        patterns: shape (m, k), 0-based rounds; n stands for no round.
        beta: β ≥ 1.
        epsilon: ε > 0.
        order: q ≥ 1 of the power mean.

    Returns:
        The value and the gradient, shape (n, n). (inf, 0) where C is singular.
    """
    from scipy.linalg import solve_triangular

    n = len(C)
    if not np.diagonal(C).all():
        return float("inf"), np.zeros_like(C)
    with np.errstate(over="ignore", invalid="ignore"):
        B = solve_triangular(C, queries.T, lower=True, trans=1, check_finite=False).T
        rows = np.einsum("ij,ij->i", B, B)
        weights = PowerMean(np.ones(n), order)(rows)
        error = float(weights @ rows)
    if not np.isfinite(error) or error > 1e200:
        return float("inf"), np.zeros_like(C)
    slope = -2.0 / error * solve_triangular(C, (B.T * weights) @ B, lower=True, check_finite=False).T
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
    return np.concatenate(
        [np.pad(layer, ((0, 0), (0, k - layer.shape[1])), constant_values=n) for layer in layers]
    )


def best_diagonal(workload: ToeplitzWorkload, objective: Objective = RMSE) -> Diagonal:
    """The diagonal C of least error for users in every round (k = n, b = 1).

    For the largest error it is the best one for the weights under which the best one does worst: a saddle
    point, since the squared error of d is convex in 1/d² and linear in the weights.

    Args:
        workload: A.
        objective: which error.

    >>> from fedmf.mechanisms.errors import MAX
    >>> d = best_diagonal(prefix(3), MAX).entries  # its scale says nothing
    >>> (d / d[0]).round(3)
    array([1., 1., 1.])
    """
    queries = objective.queries(workload)
    if objective.kind == "max":
        queries = weighted(queries, rows=np.sqrt(worst_diagonal_weights(queries)))
    return workload_diagonal(queries)


_dense = lru_cache(maxsize=8)(remembered(single_threaded(dense), version=2))

register(
    Family(
        "optimal-diagonal",
        "independent noise of the best size for each round",
        lambda ask, v: best_diagonal(ask.workload, ask.objective),
        largest_normalized_compared=0,
    ),
    Family(
        "dense",
        "the best C of any form",
        lambda ask, v: _dense(*ask.target),
        largest=LARGEST_OPTIMIZED,
        largest_compared=512,
        optimized=True,
        entrywise=True,
    ),
)
