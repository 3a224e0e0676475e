"""Integers of a row into a sum, and the sum of their squares, in vector registers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedmf.training.blocks.vectors import LANES, WHOLE, fused, lanes_added, spread, vector

#: No larger entry becomes an integer: its square is above what an update of norm ζ has, 2⁸⁰.
WIDEST: Final = 2.0**41

_SHIFT: Final = 1.5 * 2.0**52
_SHIFT_BITS: Final = int(np.float64(_SHIFT).view(np.int64))
_DOUBLES, _INTEGERS = (ir.VectorType(kind, LANES) for kind in (ir.DoubleType(), ir.IntType(64)))


def _entries(b: Any, base: Any, k: Any) -> Any:
    """Sixteen entries from entry k on, as they are."""
    size = 4 if base.type.pointee == ir.FloatType() else 8
    return b.load(vector(b, base, k, ir.VectorType(base.type.pointee, LANES)), align=size)


def _audited(b: Any, x: Any, factor: Any) -> tuple[Any, Any]:
    """The integers trunc(x·factor), ±`WIDEST` where that is wider and for NaN; and the same as floats."""
    if x.type != _DOUBLES:
        x = b.fpext(x, _DOUBLES)
    scaled = b.fmul(x, factor)
    for order, widest in (("<", WIDEST), (">", -WIDEST)):  # NaN compares false
        edge = ir.Constant(_DOUBLES, [widest] * LANES)
        scaled = b.select(b.fcmp_ordered(order, scaled, edge), scaled, edge)
    if WHOLE:
        integers = b.fptosi(scaled, _INTEGERS)
        return integers, b.sitofp(integers, _DOUBLES)
    # Without an instruction for that: an integer of absolute value below 2⁵¹, added to 1.5·2⁵², stands in the
    # low bits of the sum, which is exact.
    name = f"llvm.trunc.v{LANES}f64"
    truncate = cgutils.get_or_insert_function(b.module, ir.FunctionType(_DOUBLES, [_DOUBLES]), name)
    cut = b.call(truncate, [scaled])
    shifted = b.bitcast(b.fadd(cut, ir.Constant(_DOUBLES, [_SHIFT] * LANES)), _INTEGERS)
    return b.sub(shifted, ir.Constant(_INTEGERS, [_SHIFT_BITS] * LANES)), cut


def _squares_added(b: Any, row: Any, origin: Any, n: Any, first: Any, of: Any) -> Any:
    """In each lane first + Σ of(row_k − origin_k)², one after the other, over k < n."""
    whole = n.type
    before, loop, after = b.block, b.append_basic_block("squares"), b.append_basic_block("summed")
    b.cbranch(b.icmp_signed(">", n, whole(0)), loop, after)
    b.position_at_end(loop)
    k, squares = b.phi(whole), b.phi(_DOUBLES)
    k.add_incoming(whole(0), before)
    squares.add_incoming(first, before)
    x = _entries(b, row, k)
    if origin is not None:
        x = b.fsub(x, _entries(b, origin, k))
    counted = of(k, x)
    added = fused(b, _DOUBLES, counted, counted, squares)
    following = b.add(k, whole(LANES))
    k.add_incoming(following, loop)
    squares.add_incoming(added, loop)
    b.cbranch(b.icmp_signed("<", following, n), loop, after)
    b.position_at_end(after)
    last = b.phi(_DOUBLES)
    last.add_incoming(first, before)
    last.add_incoming(added, loop)
    return last


def _add_squares(typingctx: Any, row: Any, origin: Any, n: Any, partial: Any) -> Any:
    """partial_l += Σ (row_k − origin_k)² over k = l, l + 16, … < n, in float64; n is a multiple of 16.

    The differences are float32, so their squares are exact.
    """
    del typingctx, n
    shifted = isinstance(origin, types.CPointer)

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        row, origin, n, partial = arguments
        place = vector(b, partial, n.type(0), _DOUBLES)
        wide = lambda _, x: b.fpext(x, _DOUBLES)  # noqa: E731
        sums = _squares_added(b, row, origin if shifted else None, n, b.load(place, align=8), wide)
        b.store(sums, place, align=8)
        return context.get_dummy_value()

    return types.void(row, origin, types.intp, partial), code


def _add_whole(typingctx: Any, row: Any, origin: Any, factor: Any, total: Any, n: Any) -> Any:
    """total_k += trunc((row_k − origin_k)·factor) for k < n, a multiple of 16; returns Σ of their squares.

    For an entry beyond `WIDEST`, or NaN, ±`WIDEST` is added, whose square is above any that is let in.
    """
    del typingctx, factor, n
    shifted = isinstance(origin, types.CPointer)

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        row, origin, factor, total, n = arguments
        factors = spread(b, factor, _DOUBLES)

        def counted(k: Any, x: Any) -> Any:
            integers, whole = _audited(b, x, factors)
            place = vector(b, total, k, _INTEGERS)
            b.store(b.add(b.load(place, align=8), integers), place, align=8)
            return whole

        nothing = ir.Constant(_DOUBLES, [0.0] * LANES)
        return lanes_added(b, _squares_added(b, row, origin if shifted else None, n, nothing, counted))

    arguments = row, origin, types.float64, total, types.intp
    return types.float64(*arguments), code


add_squares: Final[Any] = intrinsic(_add_squares)
add_whole: Final[Any] = intrinsic(_add_whole)
