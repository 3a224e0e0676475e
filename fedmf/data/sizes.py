"""How many examples users own when they own unequally many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["apportion", "pareto_quantiles"]


def pareto_quantiles(levels: NDArray[np.float64], mean: float, exponent: float) -> NDArray[np.float64]:
    """Quantiles of the Pareto law P(size > s) = (s₀/s)^a with s₀ = mean·(a − 1)/a.

    Args:
        levels: in [0, 1).
        mean: mean of the law.
        exponent: a > 1, the tail index; the smaller, the more unequal.

    Raises:
        ValueError: a is not above 1, where the law has no mean.

    >>> pareto_quantiles(np.array([0.0, 0.75, 0.99]), mean=20, exponent=2.0).round(3).tolist()
    [10.0, 20.0, 100.0]
    """
    if not (np.isfinite(exponent) and exponent > 1):
        raise ValueError(f"a (size-exponent) must be above 1 and finite; got {exponent}.")
    return mean * (exponent - 1) / exponent * (1 - levels) ** (-1 / exponent)


def apportion(examples: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole sizes that add up to ``examples``, near-proportional to ``shares``, and at least 1 each.

    >>> apportion(10, np.array([0.7, 0.3, 0.0])).tolist()
    [6, 3, 1]
    """
    users = shares.size
    total = shares.sum()
    exact = (examples - users) * (shares / total if total > 0 else np.full(users, 1 / users))
    sizes = np.floor(exact).astype(np.int64)
    left = examples - users - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:left]] += 1
    return sizes + 1
