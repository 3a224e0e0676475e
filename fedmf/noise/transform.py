"""Box–Muller on a tile of keystream words, compiled: any vector instructions give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from fedmf.noise.layout import REFINED_BELOW
from fedmf.noise.polynomials import (
    COS,
    EXPONENT_BIAS,
    EXPONENT_SHIFT,
    HALF_PI,
    LN2_HIGH,
    LN2_LOW,
    LOG,
    ROOT_HALF,
    SIN,
)

CHUNK: Final = 512
"""Pairs of which words, radii and sums stay in the fastest cache."""

STRIDE: Final = 2048
"""Words looked through at once for small ones."""

# x is kept as an integer and a half, 2³⁰ times the x of `polynomials`: scaling by powers of 2 is exact.
_UNIT = 2.0**-30
_S0, _S1, _S2, _S3, _S4, _S5 = (value * _UNIT ** (2 * j + 3) for j, value in enumerate(SIN))
_C0, _C1, _C2, _C3, _C4, _C5 = (value * _UNIT ** (2 * j + 2) for j, value in enumerate(COS))
_SLOPE = HALF_PI * _UNIT
_L0, _L1, _L2, _L3, _L4, _L5, _L6 = LOG

_SHIFT = np.uint64(EXPONENT_SHIFT)
_ROOT_HALF = np.uint64(ROOT_HALF)
_FRACTION = np.uint64(2**52 - 1)
_FRACTION_BITS = np.uint64(52)
_TWO_52 = np.uint64(0x4330000000000000)  # float64 2⁵²: an integer below 2⁵² in its fraction adds to it
_TWO_52_LESS_HALF = 2.0**52 - 0.5
_BIAS = 2.0**52 + EXPONENT_BIAS
_EIGHTH_TURN, _WITHIN_QUADRANT = np.uint64(1 << 29), np.uint64((1 << 30) - 1)
_CENTRE = 2.0**52 + 2.0**29
_BIT_30, _BIT_62, _SIGN, _HALF_WORD = (
    np.uint64(1 << 30),
    np.uint64(1 << 62),
    np.uint64(1 << 63),
    np.uint64(32),
)
_REFINED_BELOW = np.uint32(REFINED_BELOW)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile for this processor, free of the interpreter lock; keep the machine code where possible."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder it may write to
        return njit(**options)(function)


def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    del typing_context, a, b, c

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


fma: Any = intrinsic(_fma)
"""fma(a, b, c) = a·b + c, rounded once."""


def _reinterpret(source: types.Type, target: types.Type) -> Any:
    """A compiled function from a number to the number of another type with the same bits."""

    def reinterpret(typing_context: Any, value: Any) -> Any:
        del typing_context, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(reinterpret)


bits_of = _reinterpret(types.float64, types.uint64)
float_of = _reinterpret(types.uint64, types.float64)
bits32_of = _reinterpret(types.float32, types.uint32)
float32_of = _reinterpret(types.uint32, types.float32)


@compiled
def radius(v: float) -> float:
    """√(−2 ln u) for v = 2³²u."""
    b = bits_of(v) + _SHIFT
    e = float_of((b >> _FRACTION_BITS) | _TWO_52) - _BIAS
    f = float_of((b & _FRACTION) + _ROOT_HALF) - 1.0
    s = f / (f + 2.0)
    t = s * s
    p = fma(fma(fma(fma(fma(fma(_L6, t, _L5), t, _L4), t, _L3), t, _L2), t, _L1), t, _L0)
    return np.sqrt(fma(e, LN2_HIGH, fma(e, LN2_LOW, s * fma(t, p, -4.0))))


@compiled
def direction(a: int) -> tuple[float, float]:
    """(cos φ, sin φ) for the angle word a, φ = 2π(a + ½)·2⁻³²."""
    turned = np.uint64(a) + _EIGHTH_TURN  # the quadrant q is in bits 31 and 30
    x = float_of((turned & _WITHIN_QUADRANT) | _TWO_52) - _CENTRE + 0.5  # 2⁻³⁰ quarter turns
    t = x * x
    sin = x * fma(t, fma(fma(fma(fma(fma(_S5, t, _S4), t, _S3), t, _S2), t, _S1), t, _S0), _SLOPE)
    cos = fma(t, fma(fma(fma(fma(fma(_C5, t, _C4), t, _C3), t, _C2), t, _C1), t, _C0), 1.0)
    odd = (turned & _BIT_30) != 0
    first = sin if odd else cos
    second = cos if odd else sin
    top = turned << _HALF_WORD
    first_sign, second_sign = (top + _BIT_62) & _SIGN, top & _SIGN
    return float_of(bits_of(first) ^ first_sign), float_of(bits_of(second) ^ second_sign)


@compiled
def split(words: Any, low: Any, high: Any) -> None:
    """The first four and the last four of every eight 64-bit words."""
    for b in range(words.size // 8):
        w0, w1, w2, w3 = words[8 * b], words[8 * b + 1], words[8 * b + 2], words[8 * b + 3]
        w4, w5, w6, w7 = words[8 * b + 4], words[8 * b + 5], words[8 * b + 6], words[8 * b + 7]
        low[4 * b], low[4 * b + 1], low[4 * b + 2], low[4 * b + 3] = w0, w1, w2, w3
        high[4 * b], high[4 * b + 1], high[4 * b + 2], high[4 * b + 3] = w4, w5, w6, w7


@compiled
def find_coarse(words: Any, positions: Any) -> int:
    """Find the pairs of a tile that need refinement, 1 in 65536.

    Args:
        words: keystream as uint32, 16 per block.
        positions: int64, one per pair; its first places receive the positions 8c + k.

    Returns:
        How many there are.
    """
    count = 0
    for start in range(0, words.size, STRIDE):
        some = words[start : start + STRIDE]
        least = np.uint32(0xFFFFFFFF)
        for i in range(some.size):
            least = min(least, some[i])
        if least < _REFINED_BELOW:
            for i in range(some.size):
                if i % 16 < 8 and some[i] < _REFINED_BELOW:
                    positions[count] = (start + i) // 16 * 8 + i % 16
                    count += 1
    return count


@compiled
def scratch() -> Any:
    """Working memory for `add_chunk`."""
    return np.empty(CHUNK // 2, np.uint64), np.empty(CHUNK // 2, np.uint64), np.empty(CHUNK, np.float64)


@compiled
def add_chunk(
    words: Any,
    first: int,
    positions: Any,
    refinements: Any,
    weight: float,
    cosines: Any,
    sines: Any,
    memory: Any,
) -> None:
    """`add_pairs` for at most CHUNK pairs, of which the first has position `first`."""
    low, high, r = memory
    pairs = cosines.size
    split(words, low, high)
    radius_words, angle_words = low.view(np.uint32)[:pairs], high.view(np.uint32)[:pairs]
    for i in range(pairs):
        r[i] = radius(float_of(np.uint64(radius_words[i]) | _TWO_52) - _TWO_52_LESS_HALF)
    for j in range(positions.size):
        i = positions[j] - first
        if 0 <= i < pairs:
            r[i] = radius(fma(np.float64(refinements[j]) + 0.5, 2.0**-64, np.float64(radius_words[i])))
    for i in range(pairs):
        cos, sin = direction(angle_words[i])
        cosines[i] = fma(weight, r[i] * cos, cosines[i])
        sines[i] = fma(weight, r[i] * sin, sines[i])


@compiled
def add_pairs(words: Any, positions: Any, refinements: Any, weight: float, cosines: Any, sines: Any) -> None:
    """Add weight·z of whole blocks to sums kept apart for cosines and sines, 8 of each per block.

    Args:
        words: keystream as uint64, 8 per block.
        positions: int64, 8c + k for each pair that needs refinement.
        refinements: uint64, the 64 bits of each of them.
        weight: float64.
        cosines: float64 sums for elements 16c + k, at 8c + k.
        sines: float64 sums for elements 16c + 8 + k, at 8c + k.
    """
    memory = scratch()
    for start in range(0, cosines.size, CHUNK):
        stop = min(start + CHUNK, cosines.size)
        c, s = cosines[start:stop], sines[start:stop]
        add_chunk(words[start:stop], start, positions, refinements, weight, c, s, memory)
