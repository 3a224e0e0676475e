"""The weights of queries for which the best C does worst: the least MaxSE of any C, by duality.

For weights π of mean error and one participation the least squared error is ‖Π^{½} A V^{½}‖_*² at the best v
(Σπ = Σv = 1). The largest error is at least any weighted one, so that

    min_C max_t ‖(A C⁻¹)_{t,:}‖² · max_j ‖C_{:,j}‖²  ≥  ‖Π^{½} A V^{½}‖_*²      for all π and v,

with equality at the best ones. The nuclear norm is concave in (π, v): it is the least of
½(Σ_t π_t‖B_t‖² + Σ_j v_j‖C_j‖²) over A = B C.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedmf.factorization.matrices import Diagonal
from fedmf.factorization.objectives import query_variances
from fedmf.typing import Array, Vector
from fedmf.workload import ToeplitzWorkload, weighted

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

    >>> from fedmf.workload import prefix
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
