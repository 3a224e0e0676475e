"""The optimal banded strategy matrix (BandMF).

The search moves all n·p coefficients by L-BFGS, from the best banded Toeplitz matrix. The other
modules about bands are banded_toeplitz.py (one coefficient per diagonal) and banded_inverse.py
(bands in C⁻¹); matrices/banded.py has the matrix itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.banded import Banded, beyond_last_row, stacked_blocks
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.design_cache import disk_cached
from fedmf.mechanisms.objective import RMSE, Objective
from fedmf.mechanisms.query_variances import few_inverse, without_workload
from fedmf.mechanisms.registry import (
    BANDS,
    DesignRequest,
    MechanismFamily,
    SearchedParameter,
    Values,
    register,
    without_search,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation

_LARGEST_DENSE = 2048
_LEAST_COUNTED = 1e-4
# For p > b the columns of one user overlap, and a bound on the sensitivity takes all of CᵀC.
_LARGEST_OVERLAPPING = 10_240
# A quarter of a million coefficients take a minute.
_MOST_ENTRIES = 2**21
# There are n·p coefficients: at n = 4000, p = 64 takes a minute and p = 400 several.
_WIDEST = 64
_MOST_BY_DEFAULT = 2**18
# Relative to the loss. Another 1e-6 of the error takes twice the time.
_TOLERANCE = 1e-8


def _inverse_row_norms_of(band: Any) -> Any:
    """‖(C⁻¹)_{t,:}‖² of a band of C, as a differentiable torch tensor."""
    import torch

    blocks = stacked_blocks(band)
    size = blocks.shape[2]
    diagonal, below = blocks.split(size, 1)
    identity = torch.eye(size, dtype=torch.float64)
    inverses = torch.linalg.solve_triangular(diagonal, identity, upper=False)
    transitions = inverses[1:] @ below[:-1]
    innovations = (inverses @ inverses.mT).unbind()
    covariance = innovations[0]
    norms = [covariance.diagonal()]
    for innovation, transition in zip(innovations[1:], transitions.unbind(), strict=True):
        covariance = innovation + transition @ covariance @ transition.T
        norms.append(covariance.diagonal())
    return torch.cat(norms)[: len(band)]


def variances_of_band(queries: ToeplitzWorkload, shape: tuple[int, int]) -> Any:
    """The variances ‖(LTT(a)·diag(η)·C⁻¹)_{t,:}‖² of queries as a function of the band of C.

    References:
        McKenna (2024), Algorithm 3.
    """
    import torch

    n, p = shape
    inverse = few_inverse(queries.coefficients)
    inside = torch.tensor(~beyond_last_row(n, p))
    if inverse is not None:
        rates = torch.ones(n, 1)
        if queries.column_weights is not None:
            rates = torch.tensor(queries.column_weights)[:, None]
        return lambda band: _inverse_row_norms_of(without_workload(inside * band / rates, inverse))
    rows = (torch.arange(n)[:, None] + torch.arange(p))[inside]
    columns = torch.where(inside)[0]
    A = torch.tensor(replace(queries, row_weights=None).materialize())

    def variances(band: Any) -> Any:
        C = torch.zeros(n, n, dtype=torch.float64).index_put((rows, columns), band[inside])
        return (torch.linalg.solve_triangular(C, A, upper=False, left=False) ** 2).sum(1)

    return variances


def banded(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
    equal_norms: bool = False,
) -> Banded:
    """Minimize the objective over p-banded C; column norms are equal or fall from block to block.

    For p ≤ b the columns that one user meets are orthogonal, so that sens_{k,b}(C)² is the largest
    sum of squared column norms over a pattern. With equal norms it is k (BandMF). Otherwise column
    j has norm s_l in the block l = min(⌊j/b⌋, k − 1) of rounds, and s_0 ≥ s_1 ≥ …: the l-th round
    of a pattern is at least lb, hence sens² = Σ_l s_l². Early rounds enter more queries and get
    less noise. For p = b = 1 these are the diagonal matrices; for k = 1 both cases are the same.
    For p > b columns overlap, which the objective does not see.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A; prefix sums by default. Row weights below 1e-4 of the largest count as that.
        objective: the error; it must count every query.
        equal_norms: whether all columns have norm 1, which suits amplification by cyclic sampling.

    Returns:
        C, its first column of norm 1.

    Raises:
        ValueError: the objective leaves queries out, p is out of range, A⁻¹ has many coefficients
            and n > 2048, p > b, k > 1 and n > 10240, or n·p > 2,097,152.

    Guarantees:
        For p ≤ b no worse than the column-normalized optimal banded Toeplitz matrix, from which it
        starts.

    References:
        McKenna (2024), Algorithm 3; Choquette-Choo et al. (2023).

    >>> banded(2, Participation(3, 1, 3)).band.round(3)
    array([[0.884, 0.468],
           [0.951, 0.308],
           [1.   , 0.   ]])
    """
    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    objective.check_counts_all("banded")
    if workload is None:
        workload = prefix(n)
    queries = counting_all_rows(objective.queries(workload))
    if n > _LARGEST_DENSE and few_inverse(queries.coefficients) is None:
        raise ValueError(
            f"n (rounds) must be at most {_LARGEST_DENSE} for a banded C and this workload; got"
            f" {n}. Use banded-toeplitz."
        )
    if bands > b and k > 1 and n > _LARGEST_OVERLAPPING:
        raise ValueError(
            f"p (bands) must be at most b={b} for a banded C of more than {_LARGEST_OVERLAPPING}"
            f" rounds; got {bands}. The sensitivity could not be bounded: use p <= b, or"
            " banded-toeplitz."
        )
    if n * bands > _MOST_ENTRIES:
        raise ValueError(
            f"n*p (coefficients) must be at most {_MOST_ENTRIES} for a banded C; got {n}*{bands}. "
            "Use fewer bands, or banded-toeplitz."
        )
    c = banded_toeplitz(bands, participation, objective=objective).coefficients
    start = np.where(beyond_last_row(n, bands), 0.0, np.pad(c, (0, bands - c.size)))
    start = start / np.linalg.norm(start, axis=1, keepdims=True)
    block = np.minimum(np.arange(n) // b, k - 1)
    theta = _falling_norms(block)
    if equal_norms or k == 1:
        block = np.zeros(n, dtype=np.int64)
        theta = np.zeros(0)
    directions, norms = _minimized(start, queries, block, theta, objective.orders)
    directions = directions * np.sign(directions[:, :1])  # a column and its negative serve equally
    lengths = np.linalg.norm(directions, axis=1)
    return Banded(directions * (norms / (norms[0] * lengths))[:, None])


def counting_all_rows(workload: ToeplitzWorkload) -> ToeplitzWorkload:
    """Row weights of at least 1e-4 of the largest.

    Noise that enters only rows of weight 0 could grow without bound at no cost in the objective,
    and other rows would consist of cancelling rounding errors.
    """
    rows = workload.row_weights
    if rows is None or rows.min() >= _LEAST_COUNTED * rows.max():
        return workload
    return replace(workload, row_weights=np.maximum(rows, _LEAST_COUNTED * rows.max()))


def _falling_norms(block: NDArray[np.int64]) -> Vector:
    """The θ of `_minimized` for the column norms of the optimal diagonal matrix."""
    blocks = np.arange(block[-1] + 1)
    squares = np.sqrt(1.0 - np.searchsorted(block, blocks) / block.size)
    return np.log(squares - np.append(squares[1:], 0.0))


def _minimized(
    start: Array,
    queries: ToeplitzWorkload,
    block: NDArray[np.int64],
    theta: Vector,
    orders: tuple[float, ...],
) -> tuple[Array, Vector]:
    """Directions r and norms s of the best C_j = s_l·r_j/‖r_j‖, with l the block of column j.

    Args:
        start: directions to start from, shape (n, p). They are returned with norms 1 if that is
            better than the optimum.
        queries: A, with the weights of the objective.
        block: the block of each column, shape (n,).
        theta: θ in s_l² = Σ_{m ≥ l} exp(θ_m) to start from, shape (blocks,). Empty for norms 1.
        orders: power means to minimize one after the other.
    """
    import torch

    from fedmf.mechanisms.optimize import log_mean, optimize

    n, bands = start.shape
    variances = variances_of_band(queries, (n, bands))

    def norms_of_blocks(x: Any) -> Any:
        if theta.size == 0:
            return torch.ones(1, dtype=torch.float64)
        return torch.sqrt(torch.exp(x[: theta.size]).flip(0).cumsum(0).flip(0))

    def loss(x: Any, order: float) -> Any:
        # Entries past row n are 0 and have no slope.
        directions = x[theta.size :].reshape(start.shape)
        norms = norms_of_blocks(x)
        scale = norms[torch.tensor(block)] / torch.linalg.vector_norm(directions, dim=1)
        band = directions * scale[:, None]
        return log_mean(variances(band), queries, order) + torch.log((norms**2).sum())

    x = np.concatenate([theta, start.reshape(-1)])
    for order in orders:
        x = optimize(partial(loss, order=order), x, tolerance=_TOLERANCE)
    optimum = float(loss(torch.tensor(x), orders[-1]))
    start_mean = log_mean(variances(torch.tensor(start)), queries, orders[-1])
    if optimum >= float(start_mean + np.log(max(1, theta.size))):
        return start, np.ones(n)
    return x[theta.size :].reshape(start.shape), norms_of_blocks(torch.tensor(x)).numpy()[block]


cached_banded = disk_cached(banded, version=8)


def _affordable_bands(request: DesignRequest, values: Values) -> float:
    return min(request.separation, _WIDEST, max(1, _MOST_BY_DEFAULT // request.rounds))


register(
    MechanismFamily(
        "banded",
        "the best C with p bands",
        lambda request, values: cached_banded(values["bands"], *request.target, False),
        (SearchedParameter(BANDS, without_search(_affordable_bands)),),
        max_rounds=65_536,
        max_rounds_compared=1024,
        make_normalized=lambda request, values: cached_banded(
            values["bands"], *request.target, True
        ),
        optimized=True,
        entrywise=True,
    )
)
