"""The optimal p-banded Toeplitz strategy matrix for a Toeplitz workload under (k, b)-min-separation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.matrices import Toeplitz, strategy_power
from fedmf.factorization.objectives import RMSE, InverseObjective, Objective, ToeplitzObjective
from fedmf.participation import Participation
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload, prefix

_OPTIONS = {"maxiter": 20_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 30}
_SMALL_GRADIENT = 1e-9
_MOST_STEPS = 100
_HALVINGS = 40
# Beyond this many bands a Hessian costs more than the first-order steps it saves.
_WIDEST_NEWTON = 1024
_START_EXPONENTS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)


def log_objective(
    c: Vector, participation: Participation, workload: ToeplitzWorkload | None = None
) -> tuple[float, Vector]:
    """log(‖S c‖²·Σ_t S_t w_t²) and its gradient, with w = LTT(c)⁻¹a and S_t = Σ_{i ≥ t} r_i².

    S c = Σ_{l<k} (c shifted by lb) is the sum of the earliest columns, whose norm is the sensitivity for
    p ≤ b and for non-negative non-increasing c; the other factor is ‖A C⁻¹‖_F². For prefix sums of n rounds
    a_t = 1 and S_t = n − t. For n > 4096 the sum is closed by its limit (`ToeplitzObjective`).

    Args:
        c: shape (p,), c_0 > 0.
        participation: (n, k, b).
        workload: A = diag(r)·LTT(a) with n rounds; prefix sums by default.

    Returns:
        The value and the gradient, shape (p,). (inf, 0) where w overflows.

    References:
        McKenna (2024), Section 3.2 and Appendices A, D.3 and I.
    """
    queries = prefix(participation.rounds) if workload is None else workload
    return ToeplitzObjective(c.size, participation, queries)(c)


def banded_toeplitz(
    bands: int,
    participation: Participation,
    start: Vector | None = None,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> Toeplitz:
    """Minimise the objective over C = LTT(c), c ∈ R^p, c_0 = 1, by a damped Newton method.

    For p ≤ b all c compete, and the sensitivity is that of orthogonal columns. For p > b only non-negative
    non-increasing c do, for which the sensitivity in the objective is exact; they are found by L-BFGS-B. The
    time hardly depends on n once n is many times p: the settled part of the error is summed in closed form.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        start: c to start from, shape (p,), c_0 > 0, with an inverse that does not overflow; by default the
            best of several banded powers of the workload.
        workload: A = diag(r)·LTT(a) with n rounds; prefix sums by default.
        objective: which error. The largest is the last one where A has no row weights; else power means tend
            to it, by L-BFGS.

    Returns:
        C with a unit diagonal.

    Raises:
        ValueError: p is out of range, the start's inverse overflows, or the workload does not fit.

    Guarantees:
        No worse than the start. From the default start with p ≤ b the gradient of the log objective ends
        below 1e-5 in every coordinate (`log_objective`).

    >>> banded_toeplitz(2, Participation(8, 1, 8)).coefficients.round(3)
    array([1.   , 0.524])
    """
    n = participation.rounds
    workload = prefix(n) if workload is None else workload
    goal = objective.for_toeplitz(workload)
    queries = goal.queries(workload)
    means = [ToeplitzObjective(bands, participation, queries, order) for order in goal.orders]
    starts = [strategy_power(queries, x, bands).coefficients for x in _START_EXPONENTS]
    if bands > participation.min_separation:
        starts = [np.maximum(np.minimum.accumulate(c), 0.0) for c in starts]
    if start is not None:
        starts = [start / start[0]]
    initial = min(starts, key=lambda c: means[0](c)[0])
    if not np.isfinite(means[0](initial)[0]):
        raise ValueError(
            f"start (coefficients) must have a finite inverse over n={n} rounds; "
            "got overflow. Use smaller coefficients."
        )
    if bands == 1:
        return Toeplitz(initial, n)
    improve = minimize_free if bands <= participation.min_separation else _minimize_monotone
    best = initial
    for mean in means:
        best = improve(best, mean)
    return Toeplitz(best if means[-1](best)[0] <= means[-1](initial)[0] else initial, n)


def minimize_free(initial: Vector, objective: ToeplitzObjective | InverseObjective) -> Vector:
    """Newton steps in all coefficients but the first, with a positive curvature, halved until they help.

    Outside the minimum phase (zeros of c inside the unit circle) the objective grows exponentially with n and
    may overflow; such a step is simply halved again.
    """
    c = initial
    value, slope = objective(c)
    for _ in range(_MOST_STEPS):
        if np.abs(slope[1:]).max() <= _SMALL_GRADIENT:
            break
        if c.size <= _WIDEST_NEWTON and objective.has_hessian:
            step = _descent(objective.hessian(c)[1:, 1:], slope[1:])
        else:
            return _minimize_boxed(c, objective)
        for _ in range(_HALVINGS):
            trial = np.concatenate([[1.0], c[1:] + step])
            trial_value, trial_slope = objective(trial)
            # Near the optimum the value cannot tell steps apart any more, but the gradient can.
            flat = trial_value <= value + 1e-13 and np.abs(trial_slope[1:]).max() < np.abs(slope[1:]).max()
            if trial_value < value + 1e-4 * float(slope[1:] @ step) or flat:
                break
            step = 0.5 * step
        else:
            break
        c, value, slope = trial, trial_value, trial_slope
    return c


def _descent(second: NDArray[np.float64], slope: Vector) -> Vector:
    """−|H|⁻¹g, with the eigenvalues of H replaced by their absolute values where H is not positive."""
    try:
        np.linalg.cholesky(second)
        return np.asarray(-np.linalg.solve(second, slope), dtype=np.float64)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(second)
        size = np.maximum(np.abs(values), 1e-10 * np.abs(values).max())
        return np.asarray(-vectors @ ((vectors.T @ slope) / size), dtype=np.float64)


def _minimize_boxed(initial: Vector, objective: ToeplitzObjective | InverseObjective) -> Vector:
    """L-BFGS over c_1 … c_{p−1} in a box that moves along, which keeps line searches away from overflow."""
    from scipy.optimize import minimize

    def tail_objective(tail: Vector) -> tuple[float, Vector]:
        value, slope = objective(np.concatenate([[1.0], tail]))
        return value, slope[1:]

    x, radius = initial[1:], 0.1
    for _ in range(_MOST_STEPS):
        bounds = list(zip(x - radius, x + radius, strict=True))
        minimum = minimize(tail_objective, x, jac=True, method="L-BFGS-B", bounds=bounds, options=_OPTIONS)
        moved = bool(np.abs(minimum.x - x).max() > 1e-3 * radius)
        x = minimum.x
        if np.abs(tail_objective(x)[1]).max() <= 1e-7:
            break
        radius *= 1.0 if moved else 0.25
    return np.concatenate([[1.0], x])


def _minimize_monotone(initial: Vector, objective: ToeplitzObjective) -> Vector:
    """L-BFGS-B over the steps δ ≥ 0 with c_j = Σ_{l ≥ j} δ_l.

    The objective does not change with the scale of c, so c_0 = Σ δ is free and divided out at the end.
    """
    from scipy.optimize import minimize

    def step_objective(steps: Vector) -> tuple[float, Vector]:
        value, slope = objective(np.cumsum(steps[::-1])[::-1])
        return value, np.cumsum(slope)

    steps = np.append(initial[:-1] - initial[1:], initial[-1])
    bounds = [(0.0, None)] * initial.size
    minimum = minimize(step_objective, steps, jac=True, method="L-BFGS-B", bounds=bounds, options=_OPTIONS)
    c = np.cumsum(minimum.x[::-1])[::-1]
    return c / c[0]


def tapered(C: Toeplitz, lower: int, upper: int) -> Toeplitz:
    """The heuristic for unknown separations: c_i ← c_i·(b̂ − i)/(b̂ − b₀) for i ≥ b₀, 0 from b̂ on.

    Args:
        C: optimised for the upper separation.
        lower: b₀, the smallest separation expected, 0 ≤ b₀ < b̂.
        upper: b̂, the largest.

    Raises:
        ValueError: b₀ and b̂ are out of order.

    References:
        McKenna (2024), "Scaling up the Banded Matrix Factorization Mechanism", Appendix H.

    >>> tapered(Toeplitz([1.0, 0.5, 0.5, 0.5], 4), 1, 3).coefficients
    array([1.  , 0.5 , 0.25, 0.  ])
    """
    if not 0 <= lower < upper:
        raise ValueError(
            f"b_0 (lower separation) must be at least 0 and below b_hat; got {lower} and {upper}. Swap them?"
        )
    i = np.arange(C.coefficients.size)
    return Toeplitz(C.coefficients * np.clip((upper - i) / (upper - lower), 0.0, 1.0), C.rounds)
