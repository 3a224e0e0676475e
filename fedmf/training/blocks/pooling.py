"""Pooling in vector registers, and the way back through it to kernels and images.

Sums over pixels are chains of fused multiply-adds in the order of the pixels.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedmf.training.blocks.vectors import BYTES, FLOATS, LANES, POINTER, fused, spread, vector
from fedmf.training.blocks.windows import Loop

_INT = ir.IntType(32)
_SIZE = types.intp


def _largest_of(typingctx: Any, x: Any, right: Any, down: Any, floor: Any, y: Any, marks: Any) -> Any:
    """y = max(floor, the largest of the four x[0], x[right], x[down], x[down + right]) for 16 channels; NaN
    counts as largest. marks says which of the four it is, the first of equal ones, or 4 for the floor."""
    del typingctx, x, right, down, floor, y, marks

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        x, right, down, floor, y, marks = arguments
        number = lambda i: ir.Constant(ir.VectorType(_INT, LANES), [i] * LANES)  # noqa: E731
        places = [right.type(0), right, down, b.add(right, down)]
        largest, *others = [b.load(vector(b, x, place, FLOATS), align=4) for place in places]
        mark = number(0)
        for i, other in enumerate(others, 1):
            wins = b.or_(b.fcmp_ordered(">", other, largest), b.fcmp_unordered("uno", other, other))
            largest, mark = b.select(wins, other, largest), b.select(wins, number(i), mark)
        floors = spread(b, floor, FLOATS)
        below = b.fcmp_ordered("<=", largest, floors)
        b.store(b.select(below, floors, largest), vector(b, y, right.type(0), FLOATS), align=4)
        mark = b.select(below, number(4), mark)
        b.store(b.trunc(mark, BYTES), vector(b, marks, right.type(0), BYTES), align=1)
        return context.get_dummy_value()

    places = (POINTER, _SIZE, _SIZE, types.float32, POINTER, types.CPointer(types.uint8))
    return types.void(*places), code


def _collect(
    typingctx: Any,
    marks: Any,
    slopes: Any,
    wide: Any,
    n: Any,
    shifts: Any,
    first: Any,
    row: Any,
    places: Any,
    amounts: Any,
    filled: Any,
) -> Any:
    """Append to ``places`` and ``amounts``, which hold ``filled`` entries, those of n pixels in a line.

    Marks and slopes are ``wide`` from pixel to pixel. A mark below 4 appends first + p·row + shifts[mark] and
    the slope, one of 4 nothing. Returns how many entries there are then.
    """
    del typingctx, marks, slopes, wide, n, shifts, first, row, places, amounts, filled

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        marks, slopes, wide, n, shifts, first, row, places, amounts, filled = arguments
        whole = n.type
        loop = Loop(b, n, [filled, first, whole(0)])
        count, here, apart = loop.values
        mark = b.zext(b.load(b.gep(marks, [apart])), whole)
        b.store(b.add(here, b.load(b.gep(shifts, [mark]))), b.gep(places, [count]))
        b.store(b.load(b.gep(slopes, [apart])), b.gep(amounts, [count]))
        count = b.add(count, b.zext(b.icmp_unsigned("<", mark, whole(4)), whole))
        count, *_ = loop.close([count, b.add(here, row), b.add(apart, wide)])
        return count

    octets, integers = types.CPointer(types.uint8), types.CPointer(types.int64)
    places_ = (octets, POINTER, _SIZE, _SIZE, integers, _SIZE, _SIZE, integers, POINTER, _SIZE)
    return types.int64(*places_), code


def _tap_block(lines: int, pixels: int) -> Any:
    @intrinsic
    def block(
        typingctx: Any,
        offsets: Any,
        values: Any,
        n: Any,
        x: Any,
        line: Any,
        pixel: Any,
        w: Any,
        dx: Any,
        g: Any,
        apart: Any,
    ) -> Any:
        """g[i, j] += Σ_e values[e]·x[p] and dx[p] += values[e]·w[i, j]; returns Σ_e values[e].

        Here p = offsets[e] + i·line + j·pixel, (i, j) are the taps of a kernel, and all is for 16 channels.
        Entries of g and w are ``apart`` from tap to tap; e < n, n positive.
        """
        del typingctx, offsets, values, n, x, line, pixel, w, dx, g, apart

        def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            del context, signature
            offsets, values, n, x, line, pixel, w, dx, g, apart = arguments
            whole, taps = line.type, [(i, j) for i in range(lines) for j in range(pixels)]
            steps = [b.mul(apart, whole(t)) for t in range(len(taps))]
            kernel = [b.load(vector(b, w, step, FLOATS), align=4) for step in steps]
            first = [b.load(vector(b, g, step, FLOATS), align=4) for step in steps]
            loop = Loop(b, n, [*first, ir.Constant(ir.FloatType(), 0.0)])
            offset, value = b.load(b.gep(offsets, [loop.i])), b.load(b.gep(values, [loop.i]))
            numbers, sums = spread(b, value, FLOATS), []
            for t, (i, j) in enumerate(taps):
                shift = b.add(b.mul(line, whole(i)), b.mul(pixel, whole(j)))
                place = b.add(offset, shift)
                here = b.load(vector(b, x, place, FLOATS), align=4)
                sums.append(fused(b, FLOATS, numbers, here, loop.values[t]))
                into = vector(b, dx, place, FLOATS)
                b.store(fused(b, FLOATS, numbers, kernel[t], b.load(into, align=4)), into, align=4)
            *sums, total = loop.close([*sums, b.fadd(loop.values[-1], value)])
            for step, value in zip(steps, sums, strict=True):
                b.store(value, vector(b, g, step, FLOATS), align=4)
            return total

        integers = types.CPointer(types.int64)
        places = (integers, POINTER, _SIZE, POINTER, _SIZE, _SIZE, POINTER, POINTER, POINTER, _SIZE)
        return types.float32(*places), code

    return block


def _marked_block(lines: int, pixels: int, pool: int) -> Any:
    @intrinsic
    def block(
        typingctx: Any,
        x: Any,
        row: Any,
        jump: Any,
        slopes: Any,
        step: Any,
        marks: Any,
        wide: Any,
        m: Any,
        n: Any,
        g: Any,
        apart: Any,
        bias: Any,
    ) -> Any:
        """The gradients of the taps (i, j) of one channel's kernels, and of biases, for 16 outputs.

        g[i, j] += Σ_{y<m} Σ_{p<n} d[y, p]·x[place + i·jump + j·row] and bias += Σ d[y, p], with the slope d
        at y·step + p·wide, and as place the one of the pool² inputs that the mark at (y·n + p)·wide says; a
        mark of 4 says none. m and n are positive.
        """
        del typingctx, x, row, jump, slopes, step, marks, wide, m, n, g, apart, bias

        def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            del signature
            x, row, jump, slopes, step, marks, wide, m, n, g, apart, bias = arguments
            whole, taps = row.type, [(i, j) for i in range(lines) for j in range(pixels)]
            number = lambda i: ir.Constant(BYTES, [i] * LANES)  # noqa: E731
            steps = [b.mul(apart, whole(t)) for t in range(len(taps))]
            first = [b.load(vector(b, g, step, FLOATS), align=4) for step in steps]
            first.append(b.load(vector(b, bias, whole(0), FLOATS), align=4))
            zeros = ir.Constant(FLOATS, [0.0] * LANES)
            outer = Loop(b, m, first)
            inner = Loop(b, n, outer.values)
            place = b.add(b.mul(outer.i, step), b.mul(inner.i, wide))
            slope = b.load(vector(b, slopes, place, FLOATS), align=4)
            place = b.mul(b.add(b.mul(outer.i, n), inner.i), wide)
            mark = b.load(vector(b, marks, place, BYTES), align=1)
            shift = b.add(b.mul(b.mul(outer.i, jump), whole(pool)), b.mul(b.mul(inner.i, row), whole(pool)))
            window = [
                [
                    spread(
                        b,
                        b.load(b.gep(x, [_sum(b, shift, b.mul(jump, whole(i)), b.mul(row, whole(j)))])),
                        FLOATS,
                    )
                    for j in range(pixels + pool - 1)
                ]
                for i in range(lines + pool - 1)
            ]
            *sums, total = inner.values
            total = b.fadd(total, b.select(b.icmp_unsigned("==", mark, number(4)), zeros, slope))
            for q in range(pool * pool):
                down, right = divmod(q, 2)
                here = b.select(b.icmp_unsigned("==", mark, number(q)), slope, zeros)
                sums = [
                    fused(b, FLOATS, here, window[i + down][j + right], value)
                    for (i, j), value in zip(taps, sums, strict=True)
                ]
            *sums, total = outer.close(inner.close([*sums, total]))
            for step, value in zip(steps, sums, strict=True):
                b.store(value, vector(b, g, step, FLOATS), align=4)
            b.store(total, vector(b, bias, whole(0), FLOATS), align=4)
            return context.get_dummy_value()

        octets = types.CPointer(types.uint8)
        places = (POINTER, _SIZE, _SIZE, POINTER, _SIZE, octets, _SIZE, _SIZE, _SIZE, POINTER, _SIZE, POINTER)
        return types.void(*places), code

    return block


def _sum(b: Any, *parts: Any) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = b.add(total, part)
    return total


#: By (lines, pixels of the kernel).
tap_block: Final = {shape: _tap_block(*shape) for shape in ((3, 3), (1, 5))}
#: By (lines, pixels of the kernel, pool).
marked_block: Final = {
    (*shape, pool): _marked_block(*shape, pool) for shape in ((3, 3), (1, 5)) for pool in (1, 2)
}
collect: Final[Any] = intrinsic(_collect)
largest_of: Final[Any] = intrinsic(_largest_of)
