"""Privacy of releases whose parameters were chosen in sight of earlier ones: a filter and an odometer.

docs/theory/composition.md proves both for Gaussian releases with sums that may depend on everything before.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fedmf.accounting.gaussian import gaussian_epsilon, gaussian_epsilons, gaussian_sigma
from fedmf.typing import Vector

#: V at which the odometer is tightest: a constant, since it must be fixed before anything is released.
_USUAL: Final = 1.0
#: What remains is rounded down to so many levels of μ²: a million users have few different budgets.
_LEVELS: Final = 1000
#: ε of μ is rounded up where it is found, by less than this.
_DOWN: Final = 1e-9


def odometer_epsilon(mu: Vector, delta: float) -> Vector:
    """What was lost at most, whoever chose what in sight of what.

    ε(V) = V/2 + √((V + r)(ln((V + r)/r) + 2 ln(1/δ))). V = μ² is the sum of the squared shifts, in standard
    deviations of the noise, that a user could cause so far; r is a constant.

    Args:
        mu: √V, shape (users,).
        delta: δ in (0, 1).

    Guarantees:
        However each release was chosen in sight of earlier ones, the privacy loss of a user exceeds this
        function of the user's V at some time with probability at most δ.

    References:
        Robbins (1970), normal mixture; Whitehouse, Ramdas, Rogers, Wu (2023), "Fully Adaptive Composition in
        Differential Privacy", whose odometers are made so; docs/theory/composition.md has the proof.

    >>> odometer_epsilon(np.array([0.0, 1.0]), 1e-5).round(3)
    array([0.   , 5.728])
    """
    if not 0 < delta < 1:
        raise ValueError(f"δ (failure probability) must lie strictly between 0 and 1; got {delta!r}.")
    V, rate = np.asarray(mu, dtype=np.float64) ** 2, 2 * math.log(1 / delta)
    r = _USUAL / (rate + math.log1p(rate))
    bound = V / 2 + np.sqrt((V + r) * (np.log((V + r) / r) + rate))
    return np.where(V > 0, bound * (1 + 2.0**-40), 0.0)


def remaining_epsilons(mu: Vector, epsilon: float, delta: float) -> Vector:
    """What of a total budget is left to users who spent μ: ε' with μ(ε')² + μ² ≤ μ(ε)², rounded down.

    Whatever is released under ε' then, chosen in sight of everything before, keeps the whole
    (ε, δ)-private: a Gaussian filter.

    Args:
        mu: spent so far, shape (users,).
        epsilon: the total, fixed before anything was released.
        delta: δ in (0, 1).

    Raises:
        ValueError: somebody spent more than the total.

    References:
        Smith, Thakurta (2022), "Fully Adaptive Composition for Gaussian Differential Privacy";
        Koskela, Tobaben, Honkela (2023), "Individual Privacy Accounting with Gaussian Differential Privacy",
        for each user's own; docs/theory/composition.md has the proof.

    >>> remaining_epsilons(np.array([0.0, 0.5]), 8.0, 1e-5).round(2)
    array([8.  , 7.55])
    """
    total = 1 / gaussian_sigma(epsilon, delta)
    spent = np.asarray(mu, dtype=np.float64)
    if (most := float(spent.max(initial=0.0))) > total:
        worst = gaussian_epsilon(1 / most, delta)
        raise ValueError(
            f"ε (total) must be at least what was spent; got {epsilon!r}, and somebody has {worst!r} behind "
            "them already."
        )
    level = np.floor(_LEVELS * (1 - (spent / total) ** 2) * (1 - 2.0**-50))
    level[spent == 0] = _LEVELS
    levels, which = np.unique(level, return_inverse=True)
    left = total * np.sqrt(levels / _LEVELS)
    epsilons = np.maximum(0.0, gaussian_epsilons(left, delta) * (1 - _DOWN) - _DOWN)
    return epsilons[which]
