"""Box–Muller on a tile of keystream words, compiled so that vector instructions of any width give the same bits."""

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

_S0, _S1, _S2, _S3, _S4, _S5 = SIN
_C0, _C1, _C2, _C3, _C4, _C5 = COS
_L0, _L1, _L2, _L3, _L4, _L5, _L6 = LOG

_SHIFT = np.uint64(EXPONENT_SHIFT)
_ROOT_HALF = np.uint64(ROOT_HALF)
_FRACTION = np.uint64(2**52 - 1)
_FRACTION_BITS = np.uint64(52)
_TWO_52 = np.uint64(0x4330000000000000)  # float64 2⁵²: an integer below 2⁵² in its fraction adds to it
_BIAS = 2.0**52 + EXPONENT_BIAS
_EIGHTH_TURN, _QUADRANT = np.uint32(1 << 29), np.uint32(3 << 30)
_BIT_30, _BIT_31, _SIGN_SHIFT = np.uint64(1 << 30), np.uint64(1 << 31), np.uint64(32)
_REFINED_BELOW = np.uint32(REFINED_BELOW)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile for this processor without the interpreter lock; keep the machine code if a folder allows it."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder it may write to
        return njit(**options)(function)


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once."""
    del typing_context, a, b, c

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


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
    turned = np.uint32(a + _EIGHTH_TURN)
    rest = np.int32(np.uint32(a - (turned & _QUADRANT)))
    x = (np.float64(rest) + 0.5) * 2.0**-30
    t = x * x
    sin = x * fma(t, fma(fma(fma(fma(fma(_S5, t, _S4), t, _S3), t, _S2), t, _S1), t, _S0), HALF_PI)
    cos = fma(t, fma(fma(fma(fma(fma(_C5, t, _C4), t, _C3), t, _C2), t, _C1), t, _C0), 1.0)
    wide = np.uint64(turned)  # the quadrant q is in bits 31 and 30
    odd = (wide & _BIT_30) != 0
    first = sin if odd else cos
    second = cos if odd else sin
    first_sign = ((wide + _BIT_30) & _BIT_31) << _SIGN_SHIFT
    return (
        float_of(bits_of(first) ^ first_sign),
        float_of(bits_of(second) ^ ((wide & _BIT_31) << _SIGN_SHIFT)),
    )


@compiled
def split(words: Any, low: Any, high: Any) -> None:
    """The first four and the last four of every eight 64-bit words."""
    for b in range(low.size // 4):
        w0, w1, w2, w3 = words[8 * b], words[8 * b + 1], words[8 * b + 2], words[8 * b + 3]
        w4, w5, w6, w7 = words[8 * b + 4], words[8 * b + 5], words[8 * b + 6], words[8 * b + 7]
        low[4 * b], low[4 * b + 1], low[4 * b + 2], low[4 * b + 3] = w0, w1, w2, w3
        high[4 * b], high[4 * b + 1], high[4 * b + 2], high[4 * b + 3] = w4, w5, w6, w7


@compiled
def add_pairs(words: Any, weight: float, cosines: Any, sines: Any) -> int:
    """Add weight·z of whole blocks to sums kept apart for cosines and sines, 8 of each per block.

    Args:
        words: keystream as uint64, 8 per block.
        weight: float64.
        cosines: float64 sums for elements 16c + k, at 8c + k.
        sines: float64 sums for elements 16c + 8 + k, at 8c + k.

    Returns:
        How many pairs need refinement; nothing has been added for those yet.
    """
    low, high = np.empty(CHUNK // 2, np.uint64), np.empty(CHUNK // 2, np.uint64)
    radius_words, angle_words = low.view(np.uint32), high.view(np.uint32)
    r = np.empty(CHUNK, np.float64)
    coarse = 0
    for start in range(0, cosines.size, CHUNK):
        pairs = min(CHUNK, cosines.size - start)
        split(words[start:], low[: pairs // 2], high[: pairs // 2])
        least = np.uint32(0xFFFFFFFF)
        for i in range(pairs):
            least = min(least, radius_words[i])
        for i in range(pairs):
            r[i] = radius(np.float64(radius_words[i]) + 0.5)
        if least < _REFINED_BELOW:
            for i in range(pairs):
                if radius_words[i] < _REFINED_BELOW:
                    r[i] = 0.0
                    coarse += 1
        c, s = cosines[start : start + pairs], sines[start : start + pairs]
        for i in range(pairs):
            cos, sin = direction(angle_words[i])
            c[i] = fma(weight, r[i] * cos, c[i])
            s[i] = fma(weight, r[i] * sin, s[i])
    return coarse


@compiled
def find_coarse(words: Any) -> Any:
    """Positions 8c + k of the pairs of a tile that need refinement."""
    found = [0 for _ in range(0)]
    for i in range(words.size // 2):
        if words[i // 8 * 16 + i % 8] < _REFINED_BELOW:
            found.append(i)
    return np.array(found, np.int64)


@compiled
def add_refined(
    word: int, refinement: int, angle: int, weight: float, cosines: Any, sines: Any, position: int
) -> None:
    """Add one pair with a refined radius."""
    r = radius(fma(np.float64(np.uint64(refinement)) + 0.5, 2.0**-64, np.float64(word)))
    cos, sin = direction(np.uint32(angle))
    cosines[position] = fma(weight, r * cos, cosines[position])
    sines[position] = fma(weight, r * sin, sines[position])
