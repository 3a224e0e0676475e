"""Compiled passes over rows of moments, each of which is as it would be alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fedmf.noise.loops import compiled

#: Columns of a few rows that stay in the fastest cache.
_NEAR: Final = 1 << 9
#: Rows that are read again for every coordinate, from a near cache.
_ROWS: Final = 64


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


@compiled(
    "void(float64[:,::1], float64[:,::1], int64, int64[::1], float64[::1])",
    "void(float64[:,:], float64[:,:], int64, int64[::1], float64[::1])",
)
def feed_back(out: Any, outputs: Any, t: int, lags: Any, weights: Any) -> None:
    """y_t ← y_t − Σ_k weights[k]·y_{t − lags[k]} for each row of out in turn.

    Args:
        out: shape (rows, size); row 0 belongs to step t.
        outputs: outputs[i mod past] is y_i of the steps before t, and of the last steps afterwards.
        lags: from 1 to past.
    """
    rows, past = out.shape[0], outputs.shape[0]
    for low in range(0, out.shape[1], _NEAR):
        high = min(low + _NEAR, out.shape[1])
        for i in range(rows):
            y = out[i, low:high]
            for k in range(lags.size):
                lag, weight = lags[k], weights[k]
                earlier = out[i - lag, low:high] if lag <= i else outputs[(t + i - lag) % past, low:high]
                if weight == -1.0:
                    for j in range(y.size):
                        y[j] += earlier[j]
                else:
                    for j in range(y.size):
                        y[j] -= earlier[j] * weight
        for i in range(max(0, rows - past), rows):
            outputs[(t + i) % past, low:high] = out[i, low:high]
