"""BandInvMF: the best C⁻¹ = LTT(h) with p coefficients, at its true sensitivity.

The search runs over c_1 … c_{p−1}, the first coefficients of C = LTT(1/h): they determine h, and
the problem is better conditioned in them. First the error times the norm of the earliest columns is
minimized. Where `earliest_is_worst` certifies that this norm is the sensitivity, that is all.
Otherwise c ≥ 0 and "no lag from hb on has a larger autocorrelation than the lag hb" become
constraints, and any violation left at the end is removed by moving towards a non-increasing C.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fedmf.matrices.arrays import Vector
from fedmf.matrices.series import multiply, reciprocal
from fedmf.matrices.toeplitz import InverseToeplitz
from fedmf.mechanisms.closed_forms import bifr
from fedmf.mechanisms.design_cache import disk_cached
from fedmf.mechanisms.objective import LARGEST_RATED, RMSE, Objective, QuickError
from fedmf.mechanisms.quick_sensitivity import earliest_is_worst
from fedmf.mechanisms.registry import (
    BANDS,
    DesignRequest,
    MechanismFamily,
    SearchedParameter,
    Values,
    minimize_on_interval,
    register,
    without_search,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation

# L-BFGS starts with a step of this length, so short that C⁻¹ stays stable.
_UNIT = 0.02
_OVERFLOW = 1e100
_MOST_ROUNDS = 30
_MARGIN = 2e-9
_START_EXPONENTS = (0.5, 0.75, 0.9)
# Beyond this horizon c is summed as exponentials, and there are no constraints.
_LONG = 65_536
# The largest number of constraints by pairs; with more, the autocorrelation alone is constrained.
_MOST_PAIRS = 4096
# Beyond this horizon the slowest pole of C is a coordinate of its own.
_SHORT = 4096
# Wider inverses draw more past noise again in each round and gained at most about 1 %.
_WIDEST = 64


def banded_inverse(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> InverseToeplitz:
    """Minimize the objective over C⁻¹ = LTT(h), h ∈ R^p, h_0 = 1, under (k, b)-min-separation.

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A; prefix sums by default. With learning rates n ≤ 4096.
        objective: the error.

    Returns:
        C, streamed without stored vectors: p − 1 past inputs are drawn again in each round.

    Raises:
        ValueError: p is out of range or the workload does not fit.

    Guarantees:
        The earliest pattern is certified to be the worst (`earliest_is_worst`), so the sensitivity
        is exact. Never worse than `bifr` with the best γ, nor than the identity.

    References:
        Kalinin et al. (2025), "Back to square roots" (banded inverse factorization);
        Kalinin, McKenna, Pagh & Lampert (2026), arXiv:2601.22334.

    >>> banded_inverse(2, Participation(64, 2, 32)).noising_coefs[:3].round(3)
    array([ 1.   , -0.834,  0.   ])
    """
    n = participation.rounds
    if workload is None:
        workload = prefix(n)
    if workload.rounds != n:
        raise ValueError(
            f"A (workload) must have n={n} rounds; got {workload.rounds}. Both need the same"
            " horizon."
        )
    if workload.column_weights is not None and n > LARGEST_RATED:
        raise ValueError(
            f"n (rounds) must be at most {LARGEST_RATED} to optimize for column weights; got {n}. "
            "Optimize without them: errors include them for every C."
        )
    if bands == 1:
        return bifr(0.5, 1, n)

    import torch

    from fedmf.mechanisms.optimize import optimize

    goal = objective.for_toeplitz(workload)
    judge = QuickError(participation, workload, objective)
    losses = [_Loss(participation, goal.queries(workload), order) for order in goal.orders]
    gamma = minimize_on_interval(lambda g: judge(bifr(g, bands, n)), 0.05, 0.999, 17, 1e-4)
    reference = _tail(gamma, bands)

    def value(tail: Vector) -> float:
        return float(losses[-1](torch.tensor(tail)))

    if n > _SHORT:
        tail = _with_a_slow_pole(losses[0], _inverse(reference))
    else:
        starts = [reference]
        if bands <= _WIDEST:
            starts.extend(_tail(exponent, bands) for exponent in _START_EXPONENTS)
        optima = [optimize(losses[0], start, tolerance=1e-13, unit=_UNIT) for start in starts]
        tail = min(optima, key=value)
    for loss in losses[1:]:
        tail = optimize(loss, tail, tolerance=1e-13, unit=_UNIT)
    if not _certified(tail, participation):
        candidates = [tail]
        if n <= _LONG:
            candidates = _constrained_optima(losses[-1], reference, participation)
        blends = [_certified_blend(c, reference, participation) for c in candidates]
        tail = min(blends, key=value)
    # Users in every round want the identity, which no γ > 0 reaches.
    best = min((tail, reference, np.zeros(bands - 1)), key=value)
    return InverseToeplitz(_inverse(best), n)


def _with_a_slow_pole(loss: _Loss, h: Vector) -> Vector:
    """The tail of the best C, searched from h in coordinates that suit long horizons.

    The coordinates are log(1 − ρ) and the first coefficients of 1/g, with h = (1 − ρx)·g. ρ is the
    slowest pole of C, which moves ever closer to 1 as n grows; these coordinates stay well scaled.
    """
    import torch

    from fedmf.mechanisms.optimize import optimize, series_reciprocal

    roots = np.roots(h)
    p = h.size
    slow = float(roots[np.argmax(np.abs(roots))].real)
    g = multiply(h, np.power(slow, np.arange(p), dtype=np.float64), p - 1)
    one = torch.ones(1, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)

    def inverse(y: Any) -> Any:
        g = series_reciprocal(torch.cat([one, y[1:]]), p - 1)
        return torch.cat([g, zero]) - (1.0 - torch.exp(y[0])) * torch.cat([zero, g])

    def loss_at(y: Any) -> Any:
        return loss.of(inverse(y))

    start = np.append(np.log1p(-slow), reciprocal(g, p - 1)[1:])
    y = optimize(loss_at, start, tolerance=1e-12, evaluations=500, unit=_UNIT)
    return reciprocal(inverse(torch.tensor(y)).numpy(), p)[1:]


def _constrained_optima(
    loss: _Loss, reference: Vector, participation: Participation
) -> list[Vector]:
    """The optimum under the weaker constraints, and under those by pairs if they are few."""
    n = participation.rounds
    blocks = -(-n // participation.min_separation)
    optima = [_constrained(loss, reference, pairs=False)]
    if min(participation.max_participations, blocks) * n <= _MOST_PAIRS:
        optima.append(_constrained(loss, reference, pairs=True))
    return optima


def _constrained(loss: _Loss, start: Vector, pairs: bool) -> Vector:
    """The tail of the best C under the constraints v ≤ 0, by an augmented Lagrangian.

    v are −c_t, and R_m(g) − R_m(min(⌊(g−1)/b⌋, m)·b) for g > b and 0 < m < k, with R_m(g) =
    Σ_{l<n−mb} c_l c_{l+g}: where no lag from jb on has a larger one than jb, for j ≤ m, the pair
    bound is attained. That is sufficient, and often too much: without ``pairs``, they are −c_t and
    R_0(g) − R_0(⌊g/b⌋·b) alone.

    References:
        Nocedal & Wright (2006), Algorithm 17.4.
    """
    import torch

    from fedmf.mechanisms.optimize import optimize

    weight = 10.0
    feasible = 1e-7
    most_rounds = 12
    if pairs:
        weight = 1000.0
        feasible = _MARGIN
        most_rounds = _MOST_ROUNDS

    def lagrangian(x: Any, multipliers: Any, weight: float) -> Any:
        excess = torch.relu(multipliers + weight * loss.violations(x, pairs))
        return loss(x) + (excess @ excess) / (2.0 * weight)

    x = start
    previous = np.inf
    multipliers = torch.zeros_like(loss.violations(torch.tensor(x), pairs))
    for _ in range(most_rounds):
        objective = partial(lagrangian, multipliers=multipliers, weight=weight)
        x = optimize(objective, x, tolerance=1e-12, evaluations=300, unit=_UNIT)
        values = loss.violations(torch.tensor(x), pairs)
        multipliers = torch.relu(multipliers + weight * values)
        violation = float(values.max())
        if violation < feasible:
            break
        if violation > 0.3 * previous:
            weight = weight * 5.0
        previous = violation
    return x


def _tail(gamma: float, bands: int) -> Vector:
    """The coefficients c_1 … c_{p−1} of γ-BIFR."""
    return np.array(bifr(gamma, bands, bands).strategy_coefs[1:])


def _inverse(tail: Vector) -> Vector:
    """The coefficients of C⁻¹ from the tail of C."""
    return reciprocal(np.concatenate([[1.0], tail]), tail.size + 1)


class _Loss:
    """The loss log(E·Q) with Q = ‖Σ_{l<k} C_{:,lb}‖², as a function of c_1 … c_{p−1}.

    It is infinite where C overflows.
    """

    def __init__(
        self, participation: Participation, queries: ToeplitzWorkload, order: float
    ) -> None:
        self._participation = participation
        self._queries = queries
        self._order = order
        self._last_tail: Any = None
        self._last_series: tuple[Any, Any] = (None, None)

    def series(self, tail: Any) -> tuple[Any, Any]:
        """h, and c to the horizon, with those of the last tail in a cache."""
        from fedmf.mechanisms.optimize import series_reciprocal

        if self._last_tail is not tail:
            h = _head_inverse(tail)
            self._last_tail = tail
            self._last_series = (h, series_reciprocal(h, self._participation.rounds))
        return self._last_series

    def __call__(self, tail: Any) -> Any:
        if self._participation.rounds > _LONG:
            return self.of(_head_inverse(tail))
        h, c = self.series(tail)
        return self.of(h, c)

    def of(self, h: Any, c: Any = None) -> Any:
        """The loss of C⁻¹ = LTT(h), and of C = LTT(c) where that is known."""
        import torch

        from fedmf.mechanisms.optimize import (
            log_earliest,
            log_earliest_exponentials,
            log_error,
            series_reciprocal,
        )

        n = self._participation.rounds
        if c is None and n <= _LONG:
            c = series_reciprocal(h, n)
        if c is None:
            square = log_earliest_exponentials(0.0, *_exponentials(h), self._participation)
        elif bool((c.abs() < _OVERFLOW).all()):
            square = log_earliest(c, self._participation)
        else:
            return torch.tensor(float("inf"), dtype=torch.float64)
        return square + log_error(h, self._queries, self._order)

    def violations(self, tail: Any, pairs: bool) -> Any:
        """The constraints v of `_constrained` plus a margin, so that feasible points have v ≤ 0."""
        import torch

        _, c = self.series(tail)
        k = self._participation.max_participations
        b = self._participation.min_separation
        n = c.numel()
        m = torch.zeros(1, 1, dtype=torch.int64)
        if pairs:
            m = torch.arange(1, min(k, -(-n // b)))[:, None]
        size = 1 << (2 * n - 1).bit_length()
        heads = torch.fft.rfft(c * (torch.arange(n) < n - m * b), size)
        products = torch.fft.irfft(torch.fft.rfft(c, size) * heads.conj(), size)[:, :n]
        lags = (torch.arange(b, n - 1) // b * b)[None]
        margin = 0.0
        if pairs:
            lags = torch.minimum(lags, m * b)
            margin = _MARGIN
        excess = products[:, b + 1 :] - products.gather(1, lags)
        return torch.cat([-c, excess.reshape(-1)]) + margin


def _head_inverse(tail: Any) -> Any:
    """The coefficients h of C⁻¹ for c = (1, tail), differentiable."""
    import torch

    from fedmf.mechanisms.optimize import series_reciprocal

    c = torch.cat([torch.ones(1, dtype=torch.float64), tail])
    return series_reciprocal(c, c.numel())


def _exponentials(h: Any) -> tuple[Any, Any]:
    """The partial fractions ρ and λ of c = 1/h, c_t = Σ_i ρ_i λ_i^t.

    λ are the roots of x^{p−1}h(1/x). A Newton step from each root gives it its derivative. Roots
    outside the unit circle make the loss infinite.
    """
    import torch

    exponents = torch.arange(h.numel() - 1, -1, -1, dtype=torch.float64)
    roots = torch.tensor(np.roots(h.detach().numpy()).astype(np.complex128))
    if float(roots.abs().max()) > 1.0:
        return torch.full_like(roots, float("inf")), roots
    powers = roots[:, None] ** exponents
    slope = (powers[:, 1:] * exponents[:-1] * h[:-1]).sum(1)
    roots = roots - (powers * h).sum(1) / slope.detach()
    slope = (roots[:, None] ** exponents[1:] * exponents[:-1] * h[:-1]).sum(1)
    return roots ** (h.numel() - 2) / slope, roots


def _certified(tail: Vector, participation: Participation, positive: bool = False) -> bool:
    """Whether the earliest pattern of C is certainly the worst; with ``positive``, also c ≥ 0."""
    c = reciprocal(_inverse(tail), participation.rounds)
    if not float(np.abs(c).max()) < _OVERFLOW:
        return False
    least = float(c.min())
    if least >= 0 and bool((np.diff(c) <= 0).all()):
        return True
    if positive and least < 0:
        return False
    k = participation.max_participations
    return earliest_is_worst(c, k, participation.min_separation)


def _certified_blend(
    constrained: Vector, reference: Vector, participation: Participation
) -> Vector:
    """Roughly the first certified point on the way from `constrained` to `reference`.

    The point itself is certified, and its c ≥ 0, so that the sensitivity is exact with normalized
    columns as well.
    """

    def blend(step: float) -> Vector:
        return constrained + step * (reference - constrained)

    def certified(step: float) -> bool:
        return _certified(blend(step), participation, positive=True)

    previous = 0.0
    for step in [0.0, *np.geomspace(1e-12, 1.0, 73).tolist()]:
        if certified(step):
            steps = np.linspace(previous, step, 65).tolist()  # ends at `step`, which is certified
            return blend(next(x for x in steps if certified(x)))
        previous = step
    return reference


_inverse_optimum = disk_cached(banded_inverse, version=7)


def _affordable_bands(request: DesignRequest, values: Values) -> float:
    return min(_WIDEST, request.rounds)


register(
    MechanismFamily(
        "banded-inverse",
        "the best Toeplitz C with p bands in its inverse",
        lambda request, values: _inverse_optimum(values["bands"], *request.rated_target),
        (SearchedParameter(BANDS, without_search(_affordable_bands)),),
        max_rounds=1_000_000,
        max_rounds_compared=1_000_000,
        optimized=True,
        aliases=("bandinvmf", "band-inv-mf"),
    )
)
