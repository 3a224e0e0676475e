"""Upper confidence limits for the mean of bounded independent draws, without a normal approximation."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_PILOT = 0.1
_BISECTIONS = 60


def mean_upper_limit(values: NDArray[np.float64], bound: float, failure: float) -> float:
    """A number that is below the mean with probability at most `failure`.

    With any λ in [0, 1/bound] fixed before the values are seen, Π_i (1 + λ(m − x_i)) has expectation at most
    1 if the mean is m or more, and increases with m. So the m at which it reaches 1/failure is a limit, by
    Markov's inequality. λ is chosen from the first tenth of the values, the product is over the others.

    Args:
        values: independent draws of one distribution on [0, bound], shape (N,), N ≥ 20.
        bound: M > 0.
        failure: β in (0, 1).

    Returns:
        The limit, at most `bound`.

    Raises:
        ValueError: fewer than 20 values, one outside [0, bound], or β outside (0, 1).

    Guarantees:
        Valid for every N and every distribution on [0, bound]. It exceeds the sample mean by about
        M·log(1/β)/N + √(2·variance·log(1/β)/N).

    References:
        Waudby-Smith, Ramdas (2024), "Estimating means of bounded random variables by betting", section 4.

    >>> values = np.random.default_rng(0).random(1000)
    >>> 0.5 < mean_upper_limit(values, 1.0, 1e-6) < 0.58
    True
    """
    if values.size < 20:
        raise ValueError(f"values (draws) must be at least 20; got {values.size}.")
    if not 0 < failure < 1:
        raise ValueError(f"beta (failure probability) must lie strictly between 0 and 1; got {failure!r}.")
    if not (values.min() >= 0 and values.max() <= bound):
        raise ValueError(
            f"values (draws) must lie in [0, {bound!r}]; got {values.min()!r} to {values.max()!r}."
        )
    pilot = max(10, int(_PILOT * values.size))
    scaled = values / bound
    bet = _bet(scaled[:pilot], values.size - pilot, failure)
    rest, target = scaled[pilot:], -math.log(failure)

    def log_wealth(mean: float) -> float:
        return float(np.log1p(bet * (mean - rest)).sum())

    if log_wealth(1.0) < target:
        return bound
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if log_wealth(middle) >= target else (middle, high)
    return high * bound


def _bet(pilot: NDArray[np.float64], count: int, failure: float) -> float:
    """λ that would be best for normal draws with the pilot's moments, a little pessimistic; below 1."""
    spread = float(pilot.var()) + float(pilot.mean()) / pilot.size + 1.0 / pilot.size**2
    return min(math.sqrt(2.0 * -math.log(failure) / (count * spread)), 0.98)
