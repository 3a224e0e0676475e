"""How far x ↦ (x, √ν·x⊗x) moves when x and y range over the unit ball: r_d(ν) of the JME paper."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

FREE_LINE: Final = (11 + 5 * math.sqrt(5)) / 8
"""Largest ν with r_1(ν) = 4: in one dimension the second moment is free up to it."""

FREE_PLANE: Final = 0.5
"""Largest ν with r_d(ν) = 4 for d ≥ 2."""


def free_weight(dimension: int) -> float:
    """The largest ν at which r_d(ν) is still 4, the value of the first moment alone.

    >>> free_weight(2), round(free_weight(1), 4)
    (0.5, 2.7725)
    """
    return FREE_LINE if _checked(dimension) == 1 else FREE_PLANE


def joint_diameter_square(weight: ArrayLike, dimension: int) -> NDArray[np.float64]:
    """r_d(ν) = max over ‖x‖, ‖y‖ ≤ 1 of ‖x − y‖² + ν‖x⊗x − y⊗y‖².

    Args:
        weight: ν ≥ 0, any shape; infinity is allowed and gives infinity.
        dimension: d ≥ 1; all d ≥ 2 agree.

    Returns:
        r_d(ν), the shape of ν. Convex and non-decreasing, at least 4, and at most 4 + 2ν (d ≥ 2).

    Raises:
        ValueError: a weight is negative or NaN, or d < 1.

    References:
        Kalinin, Upadhyay and Lampert (2025), Theorems A.1 and A.2.

    >>> joint_diameter_square([0.5, 1.0], 2)
    array([4. , 4.5])
    """
    nu = np.asarray(weight, dtype=np.float64)
    if not (nu >= 0).all():
        raise ValueError(f"nu (weight of the second moment) must be at least 0; got {nu.min()}.")
    if _checked(dimension) == 1:
        beyond = np.maximum(nu, FREE_LINE)
        tau = np.sqrt(1 - 2 / beyond)
        return np.where(nu > FREE_LINE, (3 - tau) ** 2 * (beyond * tau + 1 + beyond) / 8, 4.0)
    beyond = np.maximum(nu, FREE_PLANE)
    return np.where(nu > FREE_PLANE, 2 + 2 * beyond + 1 / (2 * beyond), 4.0)


def _checked(dimension: int) -> int:
    if dimension < 1:
        raise ValueError(f"d (dimension) must be at least 1; got {dimension}.")
    return dimension
