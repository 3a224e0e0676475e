"""The optimizer of every mechanism, and the parts of its losses, in float64 torch.

A loss is the logarithm of a squared error, the sensitivity of the earliest pattern included.
Gradients come from automatic differentiation. This module loads torch and SciPy, so that it is
imported where a search begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import Bounds, minimize
from torch import Tensor

from fedmf.matrices.arrays import Vector
from fedmf.matrices.series import multiply, reciprocal
from fedmf.mechanisms.power_series import lagged_products
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.participation import Participation

Loss = Callable[[Tensor], Tensor]

#: The value of points where a loss overflows, far above the logarithm of any error.
REJECTED = 1e3
_MANY = 10_000
# Terms of a sum over rounds that are taken one by one, and nodes in each of the panels behind them.
_EXACT = 512
_NODES = 20


def optimize(
    loss: Loss,
    start: Vector,
    lowest: Vector | float = -np.inf,
    highest: Vector | float = np.inf,
    tolerance: float = 1e-15,
    evaluations: int = 3000,
    unit: float = 1.0,
) -> Vector:
    """A local minimum by L-BFGS-B, its gradient by automatic differentiation.

    Args:
        loss: a function of a float64 vector; points where it is not finite do not count.
        start: where to begin.
        lowest: lower bounds of the coordinates.
        highest: upper bounds of the coordinates.
        tolerance: the search ends at steps that gain less than this, relative to the loss.
        evaluations: the largest number of evaluations of the loss with its gradient.
        unit: the length of the first step.

    Guarantees:
        Never worse than the start.

    References:
        Byrd, Lu, Nocedal & Zhu (1995).

    >>> optimize(lambda x: ((x - 3.0) ** 2).sum(), np.zeros(2), highest=2.0)
    array([2., 2.])
    """
    best = start
    least = np.inf
    scaled_lowest: Any = np.divide(lowest, unit)
    scaled_highest: Any = np.divide(highest, unit)

    def value_and_slope(scaled: Vector) -> tuple[float, Vector]:
        nonlocal best, least
        point = unit * scaled
        variable = torch.tensor(point, requires_grad=True)
        value = loss(variable)
        if not bool(torch.isfinite(value)):
            return REJECTED, np.zeros_like(point)
        (slope,) = torch.autograd.grad(value, variable)
        if not bool(torch.isfinite(slope).all()):
            return REJECTED, np.zeros_like(point)
        error = float(value.detach())
        if error < least:
            best = point
            least = error
        return error, unit * slope.numpy()

    corrections = 20
    if start.size > _MANY:
        corrections = 5  # with more, steps would take longer than losses

    minimize(
        value_and_slope,
        start / unit,
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(scaled_lowest, scaled_highest),
        options={
            "maxiter": evaluations,
            "maxfun": evaluations,
            "ftol": tolerance,
            "gtol": 1e-9,
            "maxcor": corrections,
        },
    )
    return best


class _Reciprocal(torch.autograd.Function):
    """The reciprocal h = 1/c of a power series.

    h·c = 1 gives dh = −h·h·dc, so that the gradient is a sum of lagged products.
    """

    @staticmethod
    def forward(ctx: Any, c: Tensor, terms: int) -> Tensor:
        ctx.inverse = reciprocal(c.detach().numpy(), terms)
        ctx.terms = c.numel()
        return torch.tensor(ctx.inverse)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        h = ctx.inverse
        products = lagged_products(slope.numpy(), multiply(h, h, h.size), ctx.terms)
        return -torch.tensor(products.copy()), None


def series_reciprocal(c: Tensor, terms: int) -> Tensor:
    """The first coefficients of 1/c(x), differentiable."""
    return _Reciprocal.apply(c, terms)  # type: ignore[no-any-return]


def series_product(left: Tensor, right: Tensor, terms: int) -> Tensor:
    """The first coefficients of a product of two series, along the first axis of the right one."""
    size = 1 << (left.shape[0] + right.shape[0] - 2).bit_length()
    spectrum = torch.fft.rfft(left, size).reshape(-1, *[1] * (right.ndim - 1))
    return torch.fft.irfft(spectrum * torch.fft.rfft(right, size, dim=0), size, dim=0)[:terms]


def padded(series: Tensor, terms: int) -> Tensor:
    """The series with zeros behind it, shape (terms,)."""
    return torch.nn.functional.pad(series, (0, terms - series.shape[0]))


def log_mean(variances: Tensor, queries: ToeplitzWorkload, order: float = 1.0) -> Tensor:
    """The log power mean log (Σ_t (r_t² v_t)^q)^{1/q} of query variances v.

    It is the logarithm of their sum for q = 1, and of the largest for q → ∞.
    """
    if queries.row_weights is not None:
        counted = torch.tensor(queries.row_weights > 0)
        variances = (variances * torch.tensor(queries.row_weights**2))[counted]
    if order == 1.0:
        return torch.log(variances.sum())
    return torch.logsumexp(order * torch.log(variances), 0) / order


def log_error(
    h: Tensor, queries: ToeplitzWorkload, order: float = 1.0, scale: Tensor | None = None
) -> Tensor:
    """The `log_mean` of ‖(A·diag(s)·LTT(h))_{t,:}‖², with all weights of the workload A.

    Where η·s is constant, these are running sums of w_t² with w = a·h. Otherwise they take the
    whole matrix, in O(n² log n).

    Args:
        h: first column of C⁻¹, shape (m,), m ≤ n; zero from there on.
        queries: A.
        order: q.
        scale: s, shape (n,); 1 by default.
    """
    n = queries.rounds
    ones = bool((queries.coefficients == 1.0).all())
    if queries.column_weights is not None:
        rates = torch.tensor(queries.column_weights)
        if scale is not None:
            rates = rates * scale
        scale = rates
    if scale is None and ones and order == 1.0:
        w = torch.cumsum(h, 0)
        later = queries.counted
        settled = w[-1] ** 2 * float(later[w.numel() :].sum())
        return torch.log((torch.tensor(later[: w.numel()]) * w * w).sum() + settled)
    h = padded(h, n)
    if scale is None:
        w = _applied(queries, h, ones)
        return log_mean(torch.cumsum(w * w, 0), queries, order)
    # Columns in reverse, which leaves the norms of rows as they are.
    rows = torch.nn.functional.pad(h, (n - 1, 0)).unfold(0, n, 1) * scale[:, None]
    product = _applied(queries, rows, ones)
    return log_mean((product * product).sum(1), queries, order)


def _applied(queries: ToeplitzWorkload, rows: Tensor, ones: bool) -> Tensor:
    """LTT(a) times a vector or matrix; running sums where all a are ones."""
    if ones:
        return torch.cumsum(rows, 0)
    return series_product(torch.tensor(queries.coefficients), rows, queries.rounds)


def log_earliest(c: Tensor, participation: Participation) -> Tensor:
    """The log squared sensitivity to the earliest pattern, log ‖Σ_{l<k} C_{:,lb}‖².

    C = LTT(c) with c of shape (m,), m ≤ n.
    """
    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    if c.shape[0] <= b:  # the columns do not meet
        counts = np.minimum(k, -(-(n - np.arange(c.shape[0])) // b)).astype(np.float64)
        return torch.log((torch.tensor(counts) * c * c).sum())
    blocks = -(-n // b)
    sums = torch.cumsum(padded(c, blocks * b).reshape(blocks, b), 0)
    if k < blocks:
        sums = torch.cat([sums[:k], sums[k:] - sums[:-k]])
    return torch.log((sums.reshape(-1)[:n] ** 2).sum())


@lru_cache(maxsize=16)
def summation(rounds: int) -> tuple[Tensor, Tensor]:
    """Rounds t and weights w with Σ_{t<n} f(t) ≈ Σ_i w_i f(t_i).

    These are all of the first 512 rounds, then 20 per panel. Panels double in length and their
    weights are exact for polynomials of degree 19, so that a sum of decaying exponentials of any
    rates is right to about 1e-7 of itself, for which optima move by the square of that.

    >>> t, w = summation(100_000)
    >>> t.numel(), round(float(w @ 0.9999**t) * (1.0 - 0.9999) / (1 - 0.9999**100_000), 6)
    (672, 1.0)
    """
    places = [np.arange(min(rounds, _EXACT))]
    weights = [np.ones(min(rounds, _EXACT))]
    start = _EXACT
    legendre = np.polynomial.legendre
    while start < rounds:
        end = min(2 * start, rounds)
        if end - start <= 2 * _NODES:
            nodes = np.arange(start, end)
            share = np.ones(end - start)
        else:
            middle = 0.5 * (start + end - 1)
            half = 0.5 * (end - 1 - start)
            nodes = np.rint(middle + half * legendre.leggauss(_NODES)[0])
            panel = np.arange(start, end)
            sums = legendre.legvander((panel - middle) / half, _NODES - 1).sum(axis=0)
            values = legendre.legvander((nodes - middle) / half, _NODES - 1)
            share = np.linalg.solve(values.T, sums)
        places.append(nodes)
        weights.append(share)
        start = end
    t = torch.tensor(np.concatenate(places), dtype=torch.float64)
    return t, torch.tensor(np.concatenate(weights))


def log_earliest_exponentials(
    first: Tensor | float, weights: Tensor, bases: Tensor, participation: Participation
) -> Tensor:
    """`log_earliest` for c_t = f·[t = 0] + Σ_i ρ_i λ_i^t, in a time that hardly depends on n.

    Round Bb + u holds Σ_i ρ_i λ_i^u·G_{iB} with G_{iB} = Σ_{j=B−k+1..B, j≥0} λ_i^{jb}.

    Args:
        first: f.
        weights: ρ, shape (m,), real or complex.
        bases: λ, shape (m,), 0 < |λ| ≤ 1, positive where real.
        participation: (n, k, b).
    """
    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    blocks = -(-n // b)
    # A power and its slope take several times as long as exp and its own.
    logs = torch.log(bases)[:, None]
    sums = torch.cumsum(torch.exp(logs * (b * torch.arange(blocks, dtype=torch.float64))), 1)
    if k < blocks:
        sums = torch.cat([sums[:, :k], sums[:, k:] - sums[:, :-k]], 1)
    # All complete blocks of b rounds, then the last one where it is shorter.
    complete = n // b
    total = torch.zeros((), dtype=torch.float64)
    for first_block, last_block, length in ((0, complete, b), (complete, blocks, n - complete * b)):
        if first_block == last_block or length == 0:
            continue
        t, count = summation(length)
        block_sums = sums[:, first_block:last_block].to(weights.dtype)
        moved = ((weights[:, None] * torch.exp(logs * t)).T @ block_sums).real
        participates = torch.arange(first_block, last_block) < k
        moved = torch.cat([moved[:1] + first * participates.to(moved.dtype), moved[1:]])
        total = total + (count[:, None] * moved * moved).sum()
    return torch.log(total)
