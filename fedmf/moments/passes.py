"""Compiled passes over rows of moments; each product and sum is rounded as it would be alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fedmf.loops import compiled

#: Columns of a few rows that stay in the fastest cache.
_NEAR: Final = 1 << 9


@compiled("float32[:,::1](float32[:,::1], float64)", "float64[:,::1](float64[:,::1], float64)")
def packed_products(x: Any, scale: float) -> Any:
    """For each row x_i² and scale·(x_i x_j), i < j, in the order of the upper triangle."""
    d = x.shape[1]
    out = np.empty((x.shape[0], d * (d + 1) // 2), x.dtype)
    factor = x.dtype.type(scale)
    for r in range(x.shape[0]):
        row, at = x[r], 0
        for i in range(d):
            left, right, values = row[i], row[i:], out[r, at : at + d - i]
            for j in range(right.size):
                values[j] = left * right[j] * factor
            values[0] = left * left
            at += d - i
    return out


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
