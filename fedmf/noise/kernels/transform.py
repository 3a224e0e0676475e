"""Box–Muller on a tile of keystream words, compiled: any vector instructions give the same bits."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import intrinsic

from fedmf.compiled import compiled
from fedmf.noise.kernels.lanes import LANES, Lanes, load, repeated, store
from fedmf.noise.kernels.layout import NORMALS_PER_BLOCK, PAIRS_PER_BLOCK, REFINED_BELOW
from fedmf.noise.kernels.polynomials import (
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

CHUNK: Final = 1024
"""Elements of which words, sums and vectors stay in the fastest cache."""

STRIDE: Final = 2048
"""Words looked through at once for small ones."""

# x is kept as an odd integer, 2³¹ times the x of `polynomials`: scaling by powers of 2 is exact.
_UNIT = 2.0**-31
_SIN = tuple(value * _UNIT ** (2 * j + 3) for j, value in enumerate(SIN))
_COS = tuple(value * _UNIT ** (2 * j + 2) for j, value in enumerate(COS))
_SLOPE = HALF_PI * _UNIT
_FRACTION = 2**52 - 1
_TWO_52 = 0x4330000000000000  # float64 2⁵²: an integer below 2⁵² in its fraction adds to it
_TWO_52_LESS_HALF = 2.0**52 - 0.5
_BIAS = 2.0**52 + EXPONENT_BIAS
_EIGHTH_TURN, _WITHIN_QUADRANT = 1 << 29, (1 << 30) - 1
_BIT_62, _SIGN = 1 << 62, 1 << 63
_REFINED_BELOW = np.uint32(REFINED_BELOW)


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


def _radii(v: Lanes) -> Lanes:
    """√(−2 ln u) for v = 2³²u."""
    b = v.bits() + EXPONENT_SHIFT
    e = ((b >> 52) | _TWO_52).as_float() - _BIAS
    f = ((b & _FRACTION) + ROOT_HALF).as_float() - 1.0
    s = f / (f + 2.0)
    t = s * s
    log = s * t.times_plus(t.polynomial(LOG), -4.0)
    return e.times_plus(LN2_HIGH, e.times_plus(LN2_LOW, log)).square_root()


def _directions(a: Lanes) -> tuple[Lanes, Lanes]:
    """(cos φ, sin φ) for angle words a, φ = 2π(a + ½)·2⁻³²."""
    turned = a + _EIGHTH_TURN  # the quadrant q is in bits 31 and 30
    x = (((turned & _WITHIN_QUADRANT) << 1) - _WITHIN_QUADRANT).signed_to_float()  # 2⁻³¹ quarter turns
    t = x * x
    sin = x * t.times_plus(t.polynomial(_SIN), _SLOPE)
    cos = t.times_plus(t.polynomial(_COS), 1.0)
    top = turned.widened() << 32
    odd = (top << 1).top_bit()
    first, second = odd.choose(sin, cos), odd.choose(cos, sin)
    first_sign, second_sign = (top + _BIT_62) & _SIGN, top & _SIGN
    return (first.bits() ^ first_sign).as_float(), (second.bits() ^ second_sign).as_float()


def _add_block(typing_context: Any, v: Any, words: Any, block: Any, weight: Any, y: Any) -> Any:
    """y of a block += weight·z; v is 2³²u of its pairs, or None for what the words alone give."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def first(place: int, offset: Any) -> Any:
            array = context.make_array(signature.args[place])(context, builder, arguments[place])
            return builder.gep(array.data, [offset])

        begin = builder.mul(arguments[2], arguments[2].type(NORMALS_PER_BLOCK))
        middle = builder.add(begin, begin.type(LANES))
        if isinstance(signature.args[0], types.NoneType):
            plain = load(builder, first(1, begin)).widened() | _TWO_52
            scaled = plain.as_float() - _TWO_52_LESS_HALF
        else:
            scaled = load(builder, first(0, begin.type(0)))
        factor, r = repeated(builder, arguments[3]), _radii(scaled)
        for offset, direction in zip(
            (begin, middle), _directions(load(builder, first(1, middle))), strict=True
        ):
            sums = first(4, offset)
            store(factor.times_plus(r * direction, load(builder, sums)), sums)
        return context.get_dummy_value()

    return types.none(v, words, block, weight, y), generate


_add: Any = intrinsic(_add_block)


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
    """Working memory for `add_blocks`."""
    return np.empty(PAIRS_PER_BLOCK)


@compiled
def add_blocks(
    words: Any, first: int, positions: Any, refinements: Any, weight: float, y: Any, v: Any
) -> None:
    """Add weight·z of whole blocks to sums in the order of elements.

    Args:
        words: keystream as uint32, 16 per block.
        first: number of the first block among those that `positions` counts.
        positions: int64, 8c + k for each pair that needs refinement, ascending.
        refinements: uint64, the 64 bits of each of them.
        weight: float64.
        y: float64 sums, as many as words.
        v: from `scratch`.
    """
    blocks, j, b = y.size // NORMALS_PER_BLOCK, 0, 0
    while j < positions.size and positions[j] // PAIRS_PER_BLOCK < first:
        j += 1
    while b < blocks:
        stop = blocks
        if j < positions.size:
            stop = min(stop, positions[j] // PAIRS_PER_BLOCK - first)
        for plain in range(b, stop):
            _add(None, words, plain, weight, y)
        b = stop
        if b < blocks:
            for k in range(PAIRS_PER_BLOCK):
                v[k] = np.float64(words[NORMALS_PER_BLOCK * b + k]) + 0.5
            while j < positions.size and positions[j] // PAIRS_PER_BLOCK - first == b:
                k = positions[j] % PAIRS_PER_BLOCK
                word = np.float64(words[NORMALS_PER_BLOCK * b + k])
                v[k] = fma(np.float64(refinements[j]) + 0.5, 2.0**-64, word)
                j += 1
            _add(v, words, b, weight, y)
            b += 1
