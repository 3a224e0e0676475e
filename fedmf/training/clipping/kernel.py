"""Clipping and sums on the processor, compiled: two passes over each row, the second one `merge`."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled, inlined
from fedmf.training.blocks import COUNTED, LANES, NOT_FINITE, UNBOUNDED, add_squares, at, sign
from fedmf.training.clipping.merge import merge

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
            if origin is None:
                _add_panel(row[first:last], None, partial[place:])
            else:
                _add_panel(row[first:last], origin[first:last], partial[place:])
        while sums > 1:
            sums //= 2
            for i in range(sums):
                partial[i] = partial[2 * i] + partial[2 * i + 1]
        total += partial[0]
    return total


@inlined
def _add_panel(row, origin, partial):
    """Squares of at most `PANEL` entries into the partial sums from the first of ``partial`` on."""
    zero, whole = np.int64(0), row.size - row.size % LANES
    if origin is None:
        add_squares(at(row, zero), None, whole, at(partial, zero))
    else:
        add_squares(at(row, zero), at(origin, zero), whole, at(partial, zero))
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


@inlined
def partial_sums():
    """Memory for the norm of a row."""
    return np.empty(BLOCK // PANEL * LANES)


@compiled
def clip_row(row, origin, clip_norm, scale, into, partial):
    """Clip one user's update row − origin and add it: what became of it, `COUNTED` or why it added nothing.

    Args:
        row: shape (d,), float32.
        origin: shape (d,), float32, or None for zero.
        clip_norm: ζ.
        scale: what a clipped row of norm ζ is scaled to.
        into: changed; see `merge`, which alone bounds by how much.
        partial: memory, see `partial_sums`.
    """
    square = _squared_norm(row, origin, partial)
    if not np.isfinite(square):
        return NOT_FINITE
    if square == 0.0:
        return COUNTED
    norm = np.sqrt(square)
    if merge(row, origin, scale / max(norm, clip_norm), sign(norm, clip_norm), into):
        return COUNTED
    return UNBOUNDED


@compiled
def add_clipped(rows, step, origin, clip_norm, scale, into, counted):
    """Clip each row − origin and add it.

    Args:
        rows: float32; row u is d entries from u·step on.
        step: see rows.
        origin, clip_norm, scale, into: see `clip_row`.
        counted: shape (users,), bool; set to whether a row counts. One that does not adds nothing.
    """
    partial = partial_sums()
    for u in range(counted.size):
        row = rows[u * step : u * step + into.total.size]
        counted[u] = clip_row(row, origin, clip_norm, scale, into, partial) == COUNTED


@compiled
def add_scaled(rows, signs, into, counted):
    """Add rows that are scaled to units of ζ·2⁻⁴⁰ and not yet cut to integers.

    Args:
        rows: shape (users, d), float64.
        signs: of the users, int64.
        into: changed.
        counted: shape (users,), bool; rows that are not true are left out; set to whether a row counts.
    """
    for u in range(counted.size):
        if counted[u]:
            counted[u] = merge(rows[u], None, 1.0, signs[u], into)
