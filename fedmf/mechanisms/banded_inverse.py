"""BandInvMF: the best C⁻¹ = LTT(h) with p coefficients under (k, b)-min-separation, at its true
sensitivity.

The search runs over c_1 … c_{p−1}, the first coefficients of C = LTT(1/h): they determine h, and
the problem is better conditioned in them. First the error times the norm of the earliest columns is
minimised. Where `earliest_is_worst` certifies that this norm is the sensitivity, that is all.
Otherwise c ≥ 0 and "no lag from hb on has a larger autocorrelation than the lag hb" become
constraints, and any violation left at the end is removed by moving towards a non-increasing C.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedmf.matrices.arrays import Vector
from fedmf.matrices.series import multiply, reciprocal
from fedmf.matrices.toeplitz import InverseToeplitz
from fedmf.mechanisms.closed_forms import bifr
from fedmf.mechanisms.design_cache import remembered
from fedmf.mechanisms.objective import LARGEST_RATED, RMSE, Objective, QuickError
from fedmf.mechanisms.quick_sensitivity import earliest_is_worst
from fedmf.mechanisms.registry import (
    BANDS,
    MechanismFamily,
    SearchedParameter,
    at_once,
    least_on,
    register,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation

# L-BFGS starts with a step of this length, short enough not to leave stable C⁻¹.
_UNIT = 0.02
_OVERFLOW = 1e100
_MOST_ROUNDS = 30
_MARGIN = 2e-9
_FREE_STARTS = (0.5, 0.75, 0.9)
# Beyond, c is summed as the exponentials that it is made of, and no constraints are kept.
_LONG = 65_536
# Of constraints by pairs; where there would be more, those of the autocorrelation alone are kept.
_MOST_PAIRS = 4096
# Beyond, the slowest pole of C is a coordinate of its own.
_SHORT = 4096
# Wider inverses draw more past noise again in each round and gain about 1 % at most where tried.
_WIDEST = 64


def banded_inverse(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> InverseToeplitz:
    """Minimise the objective over C⁻¹ = LTT(h), h ∈ R^p, h_0 = 1, with the sensitivity under (k,
    b).

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A; prefix sums by default. With learning rates n ≤ 4096.
        objective: which error.

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
    workload = prefix(n) if workload is None else workload
    if workload.rounds != n:
        raise ValueError(
            f"A (workload) must have n={n} rounds; got {workload.rounds}. Both need the same"
            " horizon."
        )
    if workload.column_weights is not None and n > LARGEST_RATED:
        raise ValueError(
            f"n (rounds) must be at most {LARGEST_RATED} to optimise for column weights; got {n}. "
            "Optimise without them: errors include them for every C."
        )
    if bands == 1:
        return bifr(0.5, 1, n)

    import torch

    from fedmf.mechanisms.optimise import optimise

    goal = objective.for_toeplitz(workload)
    judge = QuickError(participation, workload, objective)
    losses = [_Loss(participation, goal.queries(workload), order) for order in goal.orders]
    gamma = least_on(lambda g: judge(bifr(g, bands, n)), 0.05, 0.999, 17, 1e-4)
    reference = _tail(gamma, bands)

    def value(tail: Vector) -> float:
        return float(losses[-1](torch.tensor(tail)))

    if n > _SHORT:
        tail = _with_a_slow_pole(losses[0], _inverse(reference))
    else:
        starts = [reference, *(_tail(x, bands) for x in _FREE_STARTS if bands <= _WIDEST)]
        tail = min((optimise(losses[0], x, tolerance=1e-13, unit=_UNIT) for x in starts), key=value)
    for loss in losses[1:]:
        tail = optimise(loss, tail, tolerance=1e-13, unit=_UNIT)
    if not _certified(tail, participation):
        k = participation.max_participations
        b = participation.min_separation
        forms = (False, True) if min(k, -(-n // b)) * n <= _MOST_PAIRS else (False,)
        found = (
            [tail] if n > _LONG else [_constrained(losses[-1], reference, pairs) for pairs in forms]
        )
        tail = min((_certified_blend(x, reference, participation) for x in found), key=value)
    # Users in every round want the identity, which no γ > 0 reaches.
    return InverseToeplitz(_inverse(min((tail, reference, np.zeros(bands - 1)), key=value)), n)


def _with_a_slow_pole(loss: _Loss, h: Vector) -> Vector:
    """Minimised over log(1 − ρ) and the first coefficients of 1/g, h = (1 − ρx)·g: the tail of C.

    ρ is the slowest pole of C, which moves ever closer to 1 as n grows: no matter in these
    coordinates.
    """
    import torch

    from fedmf.mechanisms.optimise import optimise, series_reciprocal

    roots = np.roots(h)
    p = h.size
    slow = float(roots[np.argmax(np.abs(roots))].real)
    g = multiply(h, np.power(slow, np.arange(p), dtype=np.float64), p - 1)
    one = torch.ones(1, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)

    def inverse(y: Any) -> Any:
        g = series_reciprocal(torch.cat([one, y[1:]]), p - 1)
        return torch.cat([g, zero]) - (1.0 - torch.exp(y[0])) * torch.cat([zero, g])

    start = np.append(np.log1p(-slow), reciprocal(g, p - 1)[1:])
    y = optimise(lambda y: loss.of(inverse(y)), start, tolerance=1e-12, evaluations=500, unit=_UNIT)
    return reciprocal(inverse(torch.tensor(y)).numpy(), p)[1:]


def _constrained(loss: _Loss, start: Vector, pairs: bool) -> Vector:
    """Augmented Lagrangian of v ≤ 0: −c_t, and R_m(g) − R_m(min(⌊(g−1)/b⌋, m)·b) for g > b and 0 <
    m < k.

    R_m(g) = Σ_{l<n−mb} c_l c_{l+g}: where no lag from jb on has a larger one than jb, for j ≤ m,
    the pair bound is attained. That is sufficient, and often too much: without ``pairs``, R_0(g) −
    R_0(⌊g/b⌋·b) alone.

    References:
        Nocedal & Wright (2006), Algorithm 17.4.
    """
    import torch

    from fedmf.mechanisms.optimise import optimise

    x = start
    previous = np.inf
    weight, feasible = (1000.0, _MARGIN) if pairs else (10.0, 1e-7)
    multipliers = torch.zeros_like(loss.violations(torch.tensor(x), pairs))
    for _ in range(_MOST_ROUNDS if pairs else 12):

        def penalised(x: Any, multipliers: Any = multipliers, weight: float = weight) -> Any:
            excess = torch.relu(multipliers + weight * loss.violations(x, pairs))
            return loss(x) + (excess @ excess) / (2.0 * weight)

        x = optimise(penalised, x, tolerance=1e-12, evaluations=300, unit=_UNIT)
        values = loss.violations(torch.tensor(x), pairs)
        multipliers = torch.relu(multipliers + weight * values)
        violation = float(values.max())
        if violation < feasible:
            break
        weight = weight * (5.0 if violation > 0.3 * previous else 1.0)
        previous = violation
    return x


def _tail(gamma: float, bands: int) -> Vector:
    """c_1 … c_{p−1} of γ-BIFR."""
    return np.array(bifr(gamma, bands, bands).strategy_coefs[1:])


def _inverse(tail: Vector) -> Vector:
    return reciprocal(np.concatenate([[1.0], tail]), tail.size + 1)


class _Loss:
    """log(E·Q) with Q = ‖Σ_{l<k} C_{:,lb}‖², as a function of c_1 … c_{p−1}; infinite where C
    overflows.
    """

    def __init__(
        self, participation: Participation, queries: ToeplitzWorkload, order: float
    ) -> None:
        self._participation = participation
        self._queries = queries
        self._order = order
        self._known: tuple[Any, Any, Any] = None, None, None

    def series(self, tail: Any) -> tuple[Any, Any]:
        """h, and c to the horizon; kept for the next question about the same point."""
        from fedmf.mechanisms.optimise import series_reciprocal

        if self._known[0] is not tail:
            h = _head_inverse(tail)
            self._known = tail, h, series_reciprocal(h, self._participation.rounds)
        return self._known[1:]

    def __call__(self, tail: Any) -> Any:
        h, c = (
            self.series(tail)
            if self._participation.rounds <= _LONG
            else (_head_inverse(tail), None)
        )
        return self.of(h, c)

    def of(self, h: Any, c: Any = None) -> Any:
        """The loss of C⁻¹ = LTT(h), and of C = LTT(c) where that is known."""
        import torch

        from fedmf.mechanisms.optimise import (
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
        """v of `_constrained`, and a little more: where that is small enough, v ≤ 0."""
        import torch

        _, c = self.series(tail)
        k = self._participation.max_participations
        b = self._participation.min_separation
        n = c.numel()
        met = min(k, -(-c.numel() // b))
        m = torch.arange(1, met)[:, None] if pairs else torch.zeros(1, 1, dtype=torch.int64)
        lags = torch.arange(b, n - 1) // b * b
        size = 1 << (2 * n - 1).bit_length()
        heads = torch.fft.rfft(c * (torch.arange(n) < n - m * b), size)
        products = torch.fft.irfft(torch.fft.rfft(c, size) * heads.conj(), size)[:, :n]
        excess = products[:, b + 1 :] - products.gather(
            1, torch.minimum(lags, m * b) if pairs else lags[None]
        )
        return torch.cat([-c, excess.reshape(-1)]) + pairs * _MARGIN


def _head_inverse(tail: Any) -> Any:
    """h for c = (1, tail)."""
    import torch

    from fedmf.mechanisms.optimise import series_reciprocal

    return series_reciprocal(
        torch.cat([torch.ones(1, dtype=torch.float64), tail]), tail.numel() + 1
    )


def _exponentials(h: Any) -> tuple[Any, Any]:
    """ρ and λ with c_t = Σ_i ρ_i λ_i^t for c = 1/h: partial fractions at the roots of
    x^{p−1}h(1/x).

    A Newton step from each root gives it its derivative. Roots outside the unit circle make the
    loss infinite.
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
    c = reciprocal(_inverse(tail), participation.rounds)
    if not float(np.abs(c).max()) < _OVERFLOW or (positive and float(c.min()) < 0):
        return False
    falling = float(c.min()) >= 0 and bool((np.diff(c) <= 0).all())
    return falling or earliest_is_worst(
        c, participation.max_participations, participation.min_separation
    )


def _certified_blend(
    constrained: Vector, reference: Vector, participation: Participation
) -> Vector:
    """About the first certified point on the way from `constrained` to `reference`, certified
    itself.

    Its c ≥ 0, so that the sensitivity is exact with normalised columns as well.
    """

    def first(steps: Iterable[float]) -> int | None:
        certified = (_certified(mixed(step), participation, positive=True) for step in steps)
        return next((at for at, fits in enumerate(certified) if fits), None)

    def mixed(step: float) -> Vector:
        return constrained + step * (reference - constrained)

    coarse = [0.0, *np.geomspace(1e-12, 1.0, 73).tolist()]
    if (at := first(coarse)) is None:
        return reference
    fine = np.linspace(coarse[max(at - 1, 0)], coarse[at], 65)
    return mixed(float(fine[first(fine) or 0]))


_inverse_optimum = remembered(banded_inverse, version=7)

register(
    MechanismFamily(
        "banded-inverse",
        "the best Toeplitz C with p bands in its inverse",
        lambda ask, v: _inverse_optimum(v["bands"], *ask.rated_target),
        (SearchedParameter(BANDS, at_once(lambda ask, v: min(_WIDEST, ask.rounds))),),
        largest=1_000_000,
        largest_compared=1_000_000,
        optimized=True,
        aliases=("bandinvmf", "band-inv-mf"),
    )
)
