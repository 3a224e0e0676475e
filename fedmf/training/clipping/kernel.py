"""Clipping and sums on the processor, compiled: two passes over each row."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled
from fedmf.training.blocks import sign

__all__ = ["BLOCK", "LANES", "PANEL", "add_clipped", "add_integers", "scale_integers"]

#: Partial sums of squares kept apart, so that the loop over a row fills vector registers.
LANES = 16
#: Entries whose squares go into one set of partial sums, one after the other.
PANEL = 4096
#: Entries whose partial sums are added in pairs: what one program of a GPU takes.
BLOCK = 32 * PANEL


@compiled
def _squared_norm(row, origin, partial):
    """Σ (row − origin)², in float64; the differences are float32. Not finite if any difference is not.

    A square of a float32 number is exact in float64 and neither over- nor underflows. The order of additions
    is the one that GPUs keep to: within a block, entry 4096p + 16k + l of it is added to partial sum 16p + l,
    for k = 0, 1, …; neighbouring sums are then added in pairs until one is left, and blocks in order.
    """
    total = 0.0
    for begin in range(0, row.size, BLOCK):
        end = min(begin + BLOCK, row.size)
        sums = LANES
        while sums * (PANEL // LANES) < end - begin:
            sums *= 2
        partial[:sums] = 0.0
        for first in range(begin, end, PANEL):
            last = min(first + PANEL, end)
            place = (first - begin) // PANEL * LANES
            _add_squares(row[first:last], None if origin is None else origin[first:last], partial[place:])
        while sums > 1:
            sums //= 2
            for i in range(sums):
                partial[i] = partial[2 * i] + partial[2 * i + 1]
        total += partial[0]
    return total


@compiled
def _add_squares(row, origin, partial):
    whole = row.size - row.size % LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
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
        partial[i - whole] += wide * wide


@compiled
def add_integers(total, added, unit):
    """total += added; returns ‖unit·added‖² in float64.

    Args:
        total: int64; changed.
        added: int64, as long.
        unit: a power of 2, so small that no square overflows.
    """
    partial = np.zeros(LANES)
    whole = added.size - added.size % LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
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
    partial = np.empty(BLOCK // PANEL * LANES)
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
