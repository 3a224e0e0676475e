"""What happens to a tile of noise beside Box–Muller: reading, rounding and writing vectors of any dtype.

A tile is a whole number of keystream blocks. Its float64 sums are kept apart for cosines and sines (see
`transform.add_pairs`); `merge` puts them in the order of elements. Tensors of bfloat16 come as uint16.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import overload

from fedmf.noise.transform import bits32_of, bits_of, compiled, float32_of, float_of, fma

__all__ = ["feed_back", "load", "step_states", "store"]

PIECE: Final = 1024
"""Elements handled at once: they stay in the fastest cache."""

_DROPPED = np.uint64(45)  # fraction bits of float64 that bfloat16 does not have
_HALF = np.uint64((1 << 44) - 1)
_KEPT = np.uint64(2**64 - (1 << 45))
_ONE, _SIXTEEN = np.uint64(1), np.uint32(16)
_TINY = 2.0**-126
_GRID = 1.5 * 2.0 ** (52 - 133)  # adding it rounds to multiples of 2⁻¹³³, the subnormal bfloat16 numbers


# Numba compares these signatures, so they stay without annotations.
def _widen(value):
    raise NotImplementedError("for compiled code only")


def _narrow(value, like):
    raise NotImplementedError("for compiled code only")


@overload(_widen, jit_options={"error_model": "numpy"})
def _compile_widen(value):
    """Exact conversion to float64."""
    if isinstance(value, types.Float):
        return lambda value: np.float64(value)
    return lambda value: np.float64(float32_of(np.uint32(np.uint32(value) << _SIXTEEN)))


@overload(_narrow, jit_options={"error_model": "numpy"})
def _compile_narrow(value, like):
    """Nearest number of the type of `like`, ties to even."""
    if like == types.float64:
        return lambda value, like: value
    if like == types.float32:
        return lambda value, like: np.float32(value)

    def to_bfloat16(value, like):
        b = bits_of(value)
        rounded = float_of((b + _HALF + ((b >> _DROPPED) & _ONE)) & _KEPT)
        tiny = np.copysign((value + _GRID) - _GRID, value)
        exact = np.float32(tiny if abs(value) < _TINY else rounded)
        return np.uint16(bits32_of(exact) >> _SIXTEEN)

    return to_bfloat16


@compiled
def merge(cosines: Any, sines: Any, out: Any) -> None:
    """Elements in order: eight cosines, then eight sines, of each block."""
    for b in range(out.size // 16):
        x, y, z = cosines[8 * b : 8 * b + 8], sines[8 * b : 8 * b + 8], out[16 * b : 16 * b + 16]
        x0, x1, x2, x3, x4, x5, x6, x7 = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
        y0, y1, y2, y3, y4, y5, y6, y7 = y[0], y[1], y[2], y[3], y[4], y[5], y[6], y[7]
        z[0], z[1], z[2], z[3], z[4], z[5], z[6], z[7] = x0, x1, x2, x3, x4, x5, x6, x7
        z[8], z[9], z[10], z[11], z[12], z[13], z[14], z[15] = y0, y1, y2, y3, y4, y5, y6, y7


@compiled
def part(elements: Any, cosines: Any, sines: Any) -> None:
    """The inverse of `merge`."""
    for b in range(elements.size // 16):
        x, y, z = cosines[8 * b : 8 * b + 8], sines[8 * b : 8 * b + 8], elements[16 * b : 16 * b + 16]
        z0, z1, z2, z3, z4, z5, z6, z7 = z[0], z[1], z[2], z[3], z[4], z[5], z[6], z[7]
        x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7] = z0, z1, z2, z3, z4, z5, z6, z7
        z0, z1, z2, z3, z4, z5, z6, z7 = z[8], z[9], z[10], z[11], z[12], z[13], z[14], z[15]
        y[0], y[1], y[2], y[3], y[4], y[5], y[6], y[7] = z0, z1, z2, z3, z4, z5, z6, z7


@compiled
def load(out: Any, skip: int, cosines: Any, sines: Any) -> None:
    """Sums ← out, which begins `skip` elements into the tile; places outside it get 0."""
    piece = np.empty(PIECE, np.float64)
    for low in range(0, 2 * cosines.size, PIECE):
        high = min(low + PIECE, 2 * cosines.size)
        first, last = max(low, skip), min(high, skip + out.size)
        piece[:] = 0.0
        inner, values = piece[first - low : last - low], out[first - skip : last - skip]
        for i in range(values.size):
            inner[i] = _widen(values[i])
        half = slice(low // 2, high // 2)
        part(piece[: high - low], cosines[half], sines[half])


@compiled
def store(cosines: Any, sines: Any, out: Any, skip: int) -> None:
    """out ← sums, rounded."""
    piece = np.empty(PIECE, np.float64)
    for low in range(0, 2 * cosines.size, PIECE):
        high = min(low + PIECE, 2 * cosines.size)
        first, last = max(low, skip), min(high, skip + out.size)
        half = slice(low // 2, high // 2)
        merge(cosines[half], sines[half], piece[: high - low])
        inner, values = piece[first - low : last - low], out[first - skip : last - skip]
        for i in range(values.size):
            values[i] = _narrow(inner[i], values[i])


@compiled
def feed_back(
    cosines: Any,
    sines: Any,
    out: Any,
    skip: int,
    scale: float,
    ring: Any,
    column: int,
    slots: Any,
    weights: Any,
    write: int,
) -> None:
    """The pass of `NoiseKernels.feedback_` behind its weighted sum of rounds.

    Args:
        ring: (rows, elements); out belongs to the columns from `column` on.
        slots: int64.
        weights: float64, as long as slots.
    """
    piece = np.empty(PIECE, np.float64)
    for low in range(0, 2 * cosines.size, PIECE):
        high = min(low + PIECE, 2 * cosines.size)
        first, last = max(low, skip), min(high, skip + out.size)
        half = slice(low // 2, high // 2)
        merge(cosines[half], sines[half], piece[: high - low])
        y, values = piece[first - low : last - low], out[first - skip : last - skip]
        columns = slice(column + first - skip, column + last - skip)
        for m in range(slots.size):
            row, weight = ring[slots[m]][columns], -weights[m]
            for i in range(values.size):
                y[i] = fma(weight, _widen(row[i]), y[i])
        row = ring[write][columns]
        for i in range(values.size):
            stored = _narrow(y[i], row[i])
            row[i] = stored
            values[i] = _narrow(fma(scale, _widen(stored), _widen(values[i])), values[i])


@compiled
def step_states(
    cosines: Any,
    sines: Any,
    out: Any,
    skip: int,
    scale: float,
    state: Any,
    column: int,
    decays: Any,
    weights: Any,
) -> None:
    """The pass of `NoiseKernels.state_space_` behind z.

    Args:
        state: (buffers, elements); out belongs to the columns from `column` on.
        decays, weights: float64, one per buffer.
    """
    piece = np.empty(PIECE, np.float64)
    for low in range(0, 2 * cosines.size, PIECE):
        high = min(low + PIECE, 2 * cosines.size)
        first, last = max(low, skip), min(high, skip + out.size)
        half = slice(low // 2, high // 2)
        merge(cosines[half], sines[half], piece[: high - low])
        y, values = piece[first - low : last - low], out[first - skip : last - skip]
        columns = slice(column + first - skip, column + last - skip)
        for m in range(weights.size):
            row, weight = state[m][columns], -weights[m]
            for i in range(values.size):
                y[i] = fma(weight, _widen(row[i]), y[i])
        for m in range(decays.size):
            row, decay = state[m][columns], decays[m]
            for i in range(values.size):
                row[i] = _narrow(fma(decay, _widen(row[i]), y[i]), row[i])
        for i in range(values.size):
            values[i] = _narrow(fma(scale, y[i], _widen(values[i])), values[i])
