"""Minimisation of a function of one variable without SciPy's start-up cost."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["minimize_on_interval"]

_GOLDEN = (5**0.5 - 1) / 2


def minimize_on_interval(
    objective: Callable[[float], float], low: float, high: float, grid: int = 17, tolerance: float = 1e-4
) -> tuple[float, float]:
    """The best point found in [low, high]: an even grid, then golden-section search around its best point.

    The grid makes the search safe for functions of several minima at least one grid step apart; the ends are
    part of the grid, so that a minimum at an end is found exactly.

    Args:
        objective: the function; infinity marks points that do not count.
        low: left end.
        high: right end.
        grid: number of grid points, at least 3.
        tolerance: final bracket as a fraction of the interval.

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
    inner = [right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)]
    values = [objective(x) for x in inner]
    while True:
        seen.update(zip(inner, values, strict=True))
        if right - left <= tolerance * (high - low):
            best = min(seen, key=seen.__getitem__)
            return best, seen[best]
        if values[0] <= values[1]:
            right = inner[1]
            inner = [right - _GOLDEN * (right - left), inner[0]]
            values = [objective(inner[0]), values[0]]
        else:
            left = inner[0]
            inner = [inner[1], left + _GOLDEN * (right - left)]
            values = [values[1], objective(inner[1])]
