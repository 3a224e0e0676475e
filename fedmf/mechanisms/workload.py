"""Workloads: the lower-triangular matrix A; its rows are the released queries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmf.matrices.arrays import Vector
from fedmf.matrices.series import check_count, check_leading, multiply

#: (ρ, e, s) stands for (1 − ρx^s)^e.
Factor = tuple[float, float, int]


@dataclass(frozen=True, eq=False)
class ToeplitzWorkload:
    """A = diag(r)·LTT(a)·diag(η): row t releases r_t·Σ_{i ≤ t} a_{t−i} η_i g_i.

    Args:
        name: how the command line and statements call it.
        coefficients: a, shape (n,), float64, finite, a_0 ≠ 0.
        row_weights: r, shape (n,), finite, non-negative, not all zero; None for ones. How much each
            query counts, or a factor that is part of the release (1/t in a running average).
        column_weights: η, shape (n,), finite, positive; None for ones. Learning rates: round i
            enters every later query with factor η_i.
        factors: a(x) = a_0·Π (1 − ρx^s)^e as a tuple of (ρ, e, s) where such a form is known; it
            gives fractional powers of the workload in closed form. The caller answers for the
            agreement.

    Raises:
        ValueError: the coefficients are not a finite vector with a_0 ≠ 0, or weights are out of
            range.

    >>> prefix(3).materialize()
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]])
    """

    name: str
    coefficients: Vector
    row_weights: Vector | None = None
    column_weights: Vector | None = None
    factors: tuple[Factor, ...] | None = None

    def __post_init__(self) -> None:
        a = np.array(self.coefficients, dtype=np.float64)
        if a.ndim != 1 or a.size == 0 or not np.isfinite(a).all() or a[0] == 0:
            raise ValueError(
                f"a (workload coefficients) must be a finite vector with a_0 != 0; got {a.shape}."
            )
        a.setflags(write=False)
        object.__setattr__(self, "coefficients", a)
        if self.row_weights is not None:
            object.__setattr__(self, "row_weights", _rows(self.row_weights, a.size))
        if self.column_weights is not None:
            object.__setattr__(self, "column_weights", _columns(self.column_weights, a.size))

    @property
    def rounds(self) -> int:
        """n, the number of queries."""
        return self.coefficients.size

    def leading(self, rounds: int) -> ToeplitzWorkload:
        """The first T queries, as a workload of T rounds.

        Raises:
            ValueError: T is not between 1 and n.

        >>> prefix(5).leading(2).rounds
        2
        """
        check_leading(rounds, self.rounds)
        if rounds == self.rounds:
            return self
        rows = self.row_weights
        columns = self.column_weights
        return replace(
            self,
            coefficients=self.coefficients[:rounds],
            row_weights=None if rows is None else rows[:rounds],
            column_weights=None if columns is None else columns[:rounds],
        )

    def column_squares(self) -> Vector:
        """[AᵀA]_{ii} = η_i²·Σ_{t ≥ i} r_t² a_{t−i}², shape (n,).

        >>> prefix(3).column_squares()
        array([3., 2., 1.])
        """
        squares = self.coefficients**2
        if self.row_weights is None:
            sums = np.cumsum(squares)[::-1]
        else:
            sums = _correlate(self.row_weights**2, squares)
        return sums if self.column_weights is None else sums * self.column_weights**2

    @cached_property
    def counted(self) -> Vector:
        """S_t = Σ_{i ≥ t} r_i², how much w_t counts in ‖LTT(w)‖_F² with these row weights, shape
        (n,).

        >>> prefix(3).counted
        array([3., 2., 1.])
        """
        rows = np.ones(self.rounds) if self.row_weights is None else self.row_weights**2
        return np.cumsum(rows[::-1])[::-1].copy()

    def row_sums(self) -> Vector:
        """Σ_i [A]_{ti}, shape (n,).

        >>> exponential(0.5, 3).row_sums()
        array([1.  , 1.5 , 1.75])
        """
        if self.column_weights is None:
            sums = np.cumsum(self.coefficients)
        else:
            sums = _correlate(self.column_weights[::-1], self.coefficients)[::-1]
        return sums if self.row_weights is None else sums * self.row_weights

    def materialize(self) -> NDArray[np.float64]:
        """The dense n×n matrix; an oracle for small n."""
        lag = np.subtract.outer(np.arange(self.rounds), np.arange(self.rounds))
        dense = np.where(lag >= 0, self.coefficients[np.abs(lag)], 0.0)
        if self.column_weights is not None:
            dense = dense * self.column_weights
        return dense if self.row_weights is None else dense * self.row_weights[:, None]


def prefix(rounds: int) -> ToeplitzWorkload:
    """All prefix sums: A is lower triangular with ones, what SGD with a constant learning rate
    releases.
    """
    return ToeplitzWorkload(
        "prefix", np.ones(check_count(rounds, "n (rounds)")), factors=((1.0, -1.0, 1),)
    )


def exponential(decay: float, rounds: int) -> ToeplitzWorkload:
    """Exponentially decaying sums, a_j = β^j.

    Args:
        decay: β in (0, 1).
        rounds: n.

    Raises:
        ValueError: β or n is out of range.

    >>> exponential(0.5, 3).coefficients
    array([1.  , 0.5 , 0.25])
    """
    if not 0 < decay < 1:
        raise ValueError(f"beta (decay) must be in (0, 1); got {decay}. With beta = 1 take prefix.")
    a = np.power(decay, np.arange(check_count(rounds, "n (rounds)")), dtype=np.float64)
    return ToeplitzWorkload(f"exponential:{decay:g}", a, factors=((decay, -1.0, 1),))


def momentum(decay: float, rounds: int, weight_decay: float = 1.0) -> ToeplitzWorkload:
    """Iterates of SGD with momentum β and weight decay α: a(x) = 1/((1 − αx)(1 − βx)).

    m_t = β m_{t−1} + g_t and θ_t = α θ_{t−1} + m_t, so that a_j = Σ_{i ≤ j} α^i β^{j−i}.

    Args:
        decay: β in [0, 1).
        rounds: n.
        weight_decay: α in (0, 1], the factor by which the model shrinks each round; 1 for none.

    Raises:
        ValueError: a value is out of range.

    >>> momentum(0.5, 3).coefficients
    array([1.  , 1.5 , 1.75])
    """
    if not 0 <= decay < 1:
        raise ValueError(
            f"beta (momentum) must be in [0, 1); got {decay}. The velocity would never fade."
        )
    if not 0 < weight_decay <= 1:
        raise ValueError(
            f"alpha (weight decay factor) must be in (0, 1]; got {weight_decay}. 1 is none."
        )
    n = check_count(rounds, "n (rounds)")
    powers = np.power(decay, np.arange(n), dtype=np.float64)
    if weight_decay == 1.0:
        a = (1.0 - decay * powers) / (1.0 - decay)
    elif weight_decay == decay:
        a = np.arange(1.0, n + 1.0) * powers
    else:
        faded = np.power(weight_decay, np.arange(n), dtype=np.float64)
        a = (weight_decay * faded - decay * powers) / (weight_decay - decay)
    name = f"momentum:{decay:g}" + ("" if weight_decay == 1.0 else f":{weight_decay:g}")
    return ToeplitzWorkload(name, a, factors=((weight_decay, -1.0, 1), (decay, -1.0, 1)))


def window(width: int, rounds: int) -> ToeplitzWorkload:
    """Means over a sliding window: a_j = 1/w for j < w, so a(x) = (1 − x^w)/((1 − x)·w).

    Args:
        width: w, 1 ≤ w ≤ n.
        rounds: n.

    Raises:
        ValueError: w or n is out of range.

    >>> window(2, 3).coefficients
    array([0.5, 0.5, 0. ])
    """
    n = check_count(rounds, "n (rounds)")
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= n:
        raise ValueError(f"w (window width) must be an integer between 1 and n={n}; got {width!r}.")
    a = np.where(np.arange(n) < width, 1.0 / width, 0.0)
    return ToeplitzWorkload(f"window:{width}", a, factors=((1.0, 1.0, width), (1.0, -1.0, 1)))


def average(rounds: int) -> ToeplitzWorkload:
    """Running averages: the prefix sums with row t (1-based) divided by t.

    >>> average(2).materialize()
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    rows = 1.0 / np.arange(1, check_count(rounds, "n (rounds)") + 1)
    return replace(weighted(prefix(rounds), rows=rows), name="average")


def weighted(
    workload: ToeplitzWorkload, rows: ArrayLike | None = None, columns: ArrayLike | None = None
) -> ToeplitzWorkload:
    """The workload with its queries weighted by r and its rounds by learning rates η.

    Args:
        workload: A.
        rows: r, shape (n,), non-negative, not all zero.
        columns: η, shape (n,), positive.

    Returns:
        diag(r)·A·diag(η), named after A with ",rows" or ",columns".

    Raises:
        ValueError: a weight is out of range.

    >>> weighted(prefix(2), columns=[1.0, 0.5]).materialize()
    array([[1. , 0. ],
           [1. , 0.5]])
    """
    n = workload.rounds
    name = workload.name
    row = workload.row_weights
    column = workload.column_weights
    if rows is not None:
        row = _rows(rows, n) * (1.0 if row is None else row)
        name += ",rows"
    if columns is not None:
        column = _columns(columns, n) * (1.0 if column is None else column)
        name += ",columns"
    return replace(workload, name=name, row_weights=row, column_weights=column)


def _correlate(left: Vector, right: Vector) -> Vector:
    """Σ_{t ≥ i} left_t·right_{t−i} for every i; exactly where all of the right are one, else by
    FFT.
    """
    n = left.size
    if (right == 1.0).all():
        return np.cumsum(left[::-1])[::-1]
    return multiply(right, left[::-1], n)[::-1]


def _rows(values: ArrayLike, rounds: int) -> Vector:
    return _weights(values, rounds, "r (row weights)", positive=False)


def _columns(values: ArrayLike, rounds: int) -> Vector:
    return _weights(values, rounds, "eta (column weights)", positive=True)


def _weights(values: ArrayLike, rounds: int, label: str, positive: bool) -> Vector:
    weights = np.array(values, dtype=np.float64)
    if positive:
        signs = "positive"
        has_these_signs = bool((weights > 0).all())
    else:
        signs = "non-negative and not all zero"
        has_these_signs = bool((weights >= 0).all() and weights.any())
    fault = ""
    if weights.shape != (rounds,):
        fault = f"shape {weights.shape}"
    elif not np.isfinite(weights).all() or not has_these_signs:
        fault = f"minimum {weights.min()}"
    if fault:
        raise ValueError(f"{label} must be n={rounds} finite numbers, {signs}; got {fault}.")
    weights.setflags(write=False)
    return weights


ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class LearningRateSchedule:
    """η_t over n rounds: an optional linear warm-up, then constant, or decayed to zero at the
    horizon.

    Args:
        kind: "constant", "linear" or "cosine".
        peak: η > 0, the largest learning rate.
        rounds: n, the horizon.
        warmup: number of rounds w in which η_t = η·(t+1)/(w+1).

    >>> LearningRateSchedule("linear", peak=1.0, rounds=4)(2)
    0.5
    """

    kind: str
    peak: float
    rounds: int
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScheduleKind):
            kinds = ", ".join(get_args(ScheduleKind))
            raise ValueError(
                f"schedule (of the learning rate) must be one of {kinds}; got {self.kind!r}."
            )
        if not (math.isfinite(self.peak) and self.peak > 0):
            raise ValueError(f"η (learning rate) must be positive and finite; got {self.peak}.")
        if not 0 <= self.warmup < self.rounds:
            raise ValueError(
                f"w (warm-up rounds) must lie in 0..{self.rounds - 1}; got {self.warmup}."
            )

    def __call__(self, t: int) -> float:
        """η_t for the 0-based round t.

        Raises:
            IndexError: t lies outside the horizon, where a decayed rate would turn negative.
        """
        if not 0 <= t < self.rounds:
            raise IndexError(f"t (round) must lie in 0..{self.rounds - 1}; got {t}.")
        if t < self.warmup:
            return self.peak * (t + 1) / (self.warmup + 1)
        progress = (t - self.warmup) / (self.rounds - self.warmup)
        if self.kind == "linear":
            return self.peak * (1.0 - progress)
        if self.kind == "cosine":
            return self.peak * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.peak


def nesterov(decay: float, rounds: int) -> ToeplitzWorkload:
    """Iterates of SGD with Nesterov's momentum: a(x) = (1 + β − βx)/((1 − x)(1 − βx)).

    v_t = β v_{t−1} + g_t and θ_t = θ_{t−1} + g_t + β v_t, so that a_j = 1 + β(1 − β^{j+1})/(1 − β).

    Args:
        decay: β in [0, 1).
        rounds: n.

    Raises:
        ValueError: a value is out of range.

    >>> nesterov(0.5, 3).coefficients
    array([1.5  , 1.75 , 1.875])
    """
    heavy = momentum(decay, rounds)
    factors = ((1.0, -1.0, 1), (decay, -1.0, 1), (decay / (1 + decay), 1.0, 1))
    return ToeplitzWorkload(f"nesterov:{decay:g}", 1 + decay * heavy.coefficients, factors=factors)


def decaying(decay: float, rounds: int) -> ToeplitzWorkload:
    """Exponentially decaying sums, a_j = β^j, for 0 ≤ β < 1; with β = 0 each round alone.

    >>> decaying(0.5, 3).name, decaying(0.0, 3).name
    ('exponential:0.5', 'window:1')
    """
    return exponential(decay, rounds) if decay > 0 else window(1, rounds)


def with_schedule(workload: ToeplitzWorkload, schedule: LearningRateSchedule) -> ToeplitzWorkload:
    """Rounds weighted by their learning rates, relative to the largest.

    Exact for the last model where the velocity of round t is multiplied by η_t, and for every model
    without momentum or with a constant rate: round i enters θ_n with Σ_{t ≥ i} η_t b_{t−i}, b the
    differences of a, and the weight of column i is that sum over a_{n−1−i} = Σ_{t ≥ i} b_{t−i}.
    Earlier models see the same weight in place of their own, which differs by the change of η over
    some 1/(1 − β) rounds.

    Args:
        workload: A for a constant rate, n rounds.
        schedule: η over the same n rounds.

    Raises:
        ValueError: the horizons differ.

    >>> from fedmf.mechanisms.workload import prefix
    >>> with_schedule(prefix(4), LearningRateSchedule("linear", 0.1, 4)).column_weights
    array([1.  , 0.75, 0.5 , 0.25])
    """
    n = workload.rounds
    if schedule.rounds != n:
        raise ValueError(f"n (rounds) must be {n} for the schedule too; got {schedule.rounds}.")
    if schedule.kind == "constant" and schedule.warmup == 0:
        return workload
    rates = np.array([schedule(t) for t in range(n)]) / schedule.peak
    steps = np.diff(workload.coefficients, prepend=0.0)
    reached = np.convolve(rates[::-1], steps)[:n][::-1]
    made = weighted(workload, columns=reached / workload.coefficients[::-1])
    name = f"{workload.name}*{schedule.kind}" + (f":{schedule.warmup}" if schedule.warmup else "")
    return replace(made, name=name)


def iterates(
    schedule: LearningRateSchedule,
    momentum_decay: float = 0.0,
    weight_decay: float = 0.0,
) -> ToeplitzWorkload:
    """Return the workload of a server optimizer, as far as it is linear in the updates.

    For SGD with momentum it is exact as `with_schedule` says. For an adaptive rule v is taken as
    fixed and the correction of m for its start is left out. Weight decay w becomes the factor 1 −
    η̄w with the mean rate η̄.

    Args:
        schedule: η over n rounds.
        momentum_decay: β or β₁.
        weight_decay: w, decoupled.

    >>> iterates(LearningRateSchedule("constant", 0.1, 8), 0.9).name
    'momentum:0.9'
    >>> iterates(LearningRateSchedule("cosine", 0.1, 8)).name
    'prefix*cosine'
    """
    n = schedule.rounds
    if momentum_decay == weight_decay == 0:
        return with_schedule(prefix(n), schedule)
    mean_rate = sum(schedule(t) for t in range(n)) / n
    return with_schedule(momentum(momentum_decay, n, 1 - mean_rate * weight_decay), schedule)


def parse_workload(text: str, rounds: int) -> ToeplitzWorkload:
    """The workload of a command-line name.

    Args:
        text: ``prefix``, ``average``, ``exponential:β``, ``window:w``, ``momentum:β`` or
            ``momentum:β:α`` with weight decay factor α, or ``nesterov:β``. ``*linear`` or
            ``*cosine`` behind it, or ``*cosine:20`` with 20 rounds of warm-up, weights the rounds
            by a learning-rate schedule.
        rounds: n.

    Raises:
        ValueError: the name is unknown, its parameter is missing or unreadable, or a value is out
            of range.

    >>> parse_workload("momentum:0.5", 3).coefficients
    array([1.  , 1.5 , 1.75])
    >>> parse_workload("prefix*linear", 4).column_weights
    array([1.  , 0.75, 0.5 , 0.25])
    """
    base, star, schedule = text.partition("*")
    if star:
        return with_schedule(parse_workload(base, rounds), _parse_schedule(schedule, rounds, text))
    name, *values = text.split(":")
    if name not in _PARSED:
        raise ValueError(f"A (workload) must be one of {_FORMS}; got {text!r}. Check the name.")
    counts, read, make = _PARSED[name]
    if len(values) not in counts:
        raise ValueError(
            f"A (workload) must be one of {_FORMS}; got {text!r}. Count the values of {name}."
        )
    try:
        numbers = [read(value) for value in values]
    except ValueError:
        kind = "an integer" if read is int else "a number"
        raise ValueError(f"A (workload) must give {kind} after {name}:; got {text!r}.") from None
    return make(rounds, *numbers)


_PARSED: dict[str, tuple[tuple[int, ...], type, Callable[..., ToeplitzWorkload]]] = {
    "prefix": ((0,), float, prefix),
    "exponential": ((1,), float, lambda n, decay: exponential(decay, n)),
    "window": ((1,), int, lambda n, width: window(width, n)),
    "average": ((0,), float, average),
    "momentum": ((1, 2), float, lambda n, decay, *weight_decay: momentum(decay, n, *weight_decay)),
    "nesterov": ((1,), float, lambda n, decay: nesterov(decay, n)),
}
_FORMS = (
    "prefix, exponential:β, window:w, average, momentum:β[:α], nesterov:β, all with"
    " *schedule[:warm-up]"
)


def _parse_schedule(text: str, rounds: int, whole: str) -> LearningRateSchedule:
    kind, _, warmup = text.partition(":")
    try:
        return LearningRateSchedule(kind, 1.0, rounds, int(warmup or 0))
    except ValueError as error:
        raise ValueError(f"A (workload) {whole!r} has no such schedule: {error}") from None
