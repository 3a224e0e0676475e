"""The optimal p-banded strategy matrix with columns of norm 1 (BandMF)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import Descent, inverse_norm
from fedmf.factorization.matrices import Banded, without_workload, workload_inverse
from fedmf.factorization.objectives import RMSE, Objective, PowerMean
from fedmf.participation import Participation
from fedmf.typing import Array, Vector
from fedmf.workload import ToeplitzWorkload, prefix

_LARGEST_DENSE = 2048
_LEAST_COUNTED = 1e-4
# Columns of one user overlap for p > b; to bound the sensitivity then takes all of CᵀC.
_LARGEST_OVERLAPPING = 10_240
# A quarter of a million coefficients take a minute.
_MOST_ENTRIES = 2**21
# It ends at steps that win less than 2e-10 (relative), when less than 1e-7 is left: half that of the RMSE.
_DESCENT = Descent(tolerance=2e-10, gradient=1e-10, evaluations=4000, memory=5)


def log_error(
    directions: Array, workload: ToeplitzWorkload, norms: Vector | None = None, order: float = 1.0
) -> tuple[float, Array, Vector]:
    """log ‖A C⁻¹‖_F² for columns C_j = s_j·r_j/‖r_j‖, and its gradients in r and s.

    Of another order it is the power mean of the rows of A C⁻¹ (`PowerMean`).

    Args:
        directions: r, shape (n, p), in the layout of `Banded`.
        workload: A, weights included.
        norms: s, shape (n,); ones by default.
        order: q ≥ 1 of the power mean.

    Returns:
        The value and the gradients, shapes (n, p) and (n,). (inf, 0, 0) on overflow.

    References:
        McKenna (2024), Algorithm 3. Where LTT(a)⁻¹ has few coefficients (prefix sums, momentum, exponential
        averages), in O(np²) time instead of O(n²p), as the inverse of the banded C A⁻¹; else in O(n³).
    """
    scale = np.ones((len(directions), 1)) if norms is None else norms[:, None]
    lengths = np.sqrt(np.einsum("jd,jd->j", directions, directions))[:, None]
    unit = directions / lengths
    inverse = workload_inverse(workload.coefficients)
    if inverse is None:
        value, slope = _dense_error(unit * scale, workload, order)
    else:
        value, slope = _banded_error(unit * scale, workload, inverse, order)
    if not np.isfinite(value):
        return value, np.zeros_like(unit), np.zeros(len(unit))
    along = np.einsum("jd,jd->j", unit, slope)
    unit *= along[:, None]
    slope -= unit
    slope *= scale / (lengths * value)
    return float(np.log(value)), slope, along / value


def _banded_error(
    band: Array, workload: ToeplitzWorkload, inverse: Vector, order: float
) -> tuple[float, Array]:
    """‖diag(r)·K⁻¹‖_F² with K = C·diag(η)⁻¹·LTT(a)⁻¹, and its gradient in C."""
    n, p = band.shape
    rates = workload.column_weights
    rated = band if rates is None else band / rates[:, None]
    value, slope = inverse_norm(without_workload(rated, inverse), PowerMean.of(workload, order))
    pulled = inverse[0] * slope[:, :p]
    for m, weight in enumerate(inverse[1:n], 1):
        pulled[m:] += weight * slope[: n - m, m : m + p]
    return value, pulled if rates is None else pulled / rates[:, None]


def _dense_error(band: Array, workload: ToeplitzWorkload, order: float) -> tuple[float, Array]:
    """‖B‖_F² with B = A C⁻¹ and its gradient −2BᵀB C⁻ᵀ, or those of the power mean of its rows."""
    from scipy.linalg import solve_triangular

    C = Banded(band).materialize()
    B = solve_triangular(C, workload.materialize().T, lower=True, trans=1, check_finite=False).T
    B = B * np.sqrt(PowerMean(np.ones(len(B)), order)(np.einsum("ij,ij->i", B, B)))[:, None]
    slope = -2.0 * solve_triangular(C, B.T @ B, lower=True, check_finite=False).T
    n, p = band.shape
    row = np.add.outer(np.arange(n), np.arange(p))
    pulled = np.where(row < n, slope[np.minimum(row, n - 1), np.arange(n)[:, None]], 0.0)
    return float(np.einsum("ij,ij->", B, B)), pulled


def banded(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
    equal_norms: bool = False,
) -> Banded:
    """Minimise the objective over p-banded C by L-BFGS; column norms are equal or fall from block to block.

    For p ≤ b the columns that one user meets are orthogonal, so that sens_{k,b}(C)² is the largest sum of
    squared column norms over a pattern. With equal norms it is k (BandMF). Otherwise column j has norm s_l in
    the block l = min(⌊j/b⌋, k − 1) of rounds, and s_0 ≥ s_1 ≥ …: the l-th round of a pattern is at least lb,
    hence sens² = Σ_l s_l². Early rounds enter more queries and get less noise. For p = b = 1 these are the
    diagonal matrices; for k = 1 the two forms are the same. For p > b columns overlap, which the objective
    does not see.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A; prefix sums by default. Row weights below 1e-4 of the largest count as that.
        objective: which error; it must count every query.
        equal_norms: whether all columns have norm 1, as amplification by cyclic sampling wants them.

    Returns:
        C, its first column of norm 1.

    Raises:
        ValueError: the objective leaves queries out, p is out of range, the workload is of the slow kind
            (`log_error`) and n > 2048, p > b, k > 1 and n > 10240, or n·p > 2,097,152.

    Guarantees:
        For p ≤ b no worse than the column-normalised optimal banded Toeplitz matrix, from which it starts.

    References:
        McKenna (2024), Algorithm 3; Choquette-Choo et al. (2023).

    >>> banded(2, Participation(3, 1, 3)).band.round(3)
    array([[0.884, 0.468],
           [0.951, 0.308],
           [1.   , 0.   ]])
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    objective.check_counts_all("banded")
    queries = counting_all_rows(objective.queries(prefix(n) if workload is None else workload))
    if n > _LARGEST_DENSE and workload_inverse(queries.coefficients) is None:
        raise ValueError(
            f"n (rounds) must be at most {_LARGEST_DENSE} for a banded C and this workload; got {n}. "
            "Use banded-toeplitz."
        )
    if bands > b and k > 1 and n > _LARGEST_OVERLAPPING:
        raise ValueError(
            f"p (bands) must be at most b={b} for a banded C of more than {_LARGEST_OVERLAPPING} rounds; got "
            f"{bands}. The sensitivity could not be bounded: use p <= b, or banded-toeplitz."
        )
    if n * bands > _MOST_ENTRIES:
        raise ValueError(
            f"n*p (coefficients) must be at most {_MOST_ENTRIES} for a banded C; got {n}*{bands}. "
            "Use fewer bands, or banded-toeplitz."
        )
    block = None if equal_norms or k == 1 else np.minimum(np.arange(n) // b, k - 1)
    directions, norms = _minimize(_start(bands, participation, objective), queries, block, objective.orders)
    directions = directions * np.sign(directions[:, :1])  # a column and its negative serve equally
    lengths = np.linalg.norm(directions, axis=1)
    return Banded(directions * (norms / (norms[0] * lengths))[:, None])


def counting_all_rows(workload: ToeplitzWorkload) -> ToeplitzWorkload:
    """Row weights of at least 1e-4 of the largest.

    Noise that enters only rows of weight 0 could grow without bound at no cost in the objective, and other
    rows would consist of cancelling rounding errors.
    """
    rows = workload.row_weights
    if rows is None or rows.min() >= _LEAST_COUNTED * rows.max():
        return workload
    return replace(workload, row_weights=np.maximum(rows, _LEAST_COUNTED * rows.max()))


def _minimize(
    start: Array,
    workload: ToeplitzWorkload,
    block: NDArray[np.intp] | None,
    orders: tuple[float, ...],
) -> tuple[Array, Vector]:
    """L-BFGS over directions and, with blocks, over θ in s_l² = Σ_{m ≥ l} exp(θ_m), for each order.

    The norms start like those of the optimal diagonal matrix. The start with equal norms is returned if it is
    better than what was found.
    """
    n = len(start)
    steps = np.zeros(0)
    if block is not None:
        squares = np.sqrt(1.0 - np.searchsorted(block, np.arange(block[-1] + 1)) / n)
        steps = np.log(squares - np.append(squares[1:], 0.0))

    def unpack(x: Vector) -> tuple[Array, Vector]:
        # Entries past row n are 0 and have no slope.
        directions = x[steps.size :].reshape(start.shape)
        squares = _tail_sums(np.exp(x[: steps.size]))
        return directions, np.ones(n) if block is None else np.sqrt(squares)[block]

    def error(x: Vector, order: float) -> tuple[float, Vector]:
        directions, norms = unpack(x)
        value, slope, slope_norms = log_error(directions, workload, norms, order)
        if block is None:
            return value, slope.reshape(-1)
        squares = _tail_sums(np.exp(x[: steps.size]))
        slope_squares = np.bincount(block, slope_norms / (2 * norms)) + 1.0 / squares.sum()
        slope_steps = np.exp(x[: steps.size]) * np.cumsum(slope_squares)
        return value + float(np.log(squares.sum())), np.concatenate([slope_steps, slope.reshape(-1)])

    x, least = np.concatenate([steps, start.reshape(-1)]), np.inf
    for order in orders:
        x = _DESCENT.least(partial(error, order=order), x)
        least = error(x, order)[0]
    equal = log_error(start, workload, order=orders[-1])[0] + float(np.log(max(1, steps.size)))
    return unpack(x) if least < equal else (start, np.ones(n))


def _tail_sums(values: Vector) -> Vector:
    return np.cumsum(values[::-1])[::-1]


def _start(bands: int, participation: Participation, objective: Objective) -> Array:
    """The column-normalised optimal banded Toeplitz matrix."""
    from fedmf.factorization.mechanisms.banded_toeplitz_optimizer import banded_toeplitz

    n = participation.rounds
    c = banded_toeplitz(bands, participation, objective=objective).coefficients
    inside = np.add.outer(np.arange(n), np.arange(bands)) < n
    band = np.where(inside, np.pad(c, (0, bands - c.size)), 0.0)
    return band / np.linalg.norm(band, axis=1, keepdims=True)
