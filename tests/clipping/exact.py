"""Sums of squares of integers in exact arithmetic, as Python computes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def square_sum(integers: Iterable[int]) -> int:
    """Return Σ n²."""
    return sum(n * n for n in integers)


def block_squares(integers: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return Σ n² of each block of consecutive integers."""
    squares = []
    begin = 0
    for end in np.cumsum(sizes).tolist():
        squares.append(square_sum(integers[begin:end]))
        begin = end
    return squares


def block_features(integers: Sequence[int], sizes: Sequence[int], shift: int) -> list[int]:
    """Return ⌊Σ n²·2⁻ˢʰⁱᶠᵗ⌋ of each block of consecutive integers."""
    return [square >> shift for square in block_squares(integers, sizes)]
