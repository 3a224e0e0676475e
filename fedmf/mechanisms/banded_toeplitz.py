"""The optimal p-banded Toeplitz strategy matrix, plain, normalised or for learning rates."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedmf.mechanisms.cache import remembered
from fedmf.mechanisms.closed_forms import strategy_power
from fedmf.mechanisms.errors import LARGEST_RATED, RMSE, Objective, PowerMean, RatedError
from fedmf.mechanisms.matrix import Factorization, normalized
from fedmf.mechanisms.optimise import Descent, single_threaded
from fedmf.mechanisms.registry import (
    BANDS,
    STAMPS,
    TAPER,
    Accuracy,
    Built,
    DesignRequest,
    Error,
    Family,
    Form,
    Free,
    Option,
    Values,
    register,
    widths,
)
from fedmf.mechanisms.series import lagged_products, multiply, padded, reciprocal
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation
from fedmf.typing import Vector

# Up to this horizon every term of the sum is computed.
_SHORT = 4096
# w has settled when its last p terms are this close to its limit, relative to the largest.
_SETTLED = 1e-12
_OVERFLOW = 1e200
_BLOCK_ENTRIES = 4_000_000


class ToeplitzObjective:
    """log(Q(c)·E(c)) with Q = ‖S c‖² and E = Σ_t S_t w_t², w = LTT(c)⁻¹a, S_t = Σ_{i ≥ t} r_i².

    S c = Σ_{l<k} (c shifted by lb), the sum of the earliest columns, has the sensitivity as norm for p ≤ b
    and for non-negative non-increasing c. E is ‖A C⁻¹‖_F² for A = diag(r)·LTT(a).

    Where a_t is constant from some t on, w_t tends to w_∞ = a_∞/Σc if c is stable. The sum is then
    computed to the first m terms and closed by w_∞²·Σ_{t ≥ m} S_t, with m doubled until the last p terms lie
    within 1e-12 of w_∞, relative to the largest term. An unstable c is computed to the full horizon, or until
    it overflows.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A with n rounds and no column weights.
        order: q ≥ 1 of a power mean of r_t²·Σ_{s ≤ t} w_s² in the place of E (`PowerMean`); every term is
            then computed, and there is no Hessian.

    Raises:
        ValueError: the workload has another horizon or column weights.

    References:
        McKenna (2024), Section 3.2, Proposition D.1 and Appendix I (which fixes m = 2p).
    """

    def __init__(
        self, bands: int, participation: Participation, workload: ToeplitzWorkload, order: float = 1.0
    ) -> None:
        n = participation.rounds
        if workload.rounds != n:
            raise ValueError(f"A (workload) must have n={n} rounds; got {workload.rounds}.")
        if workload.column_weights is not None:
            raise ValueError(
                f"A (workload) must have no column weights here; got {workload.name!r}. "
                "Learning rates are supported in errors, not in the objective of a Toeplitz C."
            )
        self.bands, self.participation, self.workload = bands, participation, workload
        a = workload.coefficients
        self._limit = float(a[-1])
        away = np.flatnonzero(np.abs(a - self._limit) > 1e-15 * np.abs(a).max())
        settled = (int(away[-1]) + 1 if away.size else 0) + bands
        self._power, self.has_hessian = PowerMean.of(workload, order), order == 1.0
        self._terms = n if n <= _SHORT or not self.has_hessian else min(n, max(1024, 4 * bands, 2 * settled))
        rows = workload.row_weights
        self._suffix = None if rows is None else np.cumsum(rows[::-1] ** 2)[::-1]
        self._counts = _column_lengths(bands, participation)

    def __call__(self, c: Vector) -> tuple[float, Vector]:
        """The value and the gradient, shape (p,); (inf, 0) where w overflows.

        With v = LTT(c)⁻ᵀ(S w), ∂E/∂c_j = −2·Σ_t v_t w_{t−j}.
        """
        inverse, w = self._settled(c)
        m = w.size
        with np.errstate(over="ignore", invalid="ignore"):
            weighted = (self._weights(m) if self.has_hessian else self._powered(w)) * w
            limit = self._limit / c.sum() if m < self.workload.rounds else 0.0
            error = float(weighted @ w) + limit**2 * self._rest(m)
        square, slope_square = self.square(c)
        if not (np.isfinite(error) and error < _OVERFLOW and square > 0):
            return float("inf"), np.zeros_like(c)
        adjoint = multiply(inverse, weighted[::-1], m)[::-1]
        slope = -2.0 * lagged_products(adjoint, w, c.size)
        if limit:
            slope -= 2.0 * limit**2 / c.sum() * self._rest(m)
        return float(np.log(square) + np.log(error)), slope_square / square + slope / error

    def hessian(self, c: Vector) -> NDArray[np.float64]:
        """The Hessian where w does not overflow, shape (p, p).

        With u = LTT(c)⁻¹w and q = LTT(c)⁻¹u,
        ∂²E/∂c_i∂c_j = 2·Σ_t S_t u_{t−i}u_{t−j} + 4·Σ_t S_t w_t q_{t−i−j}.
        """
        p = c.size
        inverse, w = self._settled(c)
        m = w.size
        weights = self._weights(m)
        u = multiply(inverse, w, m)
        q = multiply(inverse, u, m)
        curved = 4.0 * lagged_products(weights * w, q, min(2 * p - 1, m))
        curved = padded(curved, 2 * p - 1)
        second = sliding_window_view(curved, p) + 2.0 * _shifted_gram(u, weights, p)
        error, slope = float((weights * w) @ w), -2.0 * lagged_products(weights * w, u, p)
        if m < self.workload.rounds and self._limit:
            total, rest = c.sum(), self._rest(m) * self._limit**2
            error, slope = error + rest / total**2, slope - 2.0 * rest / total**3
            second = second + 6.0 * rest / total**4
        square, slope_square = self.square(c)
        ratio, ratio_square = slope / error, slope_square / square
        second_square = self._square_hessian(p) / square
        return second / error - np.outer(ratio, ratio) + second_square - np.outer(ratio_square, ratio_square)

    def square(self, c: Vector) -> tuple[float, Vector]:
        """Q = Σ_h (2 − [h = 0])·Σ_l (N_l − h)⁺ c_l c_{l+hb} and its gradient; N_l columns reach l terms."""
        value, slope, b = 0.0, np.zeros_like(c), self.participation.min_separation
        for h in range(min(self.participation.max_participations, -(-c.size // b))):
            gap = h * b
            counts = np.maximum(self._counts[: c.size - gap] - h, 0) * (1.0 if h == 0 else 2.0)
            value += float((counts * c[: c.size - gap]) @ c[gap:])
            slope[: c.size - gap] += counts * c[gap:]
            slope[gap:] += counts * c[: c.size - gap]
        return value, slope

    def _square_hessian(self, p: int) -> NDArray[np.float64]:
        second, b = np.zeros((p, p)), self.participation.min_separation
        for h in range(min(self.participation.max_participations, -(-p // b))):
            at = np.arange(p - h * b)
            counts = 2.0 * np.maximum(self._counts[: at.size] - h, 0)
            second[at, at + h * b] = second[at + h * b, at] = counts
        return second

    def _settled(self, c: Vector) -> tuple[Vector, Vector]:
        """(1/c, w) to m terms; m is kept for later calls."""
        n, a = self.workload.rounds, self.workload.coefficients
        while True:
            m = self._terms
            with np.errstate(over="ignore", invalid="ignore"):
                inverse = reciprocal(c, m)
                w = np.cumsum(inverse) if (a[:m] == 1.0).all() else multiply(a[:m], inverse, m)
                largest, total = float(np.abs(w).max()), float(c.sum())
            if m == n or not largest < 1e100:
                return inverse, w
            tail = np.abs(w[-c.size :] - self._limit / total) if total else np.full(1, np.inf)
            if tail.max() <= _SETTLED * largest:
                return inverse, w
            self._terms = min(n, 2 * m)

    def _powered(self, w: Vector) -> Vector:
        return np.cumsum(self._power(np.cumsum(w * w))[::-1])[::-1]

    def _weights(self, m: int) -> Vector:
        if self._suffix is not None:
            return self._suffix[:m]
        n = self.workload.rounds
        return np.arange(n, n - m, -1, dtype=np.float64)

    def _rest(self, m: int) -> float:
        """Σ_{t ≥ m} S_t."""
        if self._suffix is not None:
            return float(self._suffix[m:].sum())
        return 0.5 * (self.workload.rounds - m) * (self.workload.rounds - m + 1.0)


def _column_lengths(bands: int, participation: Participation) -> NDArray[np.float64]:
    """N_l = how many of the columns 0, b, … (k of them) have an l-th term within the horizon."""
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    return np.minimum(k, -(-(n - np.arange(bands)) // b)).astype(np.float64)


def _shifted_gram(u: Vector, weights: Vector, p: int) -> NDArray[np.float64]:
    """Σ_t S_t u_{t−i} u_{t−j} for i, j < p, in blocks of rows."""
    rows = sliding_window_view(np.concatenate([np.zeros(p - 1), u]), p)[:, ::-1]
    gram, step = np.zeros((p, p)), max(1, _BLOCK_ENTRIES // p)
    for start in range(0, u.size, step):
        block = np.ascontiguousarray(rows[start : start + step])
        gram += (block * weights[start : start + step, None]).T @ block
    return gram


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


def minimize_free(initial: Vector, objective: Any) -> Vector:
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


def _minimize_boxed(initial: Vector, objective: Any) -> Vector:
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


class ScaledObjective:
    """log(Q(c)·E(c)) for C = LTT(c)·diag(s)⁻¹ and A = diag(r)·LTT(a)·diag(η).

    With normalised columns s_j = ‖c_0 … c_{n−1−j}‖ and Q = k (for p ≤ b), else s = 1 and Q = ‖S c‖². In both
    cases E = ‖A C⁻¹‖_F², or a power mean of its rows, is `RatedError` of h = 1/c and d = ηs.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A with n rounds.
        normalize: whether columns are normalised; needs p ≤ b.
        order: q ≥ 1 of the power mean.

    Raises:
        ValueError: p > b with normalised columns, or the workload has another horizon.

    References:
        McKenna (2024), Appendix K, asks for this optimisation.
    """

    def __init__(
        self,
        bands: int,
        participation: Participation,
        workload: ToeplitzWorkload,
        normalize: bool,
        order: float = 1.0,
    ) -> None:
        if normalize and bands > participation.min_separation:
            raise ValueError(
                f"p (bands) must be at most b={participation.min_separation} with normalised columns; "
                f"got {bands}. Beyond, normalise the optimum of banded_toeplitz."
            )
        plain = ToeplitzWorkload(workload.name, workload.coefficients)
        self._unscaled = ToeplitzObjective(bands, participation, plain)
        self._normalize, self._k, self._n = normalize, participation.max_participations, workload.rounds
        rates = workload.column_weights
        self._rates = np.ones(self._n) if rates is None else rates
        self._error = RatedError(workload, order)

    def __call__(self, c: Vector) -> tuple[float, Vector]:
        """The value and the gradient, shape (p,); (inf, 0) where the inverse overflows."""
        n, p = self._n, c.size
        h = reciprocal(c, n)
        if not (np.abs(h) < 1e100).all():
            return float("inf"), np.zeros_like(c)
        norms = np.sqrt(self._column_squares(c)) if self._normalize else np.ones(n)
        error, slope_scale, slope_h = self._error(h, self._rates * norms)
        adjoint = multiply(h, slope_h[::-1], n)[::-1]
        slope = -multiply(h, adjoint[::-1], n)[::-1][:p] / error
        if not self._normalize:
            square, slope_square = self._unscaled.square(c)
            return float(np.log(error) + np.log(square)), slope + slope_square / square
        # s_j depends on c_l for j < n − l, with ∂s_j/∂c_l = c_l/s_j.
        reached = np.cumsum(slope_scale * self._rates / norms)[n - p :][::-1]
        return float(np.log(error) + np.log(self._k)), slope + c * reached / error

    def _column_squares(self, c: Vector) -> Vector:
        return np.cumsum(padded(c, self._n) ** 2)[::-1]


_WIDEST_CURVED = 1024
_DESCENT = Descent(tolerance=1e-11, gradient=1e-9, evaluations=300, memory=30)


def normalized_banded_toeplitz(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> Factorization:
    """Minimise the objective over LTT(c)·D⁻¹ with D the column norms: c is optimised *as normalised*.

    Normalising the optimum of `banded_toeplitz` is near the best for large n/p and up to 0.5 % off where the
    last p columns matter. The joint optimisation starts there. It is done for p ≤ b and n ≤ 4096; otherwise
    the start is returned.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A with n rounds; prefix sums by default.
        objective: which error.

    Raises:
        ValueError: p is out of range.

    Guarantees:
        For p ≤ b never worse than the normalised optimum of `banded_toeplitz`.

    References:
        McKenna (2024), Appendix K.

    >>> normalized_banded_toeplitz(2, Participation(8, 1, 8)).gram_diagonal(0).round(12)
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    queries = prefix(participation.rounds) if workload is None else workload
    start = rated_banded_toeplitz(bands, participation, queries, objective)
    if bands == 1 or bands > participation.min_separation or participation.rounds > LARGEST_RATED:
        return normalized(start)
    return normalized(_scaled(start, participation, queries, objective, normalize=True))


def rated_banded_toeplitz(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> Toeplitz:
    """`banded_toeplitz` for a workload that may have column weights (learning rates).

    With column weights c is optimised for them if p ≤ b and n ≤ 4096, starting from the optimum without
    them; otherwise that start is returned.

    Raises:
        ValueError: p is out of range.
    """
    queries = prefix(participation.rounds) if workload is None else workload
    if queries.column_weights is None:
        return banded_toeplitz(bands, participation, workload=workload, objective=objective)
    start = banded_toeplitz(
        bands, participation, workload=replace(queries, column_weights=None), objective=objective
    )
    if bands == 1 or bands > participation.min_separation or participation.rounds > LARGEST_RATED:
        return start
    return _scaled(start, participation, queries, objective, normalize=False)


def _scaled(
    start: Toeplitz,
    participation: Participation,
    workload: ToeplitzWorkload,
    objective: Objective,
    normalize: bool,
) -> Toeplitz:
    """C that is best with its scale; no worse than the start."""
    queries, bands = objective.queries(workload), start.coefficients.size
    means = [ScaledObjective(bands, participation, queries, normalize, order) for order in objective.orders]
    best = start.coefficients
    for mean in means:
        best = _minimize(best, mean, participation)
    return Toeplitz(best, start.rounds) if means[-1](best)[0] <= means[-1](start.coefficients)[0] else start


def _minimize(initial: Vector, objective: ScaledObjective, participation: Participation) -> Vector:
    """L-BFGS in coordinates y with x = x_0 + L⁻ᵀy, where LLᵀ is the curvature for unscaled prefix sums."""
    back = _coordinates(initial, participation)

    def in_coordinates(y: Vector) -> tuple[float, Vector]:
        value, slope = objective(np.concatenate([[1.0], initial[1:] + back @ y]))
        return value, back.T @ slope[1:]

    # Steps far outside are unstable and overflow; near the start the curvature hardly changes.
    zero = np.zeros(initial.size - 1)
    best = _DESCENT.least(in_coordinates, zero, zero - 1.0, zero + 1.0)
    if not in_coordinates(best)[0] < in_coordinates(zero)[0]:
        return initial
    return np.concatenate([[1.0], initial[1:] + back @ best])


def _coordinates(c: Vector, participation: Participation) -> NDArray[np.float64]:
    """L⁻ᵀ, or the identity where the curvature is too large to factor or not positive."""
    p = c.size
    if p > _WIDEST_CURVED:
        return np.eye(p - 1)
    second = ToeplitzObjective(p, participation, prefix(participation.rounds)).hessian(c)[1:, 1:]
    try:
        return np.asarray(np.linalg.inv(np.linalg.cholesky(second)).T, dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.eye(p - 1)


# Beyond p = b the optimiser takes seconds per step; wider bands than this must be asked for.
_WIDEST_OPTIMIZED = 256
# Results of the optimisers are kept on disk as well; the version is to be raised whenever an optimiser finds
# other coefficients.
_optimized = lru_cache(maxsize=32)(remembered(rated_banded_toeplitz, version=2))
_jointly = lru_cache(maxsize=32)(remembered(single_threaded(normalized_banded_toeplitz), version=2))


def _optimal_width(request: DesignRequest, values: Values, error: Error, accuracy: Accuracy) -> float:
    """The optimal error falls with p; stop where it falls by less than 0.1 %.

    With kb ≥ n nothing was gained beyond p = b in any setting tried: only users with few participations
    leave room for wider bands.
    """
    contract, best = request.participation, request.separation
    if contract.max_participations * contract.min_separation >= contract.rounds:
        return best
    lowest = error(best)
    for p in widths(request):
        if best < p <= max(contract.min_separation, _WIDEST_OPTIMIZED):
            previous, lowest = lowest, min(lowest, error(p))
            if lowest > 0.999 * previous:
                break
            best = p
    return best


def _tapered(form: Form, request: DesignRequest, lower: int, others: Values) -> Built:
    """The optimal banded Toeplitz C for separation b with its coefficients from b₀ on tapered to 0 at p."""
    values, _ = form.family.plain.build(request, others)
    p = int(values["bands"])
    replace(TAPER, highest=p - 1).checked(lower, form.name, request.rounds)
    optimal = _optimized(p, *request.target)
    return values, form.columns(tapered(optimal, lower, p))


register(
    Family(
        "banded-toeplitz",
        "the best Toeplitz C with p bands",
        lambda ask, v: _optimized(v["bands"], *ask.target),
        (Free(BANDS, _optimal_width),),
        options=(STAMPS, Option(TAPER, _tapered)),
        largest_compared=1_000_000,
        normalize=lambda make: lambda ask, v: _jointly(v["bands"], *ask.target),
        optimized=True,
        also=("bandmf", "band-mf"),
    )
)
