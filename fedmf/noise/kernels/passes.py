"""What happens to a tile of noise beside Box–Muller: reading, rounding and writing vectors of any dtype.

A tile is a whole number of keystream blocks. The last rounds are added to the sum of the others just before
it is used, chunk by chunk, so that the usual sum of one round never leaves the fastest cache. What then is
done with a chunk of the row is up to whoever asked for it, who may live above this room.
Tensors of bfloat16 come as uint16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from fedmf.compiled import compiled
from fedmf.noise.kernels.layout import NORMALS_PER_BLOCK
from fedmf.noise.kernels.transform import (
    CHUNK,
    add_blocks,
    bits32_of,
    bits_of,
    float32_of,
    float_of,
    fma,
    scratch,
)

_DROPPED = np.uint64(45)  # fraction bits of float64 that bfloat16 does not have
_HALF = np.uint64((1 << 44) - 1)
_FRACTION_LEFT = np.uint64(2**64 - (1 << 45))
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
        rounded = float_of((b + _HALF + ((b >> _DROPPED) & _ONE)) & _FRACTION_LEFT)
        tiny = np.copysign((value + _GRID) - _GRID, value)
        exact = np.float32(tiny if abs(value) < _TINY else rounded)
        return np.uint16(bits32_of(exact) >> _SIXTEEN)

    return to_bfloat16


@compiled
def buffers() -> Any:
    """Working memory for `chunk_of`."""
    return np.empty(CHUNK), scratch()


@compiled
def add_rounds(drawn: Any, y: Any, memory: Any) -> None:
    """y += Σ_j weights[j]·z(rounds[j], ·) for whole tiles.

    Args:
        drawn: (words, positions, refinements, weights): a row of words and a weight for each round; positions
            count through all rows (see `add_blocks`).
        memory: from `scratch`.
    """
    words, positions, refinements, weights = drawn
    for j in range(weights.size):
        first = j * words.shape[1] // NORMALS_PER_BLOCK
        add_blocks(words[j], first, positions, refinements, weights[j], y, memory)


@compiled
def each_round(drawn: Any, z: Any, memory: Any) -> None:
    """z[j] += weights[j]·z(rounds[j], ·), the rounds kept apart; arguments as for `add_rounds`."""
    words, positions, refinements, weights = drawn
    for j in range(weights.size):
        first = j * words.shape[1] // NORMALS_PER_BLOCK
        add_blocks(words[j], first, positions, refinements, weights[j], z[j], memory)


@compiled
def chunks_of(tile: Any) -> int:
    """How many chunks a tile, see `chunk_of`, has."""
    return (tile[0][0].shape[1] + CHUNK - 1) // CHUNK


@compiled
def chunk_of(tile: Any, chunk: int) -> Any:
    """y of a `RowPass` for a chunk of a tile, its scale, and the element of y[0]; stores what it must.

    Args:
        tile: (last, sums, skip, count, stored, column, reads, places, factors, scale, memory):
            the last rounds, as for `add_rounds`;
            the sum of the earlier rounds, of length 0 if there are none;
            unwanted elements before the first wanted one, and how many are wanted;
            (vectors, elements) that are stored, and the column of the first wanted element;
            how many of the places are read, the others being written;
            int64, the places of a `RowPass`;
            float64, the weights and decays that belong to the places;
            the scale;
            from `buffers`: y lies there until the next chunk is asked for.
        chunk: its number.
    """
    last, sums, skip, count, stored, column, reads, places, factors, scale, memory = tile
    words, positions, refinements, weights = last
    start, (y, rest) = CHUNK * chunk, memory
    stop = min(start + CHUNK, words.shape[1])
    y = y[: stop - start]
    if sums.size:
        for i in range(y.size):
            y[i] = sums[start + i]
    else:
        y[:] = 0.0
    for j in range(weights.size):
        first = (j * words.shape[1] + start) // NORMALS_PER_BLOCK
        add_blocks(words[j, start:stop], first, positions, refinements, weights[j], y, rest)
    first, end = max(start, skip), min(stop, skip + count)
    y = y[first - start : end - start]
    columns = slice(column + first - skip, column + end - skip)
    for m in range(reads):
        vector, weight = stored[places[m]][columns], -factors[m]
        for i in range(y.size):
            y[i] = fma(weight, _widen(vector[i]), y[i])
    for m in range(reads, places.size):
        vector, decay = stored[places[m]][columns], factors[m]
        if decay == 0.0:
            for i in range(y.size):
                vector[i] = _narrow(y[i], vector[i])
        else:
            for i in range(y.size):
                vector[i] = _narrow(fma(decay, _widen(vector[i]), y[i]), vector[i])
    return y, scale, first - skip


@compiled
def add_row(tile: Any, out: Any) -> None:
    """out += scale·y; see `chunk_of`."""
    for chunk in range(chunks_of(tile)):
        y, scale, first = chunk_of(tile, chunk)
        values = out[first : first + y.size]
        for i in range(values.size):
            values[i] = _narrow(fma(scale, y[i], _widen(values[i])), values[i])
