"""Clipping and sums on the processor, compiled: two passes over each row."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled
from fedmf.training.blocks import sign

__all__ = ["add_clipped", "add_integers", "scale_integers"]

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
def add_integers(total, added, unit):
    """total += added; returns ‖unit·added‖² in float64.

    Args:
        total: int64; changed.
        added: int64, as long.
        unit: a power of 2, so small that no square overflows.
    """
    partial = np.zeros(_LANES)
    whole = added.size - added.size % _LANES
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            x = np.float64(added[start + lane]) * unit
            partial[lane] += x * x
            total[start + lane] += added[start + lane]
    for i in range(whole, added.size):
        x = np.float64(added[i]) * unit
        partial[0] += x * x
        total[i] += added[i]
    return partial.sum()


@compiled
def scale_integers(integers, unit, entries):
    """entries = unit·integers in float64, in one pass."""
    for i in range(integers.size):
        entries[i] = np.float64(integers[i]) * unit


@compiled
def add_clipped(rows, step, origin, clip_norm, scale, total, signs, finite):
    """total += Σ over rows of trunc((row − origin)·min(1/ζ, 1/‖row − origin‖)·scale), row by row.

    Args:
        rows: float32; row u is d entries from u·step on.
        step: see rows.
        origin: shape (d,), float32, or None for zero.
        clip_norm: ζ.
        scale: what a clipped row of norm ζ is scaled to.
        total: shape (d,), int64; changed.
        signs: shape (1,), int64; the `sign` of each row that adds something is added.
        finite: shape (users,), bool; set to whether a row was finite. One that is not adds nothing.
    """
    partial = np.empty(_LANES)
    for u in range(finite.size):
        row = rows[u * step : u * step + total.size]
        square = _squared_norm(row, origin, partial)
        finite[u] = np.isfinite(square)
        if not finite[u] or square == 0.0:
            continue
        norm = np.sqrt(square)
        signs[0] += sign(norm, clip_norm)
        factor = scale / max(norm, clip_norm)
        for i in range(row.size):
            x = row[i]
            if origin is not None:
                x = x - origin[i]
            total[i] += np.int64(np.float64(x) * factor)
