"""Clip and sum on the processor in two passes over each row, compiled."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled

__all__ = ["add_clipped"]

#: Partial sums of squares kept apart, so that the loop over a row fills vector registers.
_LANES = 16


@compiled
def _squared_norm(row, origin, partial):
    """Σ (row − origin)², in float64; the differences are float32. Not finite if any difference is not.

    A square of a float32 number is exact in float64 and neither over- nor underflows.
    """
    partial[:] = 0.0
    whole = row.size - row.size % _LANES
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            x = row[start + lane]
            if origin is not None:
                x = x - origin[start + lane]
            wide = np.float64(x)
            partial[lane] += wide * wide
    for i in range(whole, row.size):
        x = row[i]
        if origin is not None:
            x = x - origin[i]
        wide = np.float64(x)
        partial[0] += wide * wide
    total = 0.0
    for lane in range(_LANES):
        total += partial[lane]
    return total


@compiled
def add_clipped(rows, step, origin, clip_norm, scale, total, finite):
    """total += Σ over rows of trunc((row − origin)·min(1/ζ, 1/‖row − origin‖)·scale), row by row.

    Args:
        rows: float32; row u is d entries from u·step on.
        step: see rows.
        origin: shape (d,), float32, or None for zero.
        clip_norm: ζ.
        scale: what a clipped row of norm ζ is scaled to.
        total: shape (d,), int64; changed.
        finite: shape (users,), bool; set to whether a row was finite. One that is not adds nothing.
    """
    partial = np.empty(_LANES)
    for u in range(finite.size):
        row = rows[u * step : u * step + total.size]
        square = _squared_norm(row, origin, partial)
        finite[u] = np.isfinite(square)
        if not finite[u] or square == 0.0:
            continue
        factor = scale / max(np.sqrt(square), clip_norm)
        for i in range(row.size):
            x = row[i]
            if origin is not None:
                x = x - origin[i]
            total[i] += np.int64(np.float64(x) * factor)
