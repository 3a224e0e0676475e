"""Banded strategy matrices that need not be Toeplitz, and the optimal one (BandMF)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.cache import remembered
from fedmf.mechanisms.errors import RMSE, Objective, PowerMean
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.optimise import Descent, single_threaded
from fedmf.mechanisms.registry import BANDS, DesignRequest, Family, Free, Values, at_once, register
from fedmf.mechanisms.series import check_leading, column_factors, reciprocal, trimmed
from fedmf.mechanisms.streaming import Recurrence
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation
from fedmf.typing import Array, Vector

_SMALLEST_BLOCK = 16


def inverse_norm(band: Array, weigh: Callable[[Vector], Vector]) -> tuple[float, Array]:
    """Σ_t v_t‖(K⁻¹)_{t,:}‖², v held fixed in its gradient with respect to the entries of K inside the band.

    The derivative with respect to Q_i is Λ_i = diag(v of block i) + N_iᵀTᵀΛ_{i+1}T N_i with T = L_{i+1}⁻¹;
    the gradient is 2TᵀΛ_{i+1}T N_i Q_i in N_i and −2TᵀΛ_{i+1}Q_{i+1} in L_{i+1}.

    Args:
        band: shape (n, w + 1), band[j, d] = K_{j+d,j}, zero where j + d ≥ n; K_{jj} ≠ 0.
        weigh: v, shape (n,), from the squared row norms of K⁻¹.

    Returns:
        The value and the gradient, of the band's shape, zero where j + d ≥ n. (inf, 0) on overflow.

    >>> inverse_norm(np.array([[2.0, -1.0], [1.0, 0.0]]), np.ones_like)
    (1.5, array([[-0.5, -0.5],
           [-2.5,  0. ]]))
    """
    diagonal, below = _blocks(band)
    size = diagonal.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        inverses, throughs, covariances = _covariances(diagonal, below)
        norms = np.diagonal(covariances, axis1=1, axis2=2).reshape(-1)[: len(band)]
        counted = np.zeros((len(diagonal), size))
        counted.reshape(-1)[: len(band)] = weigh(norms)
        value = float(np.einsum("ij,ijj->", counted, covariances))
    if not np.isfinite(value) or value > 1e200:
        return float("inf"), np.zeros_like(band)
    adjoints = np.zeros_like(covariances)
    np.einsum("ijj->ij", adjoints)[...] = counted
    for i in range(len(diagonal) - 1, 0, -1):
        adjoints[i - 1] += throughs[i - 1].T @ adjoints[i] @ throughs[i - 1]
    solved = inverses.swapaxes(1, 2) @ adjoints
    slopes = np.zeros((len(diagonal), 2 * size, size))
    np.matmul(-2.0 * solved, covariances, out=slopes[:, :size])
    np.matmul(2.0 * solved[1:] @ throughs, covariances[:-1], out=slopes[:-1, size:])
    return value, _gathered(slopes, band.shape)


def inverse_row_norms(band: Array) -> Array:
    """‖(K⁻¹)_{t,:}‖², shape (n,); see `inverse_norm` for the band.

    >>> inverse_row_norms(np.array([[2.0, -1.0], [1.0, 0.0]]))
    array([0.25, 1.25])
    """
    covariances = _covariances(*_blocks(band))[2]
    return np.diagonal(covariances, axis1=1, axis2=2).reshape(-1)[: len(band)].copy()


def _block_size(n: int, width: int) -> int:
    return min(n, max(width - 1, _SMALLEST_BLOCK))


def _columns(stacked: Array, width: int) -> Array:
    """Entry [i, c, d] is that of diagonal d in column c of the i-th L above the N below it: a view.

    Diagonals from s + 1 on are of no column: they occur only where all of K is one block, and are zero there.
    """
    count, _, size = stacked.shape
    block, row, entry = stacked.strides
    shape, strides = (count, size, min(width, size + 1)), (block, row + entry, row)
    return np.lib.stride_tricks.as_strided(stacked, shape, strides)


def _blocks(band: Array) -> tuple[Array, Array]:
    """L of shape (m, s, s) and N of shape (m − 1, s, s); rows past n are those of the identity."""
    n, width = band.shape
    size = _block_size(n, width)
    stacked = np.zeros((-(-n // size), 2 * size, size))
    columns = _columns(stacked, width)
    whole, rest = divmod(n, size)
    columns[:whole] = band[: n - rest, : columns.shape[2]].reshape(whole, size, -1)
    if rest:
        columns[-1, :rest] = band[n - rest :, : columns.shape[2]]
        columns[-1, rest:, 0] = 1.0
    return stacked[:, :size], stacked[:-1, size:]


def _covariances(diagonal: Array, below: Array) -> tuple[Array, Array, Array]:
    """L_i⁻¹ and Q_i for every block, and L_{i+1}⁻¹N_i."""
    inverses = _lower_inverses(diagonal)
    throughs = inverses[1:] @ below
    covariances = inverses @ inverses.swapaxes(1, 2)
    for i, through in enumerate(throughs):
        covariances[i + 1] += through @ covariances[i] @ through.T
    return inverses, throughs, covariances


def _lower_inverses(blocks: Array) -> Array:
    """L⁻¹ of lower-triangular blocks, shape (m, s, s), by halves.

    Only NumPy's BLAS: SciPy brings its own threads, and two pools that take turns wait for each other.
    """
    count, size, _ = blocks.shape
    if size <= _SMALLEST_BLOCK:
        return np.where(np.tri(size, dtype=bool), np.linalg.inv(blocks), 0.0)
    half = size // 2
    if size % 2:
        first, last = _lower_inverses(blocks[:, :half, :half]), _lower_inverses(blocks[:, half:, half:])
    else:
        halves = np.concatenate([blocks[:, :half, :half], blocks[:, half:, half:]])
        first, last = np.split(_lower_inverses(halves), [count])
    inverses = np.zeros_like(blocks)
    inverses[:, :half, :half], inverses[:, half:, half:] = first, last
    np.negative(last @ blocks[:, half:, :half] @ first, out=inverses[:, half:, :half])
    return inverses


def _gathered(stacked: Array, shape: tuple[int, int]) -> Array:
    """The blocks' entries inside the band, in the band's layout."""
    n, width = shape
    columns = _columns(stacked, width)
    band = np.zeros(shape)
    whole, rest = divmod(n, stacked.shape[2])
    band[: n - rest, : columns.shape[2]] = columns[:whole].reshape(n - rest, -1)
    if rest:
        band[n - rest :, : columns.shape[2]] = columns[-1, :rest]
    for j in range(max(0, n - width + 1), n):
        band[j, n - j :] = 0.0
    return band


_LONGEST_INVERSE = 8
_CHUNK_ENTRIES = 4_000_000


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
        outside = np.add.outer(np.arange(len(band)), np.arange(band.shape[1])) >= len(band)
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
        rows = np.add.outer(chosen, np.arange(p)).reshape(-1)
        total = np.zeros(n + p)
        np.add.at(total, rows, self.band[chosen].reshape(-1))
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
        return inverse_row_norms(self.band)

    def query_variances(self, workload: Vector) -> Vector:
        """‖(A C⁻¹)_{t,:}‖², shape (n,).

        O(np²) where A⁻¹ has few coefficients (prefix sums, exponential averages, momentum), as that of the
        inverse of the banded C A⁻¹; else O(n²p) time and bounded memory.
        """
        inverse = workload_inverse(workload)
        if inverse is not None:
            return inverse_row_norms(without_workload(self.band, inverse))
        return self._general_query_variances(workload)

    def _general_query_variances(self, workload: Vector) -> Vector:
        from scipy.linalg import solve_banded

        n, p = self.band.shape
        transposed = np.zeros((p, n))  # rows of Cᵀ: [Cᵀ]_{j,j+d} = band[j, d]
        for d in range(p):
            transposed[p - 1 - d, d:] = self.band[: n - d, d]
        norms = np.empty(n)
        step = max(1, _CHUNK_ENTRIES // n)
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
        band[np.add.outer(np.arange(rounds), np.arange(band.shape[1])) >= rounds] = 0.0
        return Banded(band)

    def columns_divided_by(self, factors: Vector) -> Banded:
        """C with column j divided by s_j."""
        return Banded(self.band / column_factors(factors, self.rounds)[:, None])


def workload_inverse(workload: Vector) -> Vector | None:
    """The coefficients of A⁻¹ for A = LTT(workload), if they are few; else None.

    >>> workload_inverse(np.ones(5)), workload_inverse(np.arange(20, 0, -1.0) ** 2)
    (array([ 1., -1.]), None)
    """
    inverse = reciprocal(workload, workload.size)
    largest = np.abs(inverse).max()
    short = trimmed(np.where(np.abs(inverse) > 1e-14 * largest, inverse, 0.0))
    return short if short.size <= _LONGEST_INVERSE else None


def without_workload(band: Array, inverse: Vector) -> Array:
    """The band of C·LTT(inverse) in C's layout, with as many more diagonals as the inverse has lags.

    [C A⁻¹]_{j+d,j} = Σ_m inverse_m·C_{j+d,j+m}.

    >>> without_workload(np.array([[1.0, 0.5], [1.0, 0.0]]), np.array([1.0, -1.0]))
    array([[ 1. , -0.5,  0. ],
           [ 1. ,  0. ,  0. ]])
    """
    n, p = band.shape
    wide = np.zeros((n, p + inverse.size - 1))
    wide[:, :p] = inverse[0] * band
    for m, value in enumerate(inverse[1:n], 1):
        wide[: n - m, m : m + p] += value * band[m:]
    return wide


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

    n = participation.rounds
    c = banded_toeplitz(bands, participation, objective=objective).coefficients
    inside = np.add.outer(np.arange(n), np.arange(bands)) < n
    band = np.where(inside, np.pad(c, (0, bands - c.size)), 0.0)
    return band / np.linalg.norm(band, axis=1, keepdims=True)


# General banded matrices have n·p coefficients: at n = 4000, p = 64 takes a minute and p = 400 several.
_WIDEST_BANDED, _MOST_COMPARED = 64, 2**18
_banded = lru_cache(maxsize=8)(remembered(single_threaded(banded), version=5))


def _affordable_width(request: DesignRequest, values: Values) -> float:
    return min(request.separation, _WIDEST_BANDED, max(1, _MOST_COMPARED // request.rounds))


register(
    Family(
        "banded",
        "the best C with p bands",
        lambda ask, v: _banded(v["bands"], *ask.target, equal_norms=False),
        (Free(BANDS, at_once(_affordable_width)),),
        largest=65_536,
        largest_compared=1024,
        normalize=lambda make: lambda ask, v: _banded(v["bands"], *ask.target, equal_norms=True),
        optimized=True,
        entrywise=True,
    )
)
