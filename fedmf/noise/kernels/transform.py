"""Box–Muller on a tile of keystream words, compiled: any vector instructions give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import intrinsic

from fedmf.compiled import compiled
from fedmf.noise.kernels.lanes import LANES, Lanes, Places, Table
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

# x is kept as an integer, 2³² times the x of `polynomials`: scaling by powers of 2 is exact.
_UNIT = 2.0**-32
_SIN = tuple(value * _UNIT ** (2 * j + 3) for j, value in enumerate(SIN))
_COS = tuple(value * _UNIT ** (2 * j + 2) for j, value in enumerate(COS))
_SLOPE = HALF_PI * _UNIT
_FRACTION = 2**52 - 1
_TWO_52 = 0x4330000000000000  # float64 2⁵²: an integer below 2⁵² in its fraction adds to it
_TWO_52_LESS_HALF = 2.0**52 - 0.5
_BIAS = 2.0**52 + EXPONENT_BIAS
_EIGHTH_TURN = 1 << 29
_BIT_62, _SIGN = 1 << 62, 1 << 63
_REFINED_BELOW = np.uint32(REFINED_BELOW)
_TABLE = Table(
    (*LOG, -4.0, *_SIN, _SLOPE, *_COS, 1.0, 2.0, LN2_HIGH, LN2_LOW, _BIAS, _TWO_52_LESS_HALF),
    (_TWO_52, EXPONENT_SHIFT, _FRACTION, ROOT_HALF, _BIT_62, _SIGN),
    (_EIGHTH_TURN, 2),
)
_ROWS = _TABLE.rows


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


def _reduced(v: Lanes) -> tuple[Lanes, Lanes]:
    """s and e of `polynomials` for v = 2³²u."""
    b = v.bits() + EXPONENT_SHIFT
    e = ((b >> 52) | _TWO_52).as_float() - _BIAS
    f = ((b & _FRACTION) + ROOT_HALF).as_float() - 1.0
    return f / (f + 2.0), e


def _radii(s: Lanes, e: Lanes) -> Lanes:
    """√(−2 ln u)."""
    t = s * s
    log = s * t.times_plus(t.polynomial(LOG), -4.0)
    return e.times_plus(LN2_HIGH, e.times_plus(LN2_LOW, log)).square_root()


def _directions(a: Lanes) -> tuple[Lanes, Lanes]:
    """(cos φ, sin φ) for angle words a, φ = 2π(a + ½)·2⁻³²."""
    x = ((a << 2) | 2).signed_to_float()  # 4(a + 2²⁹) + 2³¹ + 2 modulo 2³², 2⁻³² quarter turns
    t = x * x
    sin = x * t.times_plus(t.polynomial(_SIN), _SLOPE)
    cos = t.times_plus(t.polynomial(_COS), 1.0)
    top = (a + _EIGHTH_TURN).raised()  # the quadrant q is in its first two bits
    odd = (top << 1).top_bit()
    first, second = odd.choose(sin, cos), odd.choose(cos, sin)
    first_sign, second_sign = (top + _BIT_62) & _SIGN, top & _SIGN
    return (first.bits() ^ first_sign).as_float(), (second.bits() ^ second_sign).as_float()


def _generated(work: Callable[[Places], None]) -> Any:
    """What numba calls to generate the code of an intrinsic that returns nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        work(Places(context, builder, signature, arguments, _TABLE))
        return context.get_dummy_value()

    return generate


def _start_block(typing_context: Any, words: Any, block: Any, v: Any, table: Any) -> Any:
    """v = 2³²u of the pairs of a block, for what the words alone give."""
    del typing_context

    @_generated
    def work(at: Places) -> None:
        plain = (at.load(0, at.entry(1, NORMALS_PER_BLOCK)).widened() | _TWO_52).as_float()
        at.store(plain - _TWO_52_LESS_HALF, 2, at.entry(1, PAIRS_PER_BLOCK))

    return types.none(words, block, v, table), work


def _reduce_block(typing_context: Any, v: Any, e: Any, block: Any, table: Any) -> Any:
    """s, in place of v, and e of a block."""
    del typing_context

    @_generated
    def work(at: Places) -> None:
        entry = at.entry(2, PAIRS_PER_BLOCK)
        s, e = _reduced(at.load(0, entry))
        at.store(s, 0, entry)
        at.store(e, 1, entry)

    return types.none(v, e, block, table), work


def _turn_block(typing_context: Any, words: Any, block: Any, cos: Any, sin: Any, table: Any) -> Any:
    """cos φ and sin φ of the pairs of a block."""
    del typing_context

    @_generated
    def work(at: Places) -> None:
        first, second = _directions(at.load(0, at.entry(1, NORMALS_PER_BLOCK, LANES)))
        at.store(first, 2, at.entry(1, PAIRS_PER_BLOCK))
        at.store(second, 3, at.entry(1, PAIRS_PER_BLOCK))

    return types.none(words, block, cos, sin, table), work


def _root_block(typing_context: Any, s: Any, e: Any, block: Any, table: Any) -> Any:
    """r in place of s."""
    del typing_context

    @_generated
    def work(at: Places) -> None:
        entry = at.entry(2, PAIRS_PER_BLOCK)
        at.store(_radii(at.load(0, entry), at.load(1, entry)), 0, entry)

    return types.none(s, e, block, table), work


def _add_block(
    typing_context: Any, r: Any, cos: Any, sin: Any, block: Any, weight: Any, y: Any, table: Any
) -> Any:
    """y of a block += weight·z."""
    del typing_context

    @_generated
    def work(at: Places) -> None:
        pair, weight = at.entry(3, PAIRS_PER_BLOCK), at.repeated(4)
        radii = at.load(0, pair)
        for half in (0, 1):
            sums = at.entry(3, NORMALS_PER_BLOCK, half * LANES)
            z = radii * at.load(1 + half, pair)
            at.store(weight.times_plus(z, at.load(5, sums)), 5, sums)

    return types.none(r, cos, sin, block, weight, y, table), work


_start: Any = intrinsic(_start_block)
_reduce: Any = intrinsic(_reduce_block)
_turn: Any = intrinsic(_turn_block)
_root: Any = intrinsic(_root_block)
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
    table = np.empty(_ROWS.size * LANES, np.uint64)
    for i in range(table.size):
        table[i] = _ROWS[i // LANES]
    pairs = CHUNK // 2
    return np.empty(pairs), np.empty(pairs), np.empty(pairs), np.empty(pairs), table


@compiled
def add_blocks(
    words: Any, first: int, positions: Any, refinements: Any, weight: float, y: Any, memory: Any
) -> None:
    """Add weight·z of whole blocks to sums in the order of elements.

    Each step is a loop of its own over a chunk: all steps of one pair are a chain of a hundred cycles, and a
    processor looks ahead into few of them at once.

    Args:
        words: keystream as uint32, 16 per block.
        first: number of the first block among those that `positions` counts.
        positions: int64, 8c + k for each pair that needs refinement, ascending.
        refinements: uint64, the 64 bits of each of them.
        weight: float64.
        y: float64 sums, as many as words.
        memory: from `scratch`.
    """
    v, e, cos, sin, table = memory
    j = 0
    while j < positions.size and positions[j] < PAIRS_PER_BLOCK * first:
        j += 1
    for start in range(0, y.size, CHUNK):
        some, sums = words[start : start + CHUNK], y[start : start + CHUNK]
        blocks = some.size // NORMALS_PER_BLOCK
        before = PAIRS_PER_BLOCK * first + start // 2
        for b in range(blocks):
            _start(some, b, v, table)
        while j < positions.size and positions[j] - before < PAIRS_PER_BLOCK * blocks:
            pair = positions[j] - before
            word = some[pair // PAIRS_PER_BLOCK * NORMALS_PER_BLOCK + pair % PAIRS_PER_BLOCK]
            v[pair] = fma(np.float64(refinements[j]) + 0.5, 2.0**-64, np.float64(word))
            j += 1
        for b in range(blocks):
            _reduce(v, e, b, table)
            _turn(some, b, cos, sin, table)
        for b in range(blocks):
            _root(v, e, b, table)
            _add(v, cos, sin, b, weight, sums, table)
