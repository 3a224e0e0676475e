"""Dense strategy matrices: the optimum for k = 1, a local one for k > 1, and the best diagonal.

The largest error goes by duality. For weights π of mean error and one participation the least
squared error is ‖Π^{½} A V^{½}‖_*² at the best v (Σπ = Σv = 1), and the largest error is at least
any weighted one, so that

    min_C max_t ‖(A C⁻¹)_{t,:}‖² · max_j ‖C_{:,j}‖²  ≥  ‖Π^{½} A V^{½}‖_*²      for all π and v,

with equality at the best ones. The nuclear norm is concave in (π, v).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.factorization import Dense, Factorization, normalized
from fedmf.matrices.sensitivity import count_patterns, pattern_layers
from fedmf.matrices.toeplitz import Diagonal
from fedmf.mechanisms.banded_family import cached_banded, counting_all_rows
from fedmf.mechanisms.closed_forms import workload_diagonal
from fedmf.mechanisms.design_cache import disk_cached, single_threaded
from fedmf.mechanisms.lower_factor import lower_factor
from fedmf.mechanisms.objective import RMSE, Objective
from fedmf.mechanisms.registry import DesignRequest, MechanismFamily, Values, register
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix, weighted
from fedmf.participation import Participation

LARGEST_OPTIMIZED = 2048
_MOST_ITERATIONS = 200
_GAP = 1e-9
# (β, e) of `refined`, from smooth to sharp, and the order of the power mean for the largest error.
_STAGES = (
    (60.0, 1e-2, 32.0),
    (200.0, 3e-3, 256.0),
    (800.0, 1e-3, 2048.0),
    (3000.0, 3e-4, 16384.0),
    (12000.0, 1e-4, 65536.0),
)
_WORK = 3e11
_MOST_PAIRS = 2_000_000


def dense(
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> Dense:
    """Minimize the objective over all C.

    The error depends on X = CᵀC alone, as tr(AᵀA X⁻¹), and the constraint max_π Σ_{i,j∈π} |X_ij| ≤
    1 is convex in X. For k = 1 it is X_ii ≤ 1 and a fixed point gives the optimum (for the dual
    problem, the largest error). For k > 1 the search starts from the optimal b-banded C with
    falling column norms, on which separated columns are orthogonal, and lets them overlap where
    that pays and patterns are few (`refined`).

    Args:
        participation: (n, k, b), n ≤ 2048.
        workload: A; prefix sums by default. Row weights below 1e-4 of the largest count as that.
        objective: the error; it must count every query.

    Returns:
        C, lower triangular, with its largest column norm scaled to 1.

    Raises:
        ValueError: n > 2048, or the objective leaves queries out.

    Guarantees:
        For k = 1 the squared error is within 1e-6 (relative) of the optimum; the largest one within
        1e-6 for prefix sums and within 2e-3 in all settings tried, where some queries cannot be
        made equal. For k > 1 the error with the stated sensitivity does not exceed the error of the
        b-banded C.

    References:
        Denisov et al. (2022); Choquette-Choo et al. (2023), "Multi-Epoch Matrix Factorization";
        Li et al. (2015), "The matrix mechanism"; Henzinger, Upadhyay & Upadhyay (2023) for γ₂.

    >>> dense(Participation(2, 1, 2)).matrix.round(4)
    array([[0.9242, 0.    ],
           [0.382 , 1.    ]])
    """
    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    if n > LARGEST_OPTIMIZED:
        raise ValueError(
            f"n (rounds) must be at most {LARGEST_OPTIMIZED} for dense; got {n}. "
            "Use banded-toeplitz, banded-inverse or blt."
        )
    objective.check_counts_all("dense")
    if workload is None:
        workload = prefix(n)
    queries = counting_all_rows(objective.queries(workload))
    if k == 1:
        A = queries.materialize()
        v = np.sqrt(np.einsum("ij,ij->j", A, A))
        if objective.kind == "max":
            pi, v = _worst_weights(A)
            A = np.sqrt(pi)[:, None] * A
        return Dense(lower_factor(single_participation_gram(A.T @ A, v)))
    plain = DesignRequest(participation, workload, objective).target
    start = cached_banded(min(b, n), *plain, False).materialize()
    candidates = [Dense(start)]
    if count_patterns(n, k, b) * k**2 <= _MOST_PAIRS:
        candidates.append(Dense(refined(start, queries, participation, objective)))
    best = min(candidates, key=DesignRequest(participation, workload, objective).stated_error)
    return Dense(best.matrix / np.sqrt(best.gram_diagonal(0).max()))


def single_participation_gram(square: Array, start: Vector) -> Array:
    """The X with X_ii = 1 that minimizes tr(W X⁻¹), for W = AᵀA.

    With multipliers v of X_ii ≤ 1 and R = (V^{½} W V^{½})^{½}, the minimizer of the Lagrangian is
    X = V^{−½} R V^{−½} and the dual value is 2·tr R − Σv. At the optimum v = diag R =: r. The
    fixed-point iteration v ← r converges linearly; v ← r³/v² takes a third of its steps. It ends
    when the value of X rescaled to a unit diagonal is within 1e-9 (relative) of the dual one, or
    after 200 steps.

    Args:
        square: W, symmetric and positive definite, shape (n, n).
        start: v, shape (n,).

    References:
        Denisov et al. (2022), "Improved Differential Privacy for SGD via Optimal Private Linear
        Operators on Adaptive Streams", Theorem 3.2.

    >>> single_participation_gram(np.diag([4.0, 1.0]), np.ones(2))
    array([[1., 0.],
           [0., 1.]])
    """
    v = start
    best = np.eye(len(v))
    smallest = np.inf
    for _ in range(_MOST_ITERATIONS):
        half = np.sqrt(v)
        values, vectors = np.linalg.eigh(half[:, None] * square * half)
        roots = np.sqrt(np.maximum(values, values[-1] * 1e-300))
        root = (vectors * roots) @ vectors.T
        diagonal = np.diagonal(root).copy()
        # X has the diagonal r/v. Divided by its square roots on both sides it is feasible, with
        # this error.
        right = (np.sqrt(diagonal / v) * half)[:, None] * vectors
        error = float(np.einsum("ij,ij->j", right, square @ right) @ (1.0 / roots))
        if error < smallest:
            norms = np.sqrt(diagonal)
            best = root / np.outer(norms, norms)
            smallest = error
        # Scaled to its best multiple, v has the dual value (Σr)²/Σv.
        if smallest - diagonal.sum() ** 2 / v.sum() <= _GAP * smallest:
            break
        v = diagonal * (diagonal / v) ** 2
    np.fill_diagonal(best, 1.0)
    return best


def _worst_weights(queries: Array) -> tuple[Vector, Vector]:
    """The weights π and v of the largest nuclear norm, as softmax of any numbers."""
    import torch

    from fedmf.mechanisms.optimize import optimize

    A = torch.tensor(queries)

    def loss(x: Any) -> Any:
        first, second = x.chunk(2)
        pi = torch.softmax(first, 0)
        v = torch.softmax(second, 0)
        gram = torch.sqrt(v)[:, None] * (A.T @ (pi[:, None] * A)) * torch.sqrt(v)
        values = torch.linalg.eigvalsh(gram)
        smallest = float(values.detach()[-1]) * 1e-30
        return -2.0 * torch.log(torch.sqrt(values.clamp(min=smallest)).sum())

    pi, v = np.split(optimize(loss, np.zeros(2 * len(queries)), evaluations=300), 2)
    return _softmax(pi), _softmax(v)


def _softmax(x: Vector) -> Vector:
    powers = np.exp(x - x.max())
    return np.maximum(powers / powers.sum(), 1e-200)


def refined(
    start: Array,
    queries: ToeplitzWorkload,
    participation: Participation,
    objective: Objective = RMSE,
) -> Array:
    """A lower-triangular C near the start with a smaller error: a local optimum.

    Minimizes log ‖A C⁻¹‖_F² + log (Σ_π q_π^β)^{1/β} with q_π = Σ_{i,j∈π} sqrt(X_ij² + e²), which is
    above the logarithm of the squared error and falls to it as β → ∞ and e → 0.

    Args:
        start: C, shape (n, n), lower triangular.
        queries: A, with the weights of the objective.
        participation: (n, k, b), of few patterns: all are listed.
        objective: the error.

    Returns:
        Shape (n, n), lower triangular, positive diagonal. Not always better than the start.
    """
    import torch

    from fedmf.mechanisms.optimize import log_mean, optimize

    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    lower = np.tril_indices(n)
    A = torch.tensor(replace(queries, row_weights=None).materialize())
    patterns = torch.tensor(_all_patterns(n, k, b))
    places = (patterns[:, :, None] * (n + 1) + patterns[:, None, :]).reshape(len(patterns), -1)
    entries = (torch.tensor(lower[0]), torch.tensor(lower[1]))
    evaluations = int(np.clip(_WORK / n**3, 75, 3750)) // len(_STAGES)

    def loss(x: Any, beta: float, smoothing: float, order: float) -> Any:
        # The scale does not matter; a larger one would only make e smaller.
        C = torch.zeros(n, n, dtype=torch.float64).index_put(entries, x * (n / (x @ x)) ** 0.5)
        variances = (torch.linalg.solve_triangular(C, A, upper=False, left=False) ** 2).sum(1)
        sizes = torch.nn.functional.pad(torch.sqrt((C.T @ C) ** 2 + smoothing**2), (0, 1, 0, 1))
        sums = torch.take(sizes, places).sum(1)
        squared_sensitivity = torch.logsumexp(beta * torch.log(sums), 0) / beta
        return log_mean(variances, queries, order) + squared_sensitivity

    x = start[lower] / np.sqrt(np.einsum("ij,ij->j", start, start).max())
    for beta, smoothing, max_order in _STAGES:
        order = 1.0
        if objective.kind == "max":
            order = max_order
        stage = partial(loss, beta=beta, smoothing=smoothing, order=order)
        x = optimize(stage, x, evaluations=evaluations, tolerance=1e-12)
    matrix = np.zeros((n, n))
    matrix[lower] = x
    return matrix * np.sign(np.diagonal(matrix))[:, None]


def _all_patterns(n: int, k: int, b: int) -> NDArray[np.int64]:
    """Every pattern as a row, filled up with n, shape (m, k)."""
    patterns: list[NDArray[np.int64]] = []
    for layer in pattern_layers(n, k, b):
        missing = k - layer.shape[1]
        patterns.append(np.pad(layer, ((0, 0), (0, missing)), constant_values=n))
    return np.concatenate(patterns)


@single_threaded
def best_diagonal(workload: ToeplitzWorkload, objective: Objective = RMSE) -> Diagonal:
    """The diagonal C of least error for users in every round (k = n, b = 1).

    The squared error of d is Σ_i S_i/d_i²·Σ_i d_i² with S_i = Σ_t π_t A_ti², least at (Σ_i
    √S_i)². For the largest error π are the weights for which that is largest: a saddle point,
    since the squared error of d is convex in 1/d² and linear in the weights.

    Args:
        workload: A.
        objective: the error.

    >>> from fedmf.mechanisms.objective import MAX
    >>> d = best_diagonal(prefix(3), MAX).entries  # its scale does not matter
    >>> (d / d[0]).round(3)
    array([1., 1., 1.])
    """
    queries = objective.queries(workload)
    if objective.kind == "max":
        import torch

        from fedmf.mechanisms.optimize import optimize, series_product

        n = queries.rounds
        counted = torch.ones(n, dtype=torch.float64)
        if queries.row_weights is not None:
            counted = torch.tensor(queries.row_weights**2)
        scale = torch.ones(n, dtype=torch.float64)
        if queries.column_weights is not None:
            scale = torch.tensor(queries.column_weights)
        squares = torch.tensor(queries.coefficients**2)

        def loss(x: Any) -> Any:
            sums = series_product(squares, (torch.softmax(x, 0) * counted).flip(0), n).flip(0)
            return -2.0 * torch.log((scale * torch.sqrt(sums.clamp(min=1e-300))).sum())

        pi = _softmax(optimize(loss, np.zeros(queries.rounds), evaluations=1500))
        queries = weighted(queries, rows=np.sqrt(pi))
    return workload_diagonal(queries)


_dense = disk_cached(dense, version=6)


def _of_equal_norms(request: DesignRequest, values: Values) -> Factorization:
    """The better of normalized `dense` and the optimal b-banded C of equal column norms."""
    candidates = [normalized(_dense(*request.target))]
    if request.participation.max_participations > 1:
        b_banded = cached_banded(request.separation, *request.target, True)
        candidates.append(Dense(b_banded.materialize()))
    return min(candidates, key=request.stated_error)


register(
    MechanismFamily(
        "optimal-diagonal",
        "independent noise of the best size for each round",
        lambda request, values: best_diagonal(request.workload, request.objective),
        max_rounds_compared=0,
    ),
    MechanismFamily(
        "dense",
        "the best C of any form",
        lambda request, values: _dense(*request.target),
        max_rounds=LARGEST_OPTIMIZED,
        max_rounds_compared=512,
        make_normalized=_of_equal_norms,
        optimized=True,
        entrywise=True,
    ),
)
