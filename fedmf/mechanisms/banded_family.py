"""The optimal banded strategy matrix (BandMF)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.banded import Banded, beyond_last_row, stacked_blocks
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.design_cache import remembered
from fedmf.mechanisms.objective import RMSE, Objective
from fedmf.mechanisms.query_variances import few_inverse, without_workload
from fedmf.mechanisms.registry import (
    BANDS,
    DesignRequest,
    MechanismFamily,
    SearchedParameter,
    Values,
    at_once,
    register,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation

_LARGEST_DENSE = 2048
_LEAST_COUNTED = 1e-4
# Columns of one user overlap for p > b; to bound the sensitivity then takes all of CᵀC.
_LARGEST_OVERLAPPING = 10_240
# A quarter of a million coefficients take a minute.
_MOST_ENTRIES = 2**21
# General banded matrices have n·p coefficients: at n = 4000, p = 64 takes a minute and p = 400
# several.
_WIDEST = 64
_MOST_BY_DEFAULT = 2**18


def _inverse_row_norms_of(band: Any) -> Any:
    """The same of a tensor, differentiable."""
    import torch

    stacked = stacked_blocks(band)
    size = stacked.shape[2]
    diagonal, below = stacked.split(size, 1)
    inverses = torch.linalg.solve_triangular(
        diagonal, torch.eye(size, dtype=torch.float64), upper=False
    )
    throughs = inverses[1:] @ below[:-1]
    made = (inverses @ inverses.mT).unbind()
    covariances = [made[0]]
    for own, through in zip(made[1:], throughs.unbind(), strict=True):
        covariances.append(own + through @ covariances[-1] @ through.T)
    return torch.cat([covariance.diagonal() for covariance in covariances])[: len(band)]


def variances_of_band(queries: ToeplitzWorkload, shape: tuple[int, int]) -> Any:
    """The variances of queries ‖(LTT(a)·diag(η)·C⁻¹)_{t,:}‖² as a function of the band of C.

    References:
        McKenna (2024), Algorithm 3.
    """
    import torch

    n, p = shape
    inverse = few_inverse(queries.coefficients)
    rates = (
        torch.ones(n, 1)
        if queries.column_weights is None
        else torch.tensor(queries.column_weights)[:, None]
    )
    inside = torch.tensor(~beyond_last_row(n, p))
    if inverse is not None:
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
    """Minimise the objective over p-banded C; column norms are equal or fall from block to block.

    For p ≤ b the columns that one user meets are orthogonal, so that sens_{k,b}(C)² is the largest
    sum of squared column norms over a pattern. With equal norms it is k (BandMF). Otherwise column
    j has norm s_l in the block l = min(⌊j/b⌋, k − 1) of rounds, and s_0 ≥ s_1 ≥ …: the l-th round
    of a pattern is at least lb, hence sens² = Σ_l s_l². Early rounds enter more queries and get
    less noise. For p = b = 1 these are the diagonal matrices; for k = 1 the two forms are the same.
    For p > b columns overlap, which the objective does not see.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A; prefix sums by default. Row weights below 1e-4 of the largest count as that.
        objective: which error; it must count every query.
        equal_norms: whether all columns have norm 1, as amplification by cyclic sampling wants
            them.

    Returns:
        C, its first column of norm 1.

    Raises:
        ValueError: the objective leaves queries out, p is out of range, A⁻¹ has many coefficients
            and n > 2048, p > b, k > 1 and n > 10240, or n·p > 2,097,152.

    Guarantees:
        For p ≤ b no worse than the column-normalised optimal banded Toeplitz matrix, from which it
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
    queries = counting_all_rows(objective.queries(prefix(n) if workload is None else workload))
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
    block = None if equal_norms or k == 1 else np.minimum(np.arange(n) // b, k - 1)
    directions, norms = _minimised(start, queries, block, objective.orders)
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


def _minimised(
    start: Array,
    queries: ToeplitzWorkload,
    block: NDArray[np.int64] | None,
    orders: tuple[float, ...],
) -> tuple[Array, Vector]:
    """Over directions r of C_j = s_j·r_j/‖r_j‖ and, with blocks, over θ in s_l² = Σ_{m ≥ l}
    exp(θ_m).

    The norms start as in the optimal diagonal matrix. The start with equal norms is returned if it
    is better than what was found.
    """
    import torch

    from fedmf.mechanisms.optimise import log_mean, optimise

    n = len(start)
    steps = np.zeros(0)
    variances = variances_of_band(queries, (start.shape[0], start.shape[1]))
    if block is not None:
        squares = np.sqrt(1.0 - np.searchsorted(block, np.arange(block[-1] + 1)) / n)
        steps = np.log(squares - np.append(squares[1:], 0.0))

    def norms_of(x: Any) -> Any:
        if block is None:
            return torch.ones(1, dtype=torch.float64)
        return torch.sqrt(torch.exp(x[: steps.size]).flip(0).cumsum(0).flip(0))

    def loss(x: Any, order: float) -> Any:
        # Entries past row n are 0 and have no slope.
        directions = x[steps.size :].reshape(start.shape)
        norms = norms_of(x)
        scale = norms if block is None else norms[torch.tensor(block)]
        band = directions * (scale / torch.linalg.vector_norm(directions, dim=1))[:, None]
        return log_mean(variances(band), queries, order) + torch.log((norms**2).sum())

    x = np.concatenate([steps, start.reshape(-1)])
    for order in orders:
        last = order == orders[-1]
        x = optimise(lambda x, order=order: loss(x, order), x, tolerance=2e-12 if last else 1e-9)
    found = float(loss(torch.tensor(x), orders[-1]))
    equal = float(
        log_mean(variances(torch.tensor(start)), queries, orders[-1]) + np.log(max(1, steps.size))
    )
    if found >= equal:
        return start, np.ones(n)
    norms = np.ones(n) if block is None else norms_of(torch.tensor(x)).numpy()[block]
    return x[steps.size :].reshape(start.shape), norms


remembered_banded = remembered(banded, version=7)


def _affordable_width(request: DesignRequest, values: Values) -> float:
    return min(request.separation, _WIDEST, max(1, _MOST_BY_DEFAULT // request.rounds))


register(
    MechanismFamily(
        "banded",
        "the best C with p bands",
        lambda ask, v: remembered_banded(v["bands"], *ask.target, False),
        (SearchedParameter(BANDS, at_once(_affordable_width)),),
        largest=65_536,
        largest_compared=1024,
        make_normalized=lambda ask, v: remembered_banded(v["bands"], *ask.target, True),
        optimized=True,
        entrywise=True,
    )
)
