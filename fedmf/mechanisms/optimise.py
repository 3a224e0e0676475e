"""Minimisation: of a loss of many variables, and of one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import numpy as np

from fedmf.typing import Array, Vector

# Strong Wolfe conditions, and how a step is looked for.
_DECREASE, _CURVATURE, _MOST_TRIALS, _LONGER = 1e-3, 0.9, 20, 4.0
_ROUNDING = 2.2e-16

Function = Callable[[Vector], tuple[float, Vector]]


@dataclass(frozen=True)
class Descent:
    """Minimise a smooth function: quasi-Newton steps with a limited memory and strong Wolfe line searches.

    Args:
        tolerance: it ends at steps that win less than this, relative to the value where that exceeds 1.
        gradient: or where no coordinate of the gradient is larger.
        evaluations: or after so many values with their gradients, at most.
        memory: how many of the last steps tell the curvature, at least 1.

    References:
        Nocedal & Wright (2006), Numerical Optimization, Algorithms 7.4, 3.5 and 3.6.

    >>> square = lambda x: (float(x @ x - 2 * x[0]), 2 * x - [2.0, 0.0])
    >>> Descent(1e-12, 1e-8, 100).least(square, np.ones(2)).round(6)
    array([1., 0.])
    """

    tolerance: float
    gradient: float
    evaluations: int
    memory: int = 10

    def least(
        self, function: Function, start: Vector, low: Vector | None = None, high: Vector | None = None
    ) -> Vector:
        """Where the least value was found.

        Args:
            function: the value and its gradient; an infinite value marks points that do not count.
            start: where to begin; its value is finite.
            low: the least value of every coordinate; a step ends at the first bound that it meets, hence this
                is for bounds that few coordinates reach.
            high: the largest.

        Guarantees:
            No larger than the value at the start, moved into the bounds.
        """
        line = _Line(function, self.evaluations)
        low = np.full(start.size, -math.inf) if low is None else low
        high = np.full(start.size, math.inf) if high is None else high
        bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())
        x = np.clip(start, low, high)
        value, slope = line.at(x)
        history = _History(self.memory, x.size)
        while line.left > 0:
            free = slope
            if bounded:
                free = np.where(((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0)), 0.0, slope)
            if np.abs(np.clip(x - free, low, high) - x if bounded else free).max() <= self.gradient:
                break
            direction = history.direction(free)
            if bounded:
                outwards = ((x <= low) & (direction < 0)) | ((x >= high) & (direction > 0))
                direction[(free == 0.0) | outwards] = 0.0
            if not float(direction @ slope) < 0.0:
                history.forget()
                direction = -free
            longest = _room(x, direction, low, high) if bounded else math.inf
            first = 1.0 if history.filled else min(1.0, 1.0 / float(np.linalg.norm(direction)))
            found = line.search(x, value, slope, direction, min(first, longest), longest)
            if found is None:
                if not history.filled:
                    break
                history.forget()
                continue
            step, latest, latest_slope = found
            moved = step * direction
            x = np.clip(x + moved, low, high) if bounded else x + moved
            history.add(moved, latest_slope - slope)
            won, value, slope = value - latest, latest, latest_slope
            if won <= self.tolerance * max(abs(value), abs(value + won), 1.0):
                break
        return x


def _room(x: Vector, direction: Vector, low: Vector, high: Vector) -> float:
    """The longest step that keeps every coordinate within its bounds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(direction > 0, (high - x) / direction, (low - x) / direction)
    return float(np.where(direction == 0.0, math.inf, steps).min())


class _History:
    """The last steps s and the changes y of the gradient along them: an inverse Hessian of low rank."""

    def __init__(self, memory: int, size: int) -> None:
        self._steps, self._changes = np.empty((memory, size)), np.empty((memory, size))
        self._products = np.empty(memory)
        self._order: list[int] = []

    @property
    def filled(self) -> bool:
        return bool(self._order)

    def forget(self) -> None:
        self._order = []

    def add(self, step: Vector, change: Vector) -> None:
        """Unless the curvature along the step is not positive."""
        product = float(step @ change)
        if product <= _ROUNDING * float(change @ change):
            return
        memory = len(self._products)
        at = len(self._order) if len(self._order) < memory else self._order.pop(0)
        self._steps[at], self._changes[at], self._products[at] = step, change, product
        self._order.append(at)

    def direction(self, slope: Vector) -> Vector:
        """−Hg by the two loops."""
        direction, shares = -slope, {}
        for at in reversed(self._order):
            shares[at] = float(self._steps[at] @ direction) / self._products[at]
            direction -= shares[at] * self._changes[at]
        if self._order:
            change = self._changes[self._order[-1]]
            direction *= self._products[self._order[-1]] / float(change @ change)
        for at in self._order:
            back = float(self._changes[at] @ direction) / self._products[at]
            direction += (shares[at] - back) * self._steps[at]
        return direction


class _Line:
    """Values along lines, as many as are left."""

    def __init__(self, function: Function, evaluations: int) -> None:
        self._function, self.left = function, evaluations

    def at(self, x: Vector) -> tuple[float, Array]:
        self.left -= 1
        return self._function(x)

    def search(
        self, x: Vector, value: float, slope: Vector, direction: Vector, first: float, longest: float
    ) -> tuple[float, float, Vector] | None:
        """A step with its value and gradient: one that meets the Wolfe conditions, else the best that falls.

        Between `near`, the best step known, and `far`, where the function is larger or rises, lies one.
        """
        initial = float(slope @ direction)
        near = (0.0, value, initial)
        far: tuple[float, float, float] | None = None
        best: tuple[float, float, Vector] | None = None
        step = first
        for _ in range(_MOST_TRIALS):
            if self.left <= 0:
                break
            latest, latest_slope = self.at(x + step * direction)
            rise = float(latest_slope @ direction) if math.isfinite(latest) else math.inf
            if not latest <= value + _DECREASE * step * initial or latest >= near[1]:
                far = (step, latest, rise)
            else:
                best = (step, latest, latest_slope)
                if abs(rise) <= -_CURVATURE * initial or (rise < 0 and step >= longest):
                    break
                if rise * ((far[0] if far else math.inf) - near[0]) >= 0:
                    far = near
                near = (step, latest, rise)
            step = min(_LONGER * step, longest) if far is None else _between(near, far)
            if step == near[0]:
                break
        return best


def _between(near: tuple[float, float, float], far: tuple[float, float, float]) -> float:
    """The minimum of the cubic through two values with their slopes, away from both ends; else the middle."""
    (a, value_a, slope_a), (b, value_b, slope_b) = near, far
    if not (math.isfinite(value_b) and math.isfinite(slope_b)):
        return a + 0.1 * (b - a)
    first = slope_a + slope_b - 3.0 * (value_a - value_b) / (a - b)
    square = first * first - slope_a * slope_b
    middle = 0.5 * (a + b)
    if square < 0:
        return middle
    second = math.copysign(math.sqrt(square), b - a)
    below = slope_b - slope_a + 2.0 * second
    if below == 0.0:
        return middle
    step = b - (b - a) * (slope_b + second - first) / below
    share = (step - a) / (b - a)
    return step if 0.05 <= share <= 0.95 else a + min(max(share, 0.05), 0.95) * (b - a)


_GOLDEN = (5**0.5 - 1) / 2
_SMALLEST_STEP = 1e-7
_MOST_STEPS = 200


def minimize_on_interval(
    objective: Callable[[float], float], low: float, high: float, grid: int = 17, tolerance: float = 1e-4
) -> tuple[float, float]:
    """The best point found in [low, high]: an even grid, then Brent's method around its best point.

    The grid makes the search safe for functions of several minima at least one grid step apart; the ends are
    part of the grid, so that a minimum at an end is found exactly.

    Args:
        objective: the function; infinity marks points that do not count.
        low: left end.
        high: right end.
        grid: number of grid points, at least 3.
        tolerance: distance to the minimum as a fraction of the interval.

    Returns:
        The point and its value; never worse than the best grid point.

    >>> x, y = minimize_on_interval(lambda x: (x - 0.3) ** 2, 0.0, 1.0)
    >>> abs(x - 0.3) < 1e-4
    True
    """
    points = [low + (high - low) * i / (grid - 1) for i in range(grid)]
    seen = {x: objective(x) for x in points}
    at = min(range(grid), key=lambda i: seen[points[i]])
    left, right = points[max(0, at - 1)], points[min(grid - 1, at + 1)]
    return _brent(objective, seen, points[at], left, right, tolerance * (high - low))


def minimize_from(
    objective: Callable[[float], float],
    start: float,
    low: float,
    high: float,
    step: float,
    tolerance: float = 1e-4,
) -> tuple[float, float]:
    """A minimum near a point that is near it: steps that double downhill, then Brent's method.

    Args:
        objective: the function; infinity marks points that do not count.
        start: where to begin, in [low, high].
        low: left end.
        high: right end.
        step: the first step, as a fraction of the interval.
        tolerance: as for `minimize_on_interval`.

    >>> x, y = minimize_from(lambda x: (x - 0.3) ** 2, 0.5, 0.0, 1.0, 0.05)
    >>> abs(x - 0.3) < 1e-4
    True
    """
    middle, width = start, step * (high - low)
    left, right = max(low, start - width), min(high, start + width)
    seen = {x: objective(x) for x in dict.fromkeys((left, middle, right))}
    while min(seen[left], seen[right]) < seen[middle]:
        width *= 2.0
        if seen[left] < seen[right]:
            if left == low:
                return _brent(objective, seen, left, left, middle, tolerance * (high - low))
            left, middle, right = max(low, left - width), left, middle
            seen[left] = objective(left)
        else:
            if right == high:
                return _brent(objective, seen, right, middle, right, tolerance * (high - low))
            left, middle, right = middle, right, min(high, right + width)
            seen[right] = objective(right)
    return _brent(objective, seen, middle, left, right, tolerance * (high - low))


def _brent(
    objective: Callable[[float], float],
    seen: dict[float, float],
    start: float,
    left: float,
    right: float,
    tolerance: float,
) -> tuple[float, float]:
    """Brent (1973), chapter 5: parabolas through the three best points, golden sections where they fail."""
    known = sorted((x for x in seen if left <= x <= right), key=seen.__getitem__)
    best = start
    second, third = (*(x for x in known if x != best), best, best)[:2]
    step = before = right - left
    for _ in range(_MOST_STEPS):
        middle, least = 0.5 * (left + right), 0.5 * tolerance + _SMALLEST_STEP * abs(best)
        if abs(best - middle) <= 2.0 * least - 0.5 * (right - left):
            break
        r = (best - second) * (seen[best] - seen[third])
        q = (best - third) * (seen[best] - seen[second])
        p = (best - third) * q - (best - second) * r
        q = 2.0 * (q - r)
        p, q = (-p, q) if q > 0 else (p, -q)
        usable = math.isfinite(p) and math.isfinite(q) and abs(p) < abs(0.5 * q * before)
        if usable and q * (left - best) < p < q * (right - best):
            before, step = step, p / q
            trial = best + step
            if min(trial - left, right - trial) < 2.0 * least:
                step = math.copysign(least, middle - best)
        else:
            before = (left if best >= middle else right) - best
            step = (1.0 - _GOLDEN) * before
        trial = best + (step if abs(step) >= least else math.copysign(least, step))
        if trial not in seen:
            seen[trial] = objective(trial)
        if seen[trial] <= seen[best]:
            left, right = (best, right) if trial >= best else (left, best)
            best, second, third = trial, best, second
        else:
            left, right = (trial, right) if trial < best else (left, trial)
            if seen[trial] <= seen[second] or second == best:
                second, third = trial, second
            elif seen[trial] <= seen[third] or third in (best, second):
                third = trial
    best = min(seen, key=seen.__getitem__)
    return best, seen[best]


#: What BLAS libraries read when they are loaded.
THREAD_LIMITS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def single_threaded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, run with all BLAS libraries limited to one thread."""

    @wraps(function)
    def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        from threadpoolctl import threadpool_limits

        if not _limited_when_loaded():
            import scipy.linalg  # noqa: F401  its BLAS must be loaded before it can be limited

        with threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


def _limited_when_loaded() -> bool:
    """Whether a BLAS that is loaded from now on has one thread."""
    first, *others = (os.environ.get(name) for name in THREAD_LIMITS)
    return first == "1" and all(limit in (None, "1") for limit in others)
