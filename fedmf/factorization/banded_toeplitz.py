"""The optimal p-banded Toeplitz strategy matrix for prefix sums under (k, b)-min-separation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.closed_form import bsr
from fedmf.factorization.separated import comb_sum, comb_sum_adjoint
from fedmf.factorization.series import multiply, reciprocal
from fedmf.factorization.toeplitz import Toeplitz
from fedmf.participation import Participation

__all__ = ["banded_toeplitz", "log_objective"]

Vector = NDArray[np.float64]

_OPTIONS = {"maxiter": 20_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 30}
_SMALL_GRADIENT = 1e-7
_MOST_BOXES = 60


def log_objective(c: Vector, participation: Participation) -> tuple[float, Vector]:
    """log(‖S c‖²·Σ_t (n − t) w_t²) and its gradient, with w = LTT(c)⁻¹1, t = 0 … n−1.

    S c = Σ_{l<k} (c shifted by lb) is the sum of the earliest columns, whose norm is the sensitivity for
    p ≤ b and for non-negative non-increasing c; the other factor is ‖A C⁻¹‖_F². With v = LTT(c)⁻ᵀ(n − t)w,
    its derivative in c_j is −2·Σ_t v_t w_{t−j}.

    Args:
        c: shape (p,), c_0 > 0.
        participation: (n, k, b).

    Returns:
        The value and the gradient, shape (p,). (inf, 0) where w overflows.

    References:
        McKenna (2024), Section 3.2 and Appendix A.
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    inverse = reciprocal(c, n)
    with np.errstate(over="ignore", invalid="ignore"):
        w = np.cumsum(inverse)
        weighted = np.arange(n, 0, -1) * w
        error = float(weighted @ w)
    if not np.isfinite(error) or error > 1e200:
        return float("inf"), np.zeros_like(c)
    adjoint = multiply(inverse, weighted[::-1], n)[::-1]
    slope = -2.0 * multiply(w, adjoint[::-1], n)[::-1][: c.size]
    columns = comb_sum(np.pad(c, (0, n - c.size)), k, b)
    square = float(columns @ columns)
    slope_square = 2.0 * comb_sum_adjoint(columns, k, b)[: c.size]
    return float(np.log(square) + np.log(error)), slope_square / square + slope / error


def banded_toeplitz(bands: int, participation: Participation, start: Vector | None = None) -> Toeplitz:
    """Minimise the RMSE of prefix sums over C = LTT(c), c ∈ R^p, c_0 = 1, by L-BFGS.

    For p ≤ b all c compete, and the sensitivity is that of orthogonal columns. For p > b only non-negative
    non-increasing c do, for which the sensitivity in the objective is exact.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        start: c to start from, shape (p,), c_0 > 0, with an inverse that does not overflow; the banded square
            root by default.

    Returns:
        C with a unit diagonal.

    Raises:
        ValueError: p is out of range or the start's inverse overflows.

    Guarantees:
        No worse than the start. From the default start with p ≤ b the gradient of the log objective ends
        below 1e-5 in every coordinate (`log_objective`).

    >>> banded_toeplitz(2, Participation(8, 1, 8)).coefficients.round(3)
    array([1.   , 0.524])
    """
    initial = bsr(bands, participation.rounds).coefficients if start is None else start / start[0]
    at_start = log_objective(initial, participation)[0]
    if not np.isfinite(at_start):
        raise ValueError(
            f"start (coefficients) must have a finite inverse over n={participation.rounds} rounds; "
            "got overflow. Use smaller coefficients."
        )
    if bands == 1:
        return Toeplitz(initial, participation.rounds)
    minimize = _minimize_free if bands <= participation.min_separation else _minimize_monotone
    best = minimize(initial, participation)
    if log_objective(best, participation)[0] > at_start:
        best = initial
    return Toeplitz(best, participation.rounds)


def _minimize_free(initial: Vector, participation: Participation) -> Vector:
    """L-BFGS over c_1 … c_{p−1} in a box that moves along until the gradient vanishes.

    Outside the minimum phase (zeros of c inside the unit circle) the objective grows exponentially with n and
    overflows; a line search that meets such a point gives up. The box keeps the steps short of it.
    """
    from scipy.optimize import minimize

    def objective(tail: Vector) -> tuple[float, Vector]:
        value, slope = log_objective(np.concatenate([[1.0], tail]), participation)
        return value, slope[1:]

    x, radius = initial[1:], 0.1
    for _ in range(_MOST_BOXES):
        found = minimize(
            objective,
            x,
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(x - radius, x + radius, strict=True)),
            options=_OPTIONS,
        )
        moved = bool(np.abs(found.x - x).max() > 1e-3 * radius)
        x = found.x
        if np.abs(objective(x)[1]).max() <= _SMALL_GRADIENT:
            break
        radius *= 1.0 if moved else 0.25
    return np.concatenate([[1.0], x])


def _minimize_monotone(initial: Vector, participation: Participation) -> Vector:
    """L-BFGS-B over the steps δ ≥ 0 with c_j = Σ_{l ≥ j} δ_l.

    The objective does not change with the scale of c, so c_0 = Σ δ is free and divided out at the end.
    """
    from scipy.optimize import minimize

    def objective(steps: Vector) -> tuple[float, Vector]:
        value, slope = log_objective(np.cumsum(steps[::-1])[::-1], participation)
        return value, np.cumsum(slope)

    steps = np.append(initial[:-1] - initial[1:], initial[-1])
    bounds = [(0.0, None)] * initial.size
    found = minimize(objective, steps, jac=True, method="L-BFGS-B", bounds=bounds, options=_OPTIONS)
    c = np.cumsum(found.x[::-1])[::-1]
    return c / c[0]
