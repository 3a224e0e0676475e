"""The compiled feedback of a recursion over rows of moments.

`RunningWorkload` calls it for every block of releases: it is the only part of a workload whose rows
depend on one another.
"""

from __future__ import annotations

from typing import Any, Final

from fedmf.noise.jit import compiled

#: Columns of a few rows that stay in the fastest cache.
_NEAR: Final = 1 << 9


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
    rows = out.shape[0]
    past = outputs.shape[0]
    for low in range(0, out.shape[1], _NEAR):
        high = min(low + _NEAR, out.shape[1])
        for i in range(rows):
            y = out[i, low:high]
            for k in range(lags.size):
                lag = lags[k]
                weight = weights[k]
                if lag <= i:
                    earlier = out[i - lag, low:high]
                else:
                    earlier = outputs[(t + i - lag) % past, low:high]
                if weight == -1.0:
                    for j in range(y.size):
                        y[j] += earlier[j]
                else:
                    for j in range(y.size):
                        y[j] -= earlier[j] * weight
        for i in range(max(0, rows - past), rows):
            outputs[(t + i) % past, low:high] = out[i, low:high]
