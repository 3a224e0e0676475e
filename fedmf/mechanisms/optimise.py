"""One optimiser for every mechanism, and what its losses are made of: float64 torch, so that
gradients come free.

A loss is the logarithm of a squared error, the sensitivity of the earliest pattern included. This
module loads torch and SciPy; it is imported where a search begins.
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


def optimise(
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
        loss: of a float64 vector; points where it is not finite do not count.
        start: where to begin.
        lowest: of each coordinate.
        highest: likewise.
        tolerance: it ends at steps that win less, relative to the loss.
        evaluations: of the loss with its gradient, at most.
        unit: the length of the first step.

    Guarantees:
        Never worse than the start.

    References:
        Byrd, Lu, Nocedal & Zhu (1995).

    >>> optimise(lambda x: ((x - 3.0) ** 2).sum(), np.zeros(2), highest=2.0)
    array([2., 2.])
    """
    best = start
    least = np.inf
    bounds: Any = Bounds(np.divide(lowest, unit), np.divide(highest, unit))  # type: ignore[arg-type]

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
        if (latest := float(value.detach())) < least:
            best = point
            least = latest
        return latest, unit * slope.numpy()

    minimize(
        value_and_slope,
        start / unit,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={
            "maxiter": evaluations,
            "maxfun": evaluations,
            "ftol": tolerance,
            "gtol": 1e-9,
            "maxcor": 20 if start.size <= _MANY else 5,  # beyond, steps take longer than losses
        },
    )
    return best


class _Reciprocal(torch.autograd.Function):
    """From h·c = 1 follows dh = −h·h·dc as power series; the adjoint are sums of lagged
    products.
    """

    @staticmethod
    def forward(ctx: Any, c: Tensor, terms: int) -> Tensor:
        ctx.inverse, ctx.terms = reciprocal(c.detach().numpy(), terms), c.numel()
        return torch.tensor(ctx.inverse)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        h = ctx.inverse
        return (
            -torch.tensor(lagged_products(slope.numpy(), multiply(h, h, h.size), ctx.terms).copy()),
            None,
        )


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
    """log (Σ_t (r_t² v_t)^q)^{1/q} of query variances v: of their sum for q = 1, of the largest for
    q → ∞.
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
    """`log_mean` of ‖(A·diag(s)·LTT(h))_{t,:}‖², A the workload with all its weights and s = 1 by
    default.

    Where η·s is constant it is of the running sums of w_t², w = a·h; else of all of the matrix, in
    O(n² log n).

    Args:
        h: first column of C⁻¹, shape (m,), m ≤ n; zero from there on.
        queries: A.
        order: q.
        scale: s, shape (n,).
    """
    n = queries.rounds
    ones = bool((queries.coefficients == 1.0).all())
    if queries.column_weights is not None:
        rates = torch.tensor(queries.column_weights)
        scale = rates if scale is None else rates * scale
    if scale is None and ones and order == 1.0:
        w = torch.cumsum(h, 0)
        later = queries.counted
        settled = w[-1] ** 2 * float(later[w.numel() :].sum())
        return torch.log((torch.tensor(later[: w.numel()]) * w * w).sum() + settled)
    h = padded(h, n)
    if scale is None:
        w = torch.cumsum(h, 0) if ones else series_product(torch.tensor(queries.coefficients), h, n)
        return log_mean(torch.cumsum(w * w, 0), queries, order)
    # Columns in reverse, which leaves the norms of rows as they are.
    rows = torch.nn.functional.pad(h, (n - 1, 0)).unfold(0, n, 1) * scale[:, None]
    made = (
        torch.cumsum(rows, 0)
        if ones
        else series_product(torch.tensor(queries.coefficients), rows, n)
    )
    return log_mean((made * made).sum(1), queries, order)


def log_earliest(c: Tensor, participation: Participation) -> Tensor:
    """log ‖Σ_{l<k} C_{:,lb}‖² for C = LTT(c), c of shape (m,), m ≤ n: what the earliest pattern
    moves.
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
    """Rounds t and weights w with Σ_{t<n} f(t) ≈ Σ_i w_i f(t_i): all of the first 512, then 20 a
    panel.

    Panels double in length and their weights are exact for polynomials of degree 19, so that a sum
    of decaying exponentials of any rates is right to about 1e-7 of itself, for which optima move by
    the square of that.

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
            whole = legendre.legvander((np.arange(start, end) - middle) / half, _NODES - 1).sum(
                axis=0
            )
            share = np.linalg.solve(
                legendre.legvander((nodes - middle) / half, _NODES - 1).T, whole
            )
        places.append(nodes)
        weights.append(share)
        start = end
    return torch.tensor(np.concatenate(places), dtype=torch.float64), torch.tensor(
        np.concatenate(weights)
    )


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
    logs = torch.log(bases)[
        :, None
    ]  # a power and its slope take several times as long as exp and its own
    sums = torch.cumsum(torch.exp(logs * (b * torch.arange(blocks, dtype=torch.float64))), 1)
    if k < blocks:
        sums = torch.cat([sums[:, :k], sums[:, k:] - sums[:, :-k]], 1)
    total = torch.zeros((), dtype=torch.float64)
    for length, some in ((b, sums[:, : n // b]), (n - n // b * b, sums[:, n // b :])):
        if length and some.shape[1]:
            t, count = summation(length)
            made = ((weights[:, None] * torch.exp(logs * t)).T @ some.to(weights.dtype)).real
            begun = 0 if length == b else n // b
            met = torch.arange(begun, begun + some.shape[1]) < k
            made = torch.cat([made[:1] + first * met.to(made.dtype), made[1:]])
            total = total + (count[:, None] * made * made).sum()
    return torch.log(total)
