"""The squared error of a Toeplitz strategy matrix with a banded inverse, with gradient and Hessian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedmf.mechanisms.banded_toeplitz import minimize_free
from fedmf.mechanisms.cache import remembered
from fedmf.mechanisms.closed_forms import bifr
from fedmf.mechanisms.errors import LARGEST_RATED, RMSE, Objective, PowerMean, QuickError, RatedError
from fedmf.mechanisms.optimise import Descent, minimize_on_interval, single_threaded
from fedmf.mechanisms.registry import BANDS, Family, Free, at_once, register
from fedmf.mechanisms.sensitivity import autocorrelation, comb_sum, comb_sum_adjoint, earliest_is_worst
from fedmf.mechanisms.series import fft_size, multiply, padded, product, reciprocal, settled_reciprocal
from fedmf.mechanisms.toeplitz import InverseToeplitz
from fedmf.mechanisms.workload import ToeplitzWorkload, prefix
from fedmf.participation import Participation
from fedmf.typing import Vector

_OVERFLOW = 1e100


class InverseObjective:
    """log(E·Q) as a function of h, C = LTT(1/h), for prefix sums with any row weights.

    E = ‖A C⁻¹‖_F² = hᵀMh is a quadratic form. Q = ‖S c‖² with S c = Σ_{l<k} (c shifted by lb), the sum of the
    earliest columns. With u = c² and v = c³ as power series ∂c/∂h_i = −x^i u, ∂²c/∂h_i∂h_j = 2x^{i+j} v.
    So

        ∂Q/∂h_i = −2⟨SᵀS c, x^i u⟩,    ∂²Q/∂h_i∂h_j = 2⟨x^i S u, x^j S u⟩ + 4⟨SᵀS c, x^{i+j} v⟩.

    The Gram matrix of the shifted S u follows from its first row: every step down its diagonals drops one
    product at the end. So all takes O(n(log n + p) + p³), less where c settles early.

    Args:
        bands: p.
        participation: (n, k, b).
        workload: A of n rounds, prefix sums without column weights.

    Raises:
        ValueError: another workload.
    """

    #: Newton steps may be taken.
    has_hessian = True

    def __init__(self, bands: int, participation: Participation, workload: ToeplitzWorkload) -> None:
        if workload.column_weights is not None or not (workload.coefficients == 1.0).all():
            raise ValueError(f"A (workload) must be of prefix sums here; got {workload.name!r}.")
        n = participation.rounds
        rows = np.ones(n) if workload.row_weights is None else workload.row_weights**2
        counted = np.cumsum(rows[::-1])[::-1]
        weights = np.append(counted[: bands - 1], counted[bands - 1 :].sum())
        sums = np.tril(np.ones((bands, bands)))
        self._form = (sums.T * weights) @ sums
        self._participation = participation

    def __call__(self, h: Vector) -> tuple[float, Vector]:
        """The value and the gradient, shape (p,); (inf, 0) where C overflows."""
        c = self._column(h)
        if c is None:
            return float("inf"), np.zeros_like(h)
        pulled = self._form @ h
        error, p = float(h @ pulled), h.size
        earliest, back = self._earliest(c)
        square = float(earliest @ earliest)
        u = multiply(c, c, c.size)
        slope = -2.0 * _lagged(back, u, p)
        return float(np.log(error) + np.log(square)), 2.0 * pulled / error + slope / square

    def hessian(self, h: Vector) -> NDArray[np.float64]:
        """Where C does not overflow, shape (p, p)."""
        c, p = self._column(h), h.size
        assert c is not None
        pulled = self._form @ h
        error = float(h @ pulled)
        earliest, back = self._earliest(c)
        square = float(earliest @ earliest)
        u = multiply(c, c, c.size)
        curved = _lagged(back, multiply(u, c, c.size), min(2 * p - 1, c.size))
        curved = 4.0 * padded(curved, 2 * p - 1)
        second = curved[np.add.outer(np.arange(p), np.arange(p))] + 2.0 * _gram(self._earliest(u)[0], p)
        first, own = -2.0 * _lagged(back, u, p) / square, 2.0 * pulled / error
        return 2.0 * self._form / error - np.outer(own, own) + second / square - np.outer(first, first)

    def _column(self, h: Vector) -> Vector | None:
        """c, with as much again after it settled: its square and its cube settle a little later."""
        n = self._participation.rounds
        c = settled_reciprocal(h, n)
        if not (np.abs(c) < _OVERFLOW).all():
            return None
        return padded(c, min(n, 2 * c.size))

    def _earliest(self, c: Vector) -> tuple[Vector, Vector]:
        """S c, and the first entries of SᵀS c."""
        part = self._participation
        n, k, b = part.rounds, part.max_participations, part.min_separation
        whole = padded(c, min(n, (k - 1) * b + c.size))
        summed = comb_sum(whole, k, b)
        return summed, comb_sum_adjoint(summed, k, b)[: c.size]


def _lagged(left: Vector, right: Vector, lags: int) -> Vector:
    """Σ_t left_t·right_{t−i} for i < lags."""
    return np.array([left[i:] @ right[: left.size - i] for i in range(lags)])


def _gram(u: Vector, p: int) -> NDArray[np.float64]:
    """Σ_t u_{t−i} u_{t−j} for i, j < p."""
    gram = np.zeros((p, p))
    gram[0] = gram[:, 0] = _lagged(u, u, p)
    # Row i + 1 from row i: the same products but the last.
    last = u[::-1][:p]
    last = padded(last, p)
    for i in range(p - 1):
        gram[i + 1, i + 1 :] = gram[i, i : p - 1] - last[i] * last[i : p - 1]
        gram[i + 1 :, i + 1] = gram[i + 1, i + 1 :]
    return gram


_Objective = Callable[[Vector], tuple[float, Vector]]

_DESCENT = Descent(tolerance=1e-11, gradient=1e-7, evaluations=3000, memory=30)
_EVALUATIONS_CONSTRAINED = 600
# L-BFGS starts with a step of length one; in these units that is short enough not to leave stable C⁻¹.
_UNIT = 0.02
_REJECTED, _OVERFLOW_banded_inverse_optimizer = 1e3, 1e100
_MOST_ROUNDS, _FEASIBLE, _BISECTIONS = 8, 1e-7, 8
_FREE_STARTS = (0.5, 0.75, 0.9)
# Beyond, a step takes a tenth of a second and more.
_LONG = 65_536


class EarliestObjective:
    """log(E·Q) with E = ‖A C⁻¹‖_F² and Q = ‖Σ_{l<k} C_{:,lb}‖², as a function of c_1 … c_{p−1}.

    Args:
        participation: (n, k, b).
        workload: A of the same horizon; with column weights at most 4096 rounds.
        order: q ≥ 1 of a power mean of the rows of A C⁻¹ in the place of E (`PowerMean`).

    Raises:
        ValueError: the workload does not fit.
    """

    def __init__(self, participation: Participation, workload: ToeplitzWorkload, order: float = 1.0) -> None:
        n = participation.rounds
        if workload.rounds != n:
            raise ValueError(
                f"A (workload) must have n={n} rounds; got {workload.rounds}. Both need one horizon."
            )
        rates = workload.column_weights
        if rates is not None and n > LARGEST_RATED:
            raise ValueError(
                f"n (rounds) must be at most {LARGEST_RATED} to optimise for column weights; got {n}. "
                "Optimise without them: errors include them for every C."
            )
        self._rates, self._rated = rates, None if rates is None else RatedError(workload, order)
        self.participation, self._a = participation, workload.coefficients
        self._power = PowerMean.of(workload, order)
        self._prefix = bool((self._a == 1.0).all())
        #: Whether `InverseObjective` covers it.
        self.newton = self._prefix and rates is None and order == 1.0

    def inverse(self, tail: Vector) -> Vector:
        """h, the p coefficients of C⁻¹ for c = (1, tail)."""
        return reciprocal(np.concatenate([[1.0], tail]), tail.size + 1)

    def strategy(self, h: Vector) -> Vector | None:
        """c = 1/h to n terms; None where it overflows."""
        c = reciprocal(h, self.participation.rounds)
        return c if float(np.abs(c).max()) < _OVERFLOW_banded_inverse_optimizer else None

    def __call__(self, tail: Vector, penalty: _Objective | None = None) -> tuple[float, Vector]:
        """The value and its gradient, shape (p − 1,); (1e3, 0) where C overflows.

        From h·c = 1 follows dc = −c·c·dh and dh = −h·h·dc as power series; their adjoints carry the gradient
        in all n entries of c to h, and that in h to the first p entries of c.

        Args:
            tail: c_1 … c_{p−1}.
            penalty: added to the value; a function of all of c with its gradient.
        """
        h = self.inverse(tail)
        c = self.strategy(h) if np.isfinite(h).all() else None
        if c is None:
            return _REJECTED, np.zeros_like(tail)
        error, error_slope = self._error(h)
        k, b = self.participation.max_participations, self.participation.min_separation
        earliest = comb_sum(c, k, b)
        square = float(earliest @ earliest)
        value, slope_c = np.log(error) + np.log(square), 2.0 * comb_sum_adjoint(earliest, k, b) / square
        if penalty is not None:
            more, more_slope = penalty(c)
            value, slope_c = value + more, slope_c + more_slope
        slope_h = error_slope / error - product([c, c, slope_c[::-1]], c.size)[::-1][: h.size]
        twice = multiply(h, multiply(h, slope_h[::-1], h.size), h.size)[::-1]
        return float(value), -twice[1:]

    def _error(self, h: Vector) -> tuple[float, Vector]:
        """Σ_t S_t w_t² with w = a·h and S_t = Σ_{i ≥ t} ρ_i (η = 1), and its gradient in h."""
        n, p = self._a.size, h.size
        if self._rated is not None and self._rates is not None:
            error, _, slope = self._rated(padded(h, n), self._rates)
            return error, slope[:p]
        if self._prefix:
            sums = np.cumsum(h)
            w = np.append(sums, np.full(n - p, sums[-1]))
        else:
            w = multiply(self._a, h, n)
        weighted = np.cumsum(self._power(np.cumsum(w * w))[::-1])[::-1] * w
        if self._prefix:
            return float(weighted @ w), 2.0 * np.cumsum(weighted[::-1])[::-1][:p]
        return float(weighted @ w), 2.0 * multiply(self._a, weighted[::-1], n)[::-1][:p]


def banded_inverse(
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> InverseToeplitz:
    """Minimise the objective over C⁻¹ = LTT(h), h ∈ R^p, h_0 = 1, with the sensitivity under (k, b).

    Args:
        bands: p, 1 ≤ p ≤ n.
        participation: (n, k, b).
        workload: A; prefix sums by default.
        objective: which error.

    Returns:
        C, streamed without stored vectors: p − 1 past inputs are drawn again in each round.

    Raises:
        ValueError: p is out of range or the workload does not fit.

    Guarantees:
        The earliest pattern is certified to be the worst (`earliest_is_worst`), so the sensitivity is exact.
        Never worse than `bifr` with the best γ, nor than the identity.

    References:
        Kalinin et al. (2025), "Back to square roots" (banded inverse factorization);
        Kalinin, McKenna, Pagh & Lampert (2026), arXiv:2601.22334.

    >>> banded_inverse(2, Participation(64, 2, 32)).correlation[:3].round(3)
    array([ 1.   , -0.834,  0.   ])
    """
    n = participation.rounds
    workload = prefix(n) if workload is None else workload
    goal = objective.for_toeplitz(workload)
    queries = goal.queries(workload)
    means = [EarliestObjective(participation, queries, order) for order in goal.orders]
    if bands == 1:
        return bifr(0.5, 1, n)
    reference = _best_fraction(bands, QuickError(participation, workload, objective), n)
    starts = [reference]
    if bands <= 64:
        starts += [_tail(gamma, bands) for gamma in _FREE_STARTS]
    last = means[-1]
    tail = _unconstrained(bands, means[0], queries, starts)
    for mean in means[1:]:
        tail = _minimize(mean, tail)
    if not _certified(last, tail):
        constrained = tail if n > _LONG else _minimize_constrained(last, reference)
        tail = _certified_blend(last, constrained, reference)
    # Users in every round want the identity, which no γ > 0 reaches.
    best = min((tail, reference, np.zeros(bands - 1)), key=lambda x: last(x)[0])
    return InverseToeplitz(last.inverse(best), n)


def _tail(gamma: float, bands: int) -> Vector:
    """c_1 … c_{p−1} of γ-BIFR."""
    return np.array(bifr(gamma, bands, bands).strategy[1:])


def _best_fraction(bands: int, error: QuickError, rounds: int) -> Vector:
    """The tail of γ-BIFR with the best γ: non-negative and non-increasing, hence certified."""
    gamma, _ = minimize_on_interval(lambda g: error(bifr(g, bands, rounds)), 0.05, 0.999, 17, 1e-4)
    return _tail(gamma, bands)


def _unconstrained(
    bands: int, objective: EarliestObjective, workload: ToeplitzWorkload, starts: list[Vector]
) -> Vector:
    """The best c_1 … c_{p−1} from these starts: by Newton steps in h for prefix sums, else by L-BFGS.

    At long horizons only the first start, γ-BIFR with the best γ, is tried.
    """
    if not objective.newton:
        return min((_minimize(objective, x) for x in starts), key=lambda x: objective(x)[0])
    curved = InverseObjective(bands, objective.participation, workload)
    if objective.participation.rounds > _LONG:
        starts = starts[:1]
    found = [minimize_free(objective.inverse(x), curved) for x in starts]
    h = min(found, key=lambda h: curved(h)[0])
    return reciprocal(h, bands)[1:]


def _certified(objective: EarliestObjective, tail: Vector) -> bool:
    c = objective.strategy(objective.inverse(tail))
    part = objective.participation
    if c is not None and float(c.min()) >= 0 and bool((np.diff(c) <= 0).all()):
        return True
    return c is not None and earliest_is_worst(c, part.max_participations, part.min_separation)


def _minimize(objective: _Objective, start: Vector, descent: Descent = _DESCENT) -> Vector:
    """L-BFGS with a first step so short that it does not leave the stable C⁻¹ far behind."""

    def scaled(y: Vector) -> tuple[float, Vector]:
        value, slope = objective(_UNIT * y)
        return value, _UNIT * slope

    return descent.least(scaled, start / _UNIT) * _UNIT


def _minimize_constrained(objective: EarliestObjective, start: Vector) -> Vector:
    """Augmented Lagrangian of −c_t ≤ 0 and R(g) ≤ R(⌊(g−1)/b⌋·b), g > b, R the autocorrelation of c."""
    n, b = objective.participation.rounds, objective.participation.min_separation
    anchors = (np.arange(b, n - 1) // b) * b
    sign, lags = np.zeros(n), np.zeros(anchors.size)
    weight, previous, x = 10.0, np.inf, start
    descent = replace(_DESCENT, evaluations=_EVALUATIONS_CONSTRAINED)
    for _ in range(_MOST_ROUNDS):
        penalty = _penalty(sign, lags, anchors, weight)
        x = _minimize(lambda y, p=penalty: objective(y, p), x, descent)
        c = objective.strategy(objective.inverse(x))
        assert c is not None
        products = autocorrelation(c)
        excess = products[b + 1 :] - products[anchors]
        sign, lags = np.maximum(0.0, sign - weight * c), np.maximum(0.0, lags + weight * excess)
        violation = max(float(-c.min()), float(excess.max(initial=0.0)))
        if violation < _FEASIBLE:
            break
        if violation > 0.3 * previous:
            weight *= 5.0
        previous = violation
    return x


def _penalty(sign: Vector, lags: Vector, anchors: NDArray[np.int64], weight: float) -> _Objective:
    """Σ (max(0, λ + μv)² − λ²)/2μ over the constraints v ≤ 0 of `_minimize_constrained`, of c."""

    def value_and_slope(c: Vector) -> tuple[float, Vector]:
        n, size = c.size, fft_size(2 * c.size)
        spectrum = np.fft.rfft(c, size)
        products = np.fft.irfft(spectrum * spectrum.conj(), size)[:n]
        first = n - anchors.size
        on_lags = np.maximum(0.0, lags + weight * (products[first:] - products[anchors]))
        on_sign = np.maximum(0.0, sign - weight * c)
        value = (on_lags @ on_lags + on_sign @ on_sign - lags @ lags - sign @ sign) / (2.0 * weight)
        slope = np.zeros(n)
        slope[first:] = on_lags
        slope -= np.bincount(anchors, on_lags, n)
        # R(g) = Σ_l c_l c_{l+g}, so its slope in c_l is c_{l+g} + c_{l−g}.
        real = 2.0 * np.fft.rfft(slope, size).real
        return float(value), np.fft.irfft(spectrum * real, size)[:n] - on_sign

    return value_and_slope


def _certified_blend(objective: EarliestObjective, constrained: Vector, reference: Vector) -> Vector:
    """About the first certified point on the way from `constrained` to `reference`, certified itself.

    Its c ≥ 0, so that the sensitivity is exact with normalised columns as well.
    """

    def mixed(step: float) -> Vector:
        return constrained + step * (reference - constrained)

    def accepted(step: float) -> bool:
        c = objective.strategy(objective.inverse(mixed(step)))
        return c is not None and float(c.min()) >= 0 and _certified(objective, mixed(step))

    refused = 0.0
    for step in (0.0, *np.geomspace(1e-8, 1.0, 49)):
        if accepted(step):
            break
        refused = step
    else:
        return reference
    for _ in range(_BISECTIONS if step else 0):
        middle = 0.5 * (refused + step)
        refused, step = (refused, middle) if accepted(middle) else (middle, step)
    return min(mixed(step), reference, key=lambda x: objective(x)[0])


# Wider inverses draw more past noise again in each round and gain about 1 % at most where tried.
_WIDEST_INVERSE = 64
_inverse = lru_cache(maxsize=32)(remembered(single_threaded(banded_inverse), version=3))

register(
    Family(
        "banded-inverse",
        "the best Toeplitz C whose inverse has p bands",
        lambda ask, v: _inverse(v["bands"], *ask.rated_target),
        (Free(BANDS, at_once(lambda ask, v: min(_WIDEST_INVERSE, ask.rounds))),),
        largest=1_000_000,
        largest_compared=1_000_000,
        optimized=True,
        also=("bandinvmf", "band-inv-mf"),
    )
)
