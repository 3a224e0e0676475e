"""Minimisation of a function of one variable without SciPy's start-up cost."""

from __future__ import annotations

import math
from collections.abc import Callable

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
