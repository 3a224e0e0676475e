"""Vectors as fields of frozen values: copied, checked, read-only."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedmf.typing import Vector


def frozen_vector(values: ArrayLike, symbol: str, meaning: str) -> Vector:
    """A read-only float64 copy of a finite, non-empty vector.

    Raises:
        ValueError: the values are not a finite vector of at least one entry.
    """
    vector = np.array(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"{symbol} ({meaning}) must be a non-empty vector; got shape {vector.shape}.")
    if not np.isfinite(vector).all():
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise ValueError(f"{symbol} ({meaning}) must be finite; got {vector[at]} at index {at}.")
    vector.setflags(write=False)
    return vector


def positive_vector(values: ArrayLike, symbol: str, meaning: str) -> Vector:
    """`frozen_vector` of positive entries.

    Raises:
        ValueError: the values are not such a vector.
    """
    vector = frozen_vector(values, symbol, meaning)
    if not (vector > 0).all():
        at = int(np.flatnonzero(vector <= 0)[0])
        raise ValueError(f"{symbol} ({meaning}) must be positive; got {vector[at]} at index {at}.")
    return vector


def column_factors(values: ArrayLike, rounds: int) -> Vector:
    """s, what columns are divided by.

    Raises:
        ValueError: it is not a vector of n positive numbers.
    """
    factors = positive_vector(values, "s", "column scale")
    if factors.size != rounds:
        raise ValueError(f"s (column scale) must have n={rounds} entries; got {factors.size}.")
    return factors


def check_leading(rounds: int, horizon: int) -> None:
    """Refuse a T outside 1 … n.

    Raises:
        ValueError: it is.
    """
    if not 1 <= rounds <= horizon:
        raise ValueError(f"T (leading rounds) must be between 1 and n={horizon}; got {rounds}.")
