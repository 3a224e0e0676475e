"""Second moments of the rows of a stream, as integers in a unit of their own.

`PrivateRows` sums them next to the rows. Unlike the features of updates they may be products of two
coordinates, which are rounded; `NEAR` bounds what the rounding moves.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedmf.clipping.features import fixed_point_energies
from fedmf.matrices.second_moment import FullMatrix, SecondMoment
from fedmf.noise.jit import compiled

#: Rows that are read again for every coordinate, from a near cache.
_ROWS: Final = 64

NEAR: Final = 1.0 + 2.0**-18
"""Units by which a difference of two rows' features may differ from that of exact features."""


def integer_features(
    rows: Tensor, moment: SecondMoment, steps: int, bits: int, feature_bits: int
) -> Tensor:
    """Return the second moments of the rows of each step, in units of ζ²·2⁻ᶠ.

    Args:
        rows: integers in units of ζ·2⁻ᴮ, shape (rows, d), int64, each of norm at most 2ᴮ.
        moment: the features L(x⊗x).
        steps: number of steps, which have equally many rows.
        bits: B ≤ 31.
        feature_bits: F ≤ min(31, 2B).

    Returns:
        Σ of the features of rows, each an integer, shape (steps, size), int64.

    Guarantees:
        A row adds integers that depend on it alone. Squares and energies are cut, ⌊e⌋; products,
        with √2 off the diagonal, are the integers nearest e·(1 + θ), |θ| < 2⁻⁵¹, with |e| ≤ 2³¹. So
        the features of a row less those of another one, or zero, are less than `NEAR` away from the
        exact ones.

    >>> rows = torch.tensor([[3 << 29, -(1 << 30)], [1 << 30, 0]])
    >>> features = integer_features(rows, FullMatrix(2), 1, 31, 31)
    >>> (features.double() / 2**31).numpy().round(6).tolist()
    [[0.8125, -0.53033, 0.25]]
    """
    every = len(rows) // max(1, steps)
    if not isinstance(moment, FullMatrix):
        energies = fixed_point_energies(rows, moment, bits, feature_bits)
        if every == 1:
            return energies
        return energies.view(steps, every, moment.size).sum(dim=1)
    sums = torch.zeros(steps, moment.size, dtype=torch.int64)
    scale = 2.0 ** (feature_bits - 2 * bits)
    add_products(rows.to(torch.float64).numpy(), scale, max(1, every), sums.numpy())
    return sums


@compiled("void(float64[:,::1], float64, int64, int64[:,::1])")
def add_products(rows: Any, scale: float, every: int, sums: Any) -> None:
    """Add to each step the integers nearest scale·x_i² and √2·scale·x_i·x_j, i < j, of its rows.

    Every product is made of three factors in float64 and then rounded: it depends on its row alone.

    Args:
        rows: integers x below 2⁵³, shape (rows, d).
        scale: so small that the results are below 2⁵¹.
        every: rows of a step.
        sums: shape (steps, d(d+1)/2), in the order of the upper triangle; changed.
    """
    root = scale * np.sqrt(2.0)
    for begin in range(0, rows.shape[0], every):
        total = sums[begin // every]
        end = min(begin + every, rows.shape[0])
        for low in range(begin, end, _ROWS):
            high = min(low + _ROWS, end)
            at = 0
            for i in range(rows.shape[1]):
                products = total[at : at + rows.shape[1] - i]
                for r in range(low, high):
                    right = rows[r, i:]
                    left = right[0] * root
                    square = products[0] + np.int64(np.rint(right[0] * scale * right[0]))
                    for j in range(products.size):
                        products[j] += np.int64(np.rint(left * right[j]))
                    products[0] = square
                at += products.size
