"""Banded strategy matrices that need not be Toeplitz, and the optimal one (BandMF).

Where LTT(a)⁻¹ has few coefficients, K = C A⁻¹ is banded too, and K⁻¹z is a linear recurrence. Cut into blocks
of s rows, K is block bidiagonal with diagonal blocks L_i and blocks N_i below them, and the covariance of
block i of K⁻¹z is

    Q_0 = L_0⁻¹L_0⁻ᵀ,    Q_{i+1} = L_{i+1}⁻¹(I + N_i Q_i N_iᵀ)L_{i+1}⁻ᵀ.

So the variances of the queries are the diagonals of the Q_i, in O(np²); the dense A C⁻¹ is never formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.cache import remembered
from fedmf.mechanisms.errors import RMSE, Objective
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.registry import BANDS, DesignRequest, Family, Free, Values, at_once, register
from fedmf.mechanisms.series import check_leading, column_factors, reciprocal, trimmed
from fedmf.mechanisms.streaming import Recurrence
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation
from fedmf.typing import Array, Vector

_LONGEST_INVERSE = 8
_CHUNK_ENTRIES = 4_000_000
_SMALLEST_BLOCK = 16
_LARGEST_DENSE = 2048
_LEAST_COUNTED = 1e-4
# Columns of one user overlap for p > b; to bound the sensitivity then takes all of CᵀC.
_LARGEST_OVERLAPPING = 10_240
# A quarter of a million coefficients take a minute.
_MOST_ENTRIES = 2**21
# General banded matrices have n·p coefficients: at n = 4000, p = 64 takes a minute and p = 400 several.
_WIDEST, _MOST_BY_DEFAULT = 64, 2**18


@dataclass(frozen=True, eq=False)
class Banded(Factorization, kind="banded"):
    """A lower-triangular C with p diagonals.

    Args:
        band: shape (n, p), p ≤ n, band[j, d] = C_{j+d,j}; zero where j + d ≥ n; a positive first column.

    Raises:
        ValueError: the band is not a finite matrix of this form.

    References:
        Choquette-Choo et al. (2023), "(Amplified) Banded Matrix Factorization"; McKenna (2024), Algorithm 1.

    >>> Banded([[1.0, 0.5], [2.0, 0.25], [4.0, 0.0]]).materialize()
    array([[1.  , 0.  , 0.  ],
           [0.5 , 2.  , 0.  ],
           [0.  , 0.25, 4.  ]])
    """

    band: Array
    rounds: int = field(init=False)
    stored = ("band",)

    def __post_init__(self) -> None:
        band = np.array(self.band, dtype=np.float64)
        if band.ndim != 2 or not 1 <= band.shape[-1] <= len(band):
            raise ValueError(f"C (band) must have shape (n, p) with 1 <= p <= n; got {band.shape}.")
        if not np.isfinite(band).all():
            j, d = np.argwhere(~np.isfinite(band))[0].tolist()
            raise ValueError(f"C (band) must be finite; got {band[j, d]} at column {j}, diagonal {d}.")
        if not (band[:, 0] > 0).all():
            at = int(np.flatnonzero(band[:, 0] <= 0)[0])
            raise ValueError(f"C_jj (diagonal) must be positive; got {band[at, 0]} at j={at}.")
        outside = _outside(*band.shape)
        if band[outside].any():
            j, d = np.argwhere(outside & (band != 0))[0].tolist()
            raise ValueError(f"C (band) must end at row n={len(band)}; got {band[j, d]} at row {j + d}.")
        band.setflags(write=False)
        object.__setattr__(self, "band", band)
        object.__setattr__(self, "rounds", len(band))

    @property
    def bands(self) -> int:
        """p, the number of diagonals of C down to the last non-zero one."""
        return int(np.flatnonzero(self.band.any(axis=0))[-1]) + 1

    def columns(self, indices: Sequence[int] | NDArray[np.integer]) -> Array:
        """The columns of C with these 0-based indices, shape (n, m)."""
        chosen = np.asarray(indices, dtype=np.int64)
        n, p = self.band.shape
        tall = np.zeros((n + p, chosen.size))
        tall[np.add.outer(np.arange(p), chosen), np.arange(chosen.size)] = self.band[chosen].T
        return tall[:n]

    def column_sum(self, indices: Sequence[int] | NDArray[np.integer]) -> Vector:
        """Σ_j C_{:,j} over distinct 0-based indices j, shape (n,)."""
        chosen = np.asarray(indices, dtype=np.int64)
        n, p = self.band.shape
        total = np.zeros(n + p)
        np.add.at(total, np.add.outer(chosen, np.arange(p)), self.band[chosen])
        return total[:n]

    def gram_diagonal(self, gap: int) -> Vector:
        """[CᵀC]_{i,i+gap} = Σ_d band[i, d + gap]·band[i + gap, d], shape (n − gap,)."""
        n, p = self.band.shape
        if gap >= p:
            return np.zeros(n - gap)
        return np.einsum("id,id->i", self.band[: n - gap, gap:], self.band[gap:, : p - gap])

    def recurrence(self) -> Recurrence:
        """C y = z solved forward, row t with its own coefficients; keeps p − 1 past outputs."""
        n, p = self.rounds, self.bands
        feedback = np.zeros((n, p - 1))
        for lag in range(1, p):
            feedback[lag:, lag - 1] = self.band[: n - lag, lag] / self.band[lag:, 0]
        return Recurrence((1.0 / self.band[:, 0])[:, None], feedback, np.ones(n))

    def noise_row_variances(self) -> Vector:
        """diag(C⁻¹C⁻ᵀ), shape (n,), in O(np²)."""
        return _inverse_row_norms(self.band)

    def query_variances(self, workload: Vector) -> Vector:
        """‖(A C⁻¹)_{t,:}‖², shape (n,).

        O(np²) where A⁻¹ has few coefficients (prefix sums, exponential averages, momentum); else O(n²p) time
        and bounded memory.
        """
        inverse = _few_inverse(workload)
        if inverse is not None:
            return _inverse_row_norms(without_workload(self.band, inverse))
        from scipy.linalg import solve_banded

        n, p = self.band.shape
        transposed = np.zeros((p, n))  # rows of Cᵀ: [Cᵀ]_{j,j+d} = band[j, d]
        for d in range(p):
            transposed[p - 1 - d, d:] = self.band[: n - d, d]
        norms, step = np.empty(n), max(1, _CHUNK_ENTRIES // n)
        for start in range(0, n, step):
            rows = np.arange(start, min(n, start + step))
            lag = np.subtract.outer(rows, np.arange(n)).T
            queries = np.where(lag >= 0, workload[np.maximum(lag, 0)], 0.0)
            solved = solve_banded((0, p - 1), transposed, queries, overwrite_b=True, check_finite=False)
            norms[rows] = np.einsum("jt,jt->t", solved, solved)
        return norms

    def leading(self, rounds: int) -> Banded:
        """The leading T×T block of C."""
        check_leading(rounds, self.rounds)
        band = self.band[:rounds, :rounds].copy()
        band[_outside(*band.shape)] = 0.0
        return Banded(band)

    def columns_divided_by(self, factors: Vector) -> Banded:
        """C with column j divided by s_j."""
        return Banded(self.band / column_factors(factors, self.rounds)[:, None])


def _outside(n: int, p: int) -> NDArray[np.bool_]:
    return np.add.outer(np.arange(n), np.arange(p)) >= n


def _few_inverse(workload: Vector) -> Vector | None:
    """The coefficients of A⁻¹ for A = LTT(workload), if they are few; else None.

    >>> _few_inverse(np.ones(5)), _few_inverse(np.arange(20, 0, -1.0) ** 2)
    (array([ 1., -1.]), None)
    """
    inverse = reciprocal(workload, workload.size)
    largest = np.abs(inverse).max()
    short = trimmed(np.where(np.abs(inverse) > 1e-14 * largest, inverse, 0.0))
    return short if short.size <= _LONGEST_INVERSE else None


def without_workload(band: Any, inverse: Vector) -> Any:
    """The band of C·LTT(inverse) in C's layout, with as many more diagonals as the inverse has lags.

    [C A⁻¹]_{j+d,j} = Σ_m inverse_m·C_{j+d,j+m}. Takes and gives an array or a tensor.

    >>> without_workload(np.array([[1.0, 0.5], [1.0, 0.0]]), np.array([1.0, -1.0]))
    array([[ 1. , -0.5,  0. ],
           [ 1. ,  0. ,  0. ]])
    """
    q = inverse.size
    return sum(
        value * _padded(band[m:], m, q - 1 - m, m) for m, value in enumerate(inverse[: len(band)].tolist())
    )


def _padded(band: Any, before: int, after: int, rows: int) -> Any:
    """With columns of zeros before and after, and rows of zeros below."""
    if isinstance(band, np.ndarray):
        return np.pad(band, ((0, rows), (before, after)))
    import torch

    return torch.nn.functional.pad(band, (before, after, 0, rows))


def _stacked(band: Any) -> Any:
    """L_i above N_i for each block, shape (m, 2s, s); rows past n are of the identity.

    Row c of a block of columns, widened to 2s + 1 and read off at width 2s, moves c places to the right.
    """
    n, width = band.shape
    size = min(n, max(width - 1, _SMALLEST_BLOCK, n // 1024))
    count = -(-n // size)
    wide = _padded(band, 0, 2 * size + 1 - width, count * size - n)
    wide[n:, 0] = 1.0
    return wide.reshape(count, -1)[:, : 2 * size * size].reshape(count, size, 2 * size).swapaxes(1, 2)


def _inverse_row_norms(band: Array) -> Vector:
    """‖(K⁻¹)_{t,:}‖², shape (n,), for K with this band.

    >>> _inverse_row_norms(np.array([[2.0, -1.0], [1.0, 0.0]]))
    array([0.25, 1.25])
    """
    stacked = _stacked(band)
    size = stacked.shape[2]
    inverses = np.where(np.tri(size, dtype=bool), np.linalg.inv(stacked[:, :size]), 0.0)
    covariances = inverses @ inverses.swapaxes(1, 2)
    for i, through in enumerate(inverses[1:] @ stacked[:-1, size:]):
        covariances[i + 1] += through @ covariances[i] @ through.T
    return np.diagonal(covariances, axis1=1, axis2=2).reshape(-1)[: len(band)].copy()


def _inverse_row_norms_of(band: Any) -> Any:
    """The same of a tensor, differentiable."""
    import torch

    stacked = _stacked(band)
    size = stacked.shape[2]
    diagonal, below = stacked.split(size, 1)
    inverses = torch.linalg.solve_triangular(diagonal, torch.eye(size, dtype=torch.float64), upper=False)
    throughs, made = inverses[1:] @ below[:-1], (inverses @ inverses.mT).unbind()
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

    (n, p), inverse = shape, _few_inverse(queries.coefficients)
    rates = (
        torch.ones(n, 1) if queries.column_weights is None else torch.tensor(queries.column_weights)[:, None]
    )
    inside = torch.tensor(~_outside(n, p))
    if inverse is not None:
        return lambda band: _inverse_row_norms_of(without_workload(inside * band / rates, inverse))
    rows, columns = (torch.arange(n)[:, None] + torch.arange(p))[inside], torch.where(inside)[0]
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
        ValueError: the objective leaves queries out, p is out of range, A⁻¹ has many coefficients and n >
            2048, p > b, k > 1 and n > 10240, or n·p > 2,097,152.

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
    if n > _LARGEST_DENSE and _few_inverse(queries.coefficients) is None:
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
    c = banded_toeplitz(bands, participation, objective=objective).coefficients
    start = np.where(_outside(n, bands), 0.0, np.pad(c, (0, bands - c.size)))
    start = start / np.linalg.norm(start, axis=1, keepdims=True)
    block = None if equal_norms or k == 1 else np.minimum(np.arange(n) // b, k - 1)
    directions, norms = _minimised(start, queries, block, objective.orders)
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


def _minimised(
    start: Array, queries: ToeplitzWorkload, block: NDArray[np.int64] | None, orders: tuple[float, ...]
) -> tuple[Array, Vector]:
    """Over directions r of C_j = s_j·r_j/‖r_j‖ and, with blocks, over θ in s_l² = Σ_{m ≥ l} exp(θ_m).

    The norms start as in the optimal diagonal matrix. The start with equal norms is returned if it is
    better than what was found.
    """
    import torch

    from fedmf.mechanisms.optimise import log_mean, optimise

    n, steps, variances = (
        len(start),
        np.zeros(0),
        variances_of_band(queries, (start.shape[0], start.shape[1])),
    )
    if block is not None:
        squares = np.sqrt(1.0 - np.searchsorted(block, np.arange(block[-1] + 1)) / n)
        steps = np.log(squares - np.append(squares[1:], 0.0))

    def norms_of(x: Any) -> Any:
        if block is None:
            return torch.ones(1, dtype=torch.float64)
        return torch.sqrt(torch.exp(x[: steps.size]).flip(0).cumsum(0).flip(0))

    def loss(x: Any, order: float) -> Any:
        # Entries past row n are 0 and have no slope.
        directions, norms = x[steps.size :].reshape(start.shape), norms_of(x)
        scale = norms if block is None else norms[torch.tensor(block)]
        band = directions * (scale / torch.linalg.vector_norm(directions, dim=1))[:, None]
        return log_mean(variances(band), queries, order) + torch.log((norms**2).sum())

    x = np.concatenate([steps, start.reshape(-1)])
    for order in orders:
        last = order == orders[-1]
        x = optimise(lambda x, order=order: loss(x, order), x, tolerance=2e-12 if last else 1e-9)
    found = float(loss(torch.tensor(x), orders[-1]))
    equal = float(log_mean(variances(torch.tensor(start)), queries, orders[-1]) + np.log(max(1, steps.size)))
    if found >= equal:
        return start, np.ones(n)
    norms = np.ones(n) if block is None else norms_of(torch.tensor(x)).numpy()[block]
    return x[steps.size :].reshape(start.shape), norms


remembered_banded = remembered(banded, version=7)


def _affordable_width(request: DesignRequest, values: Values) -> float:
    return min(request.separation, _WIDEST, max(1, _MOST_BY_DEFAULT // request.rounds))


register(
    Family(
        "banded",
        "the best C with p bands",
        lambda ask, v: remembered_banded(v["bands"], *ask.target, False),
        (Free(BANDS, at_once(_affordable_width)),),
        largest=65_536,
        largest_compared=1024,
        make_normalized=lambda ask, v: remembered_banded(v["bands"], *ask.target, True),
        optimized=True,
        entrywise=True,
    )
)
