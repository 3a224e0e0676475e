"""Products of small float32 matrices in vector registers, compiled; the same bits for every blocking.

numba's own loops do not keep a block of results in registers. Here the instructions of one block are written
out: sixteen columns to a vector, every entry a chain of fused multiply-adds in the order of k, whatever block
it lies in. So a row of a product does not depend on which other rows are computed with it.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Entries of a vector.
LANES: Final = 16
#: Whether a register holds a whole vector, and there are 32 of them; else two and 16 (or four and 32).
WHOLE: Final = bool(get_host_cpu_features().get("avx512f", False))
#: Vectors side by side in a block of a product, so that the sums of five rows stay in registers.
BROAD: Final = 4 if WHOLE else 1

_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
FLOATS, _DOUBLES = ir.VectorType(_FLOAT, LANES), ir.VectorType(_DOUBLE, LANES)
BYTES = ir.VectorType(ir.IntType(8), LANES)
POINTER = types.CPointer(types.float32)


def fused(b: Any, kind: Any, x: Any, y: Any, z: Any) -> Any:
    """x·y + z of vectors, rounded once."""
    name = f"llvm.fma.v{LANES}{'f32' if kind == FLOATS else 'f64'}"
    return b.call(
        cgutils.get_or_insert_function(b.module, ir.FunctionType(kind, [kind] * 3), name), [x, y, z]
    )


def spread(b: Any, number: Any, kind: Any) -> Any:
    """A vector of the same number everywhere."""
    undefined = ir.Constant(kind, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    alone = b.insert_element(undefined, number, ir.IntType(32)(0))
    return b.shuffle_vector(alone, undefined, everywhere)


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    made = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(made.data, [arguments[1]])


def _at(typingctx: Any, array: Any, offset: Any) -> Any:
    """Where entry ``offset`` of a contiguous array of floats lies in memory."""
    del typingctx
    return types.CPointer(array.dtype)(array, types.intp), _address


def _sums(
    b: Any, rows: int, vectors: int, first: list[list[Any]], operands: tuple[Any, ...]
) -> list[list[Any]]:
    """first[r][c] + Σ_{k<n} x[r·row + k·step]·w[k·wide + c] of a block, in registers; see `add_product`."""
    x, row, step, w, wide, n = operands
    whole, each = row.type, range(vectors)
    before, loop, after = b.block, b.append_basic_block("product"), b.append_basic_block("done")
    b.cbranch(b.icmp_signed(">", n, whole(0)), loop, after)
    b.position_at_end(loop)
    k = b.phi(whole)
    k.add_incoming(whole(0), before)
    sums = [[b.phi(FLOATS) for _ in each] for _ in range(rows)]
    line = b.gep(w, [b.mul(k, wide)])
    weights = [b.load(vector(b, line, whole(c * LANES), FLOATS), align=4) for c in each]
    column = b.gep(x, [b.mul(k, step)])
    added = []
    for r in range(rows):
        entry = b.load(b.gep(column, [b.mul(row, whole(r))]))
        numbers = spread(b, entry, FLOATS)
        added.append([fused(b, FLOATS, numbers, weights[c], sums[r][c]) for c in each])
    following = b.add(k, whole(1))
    k.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, n), loop, after)
    b.position_at_end(after)
    last = [[b.phi(FLOATS) for _ in each] for _ in range(rows)]
    for r in range(rows):
        for c in each:
            for phi in (sums[r][c], last[r][c]):
                phi.add_incoming(first[r][c], before)
                phi.add_incoming(added[r][c], loop)
    return last


def vector(b: Any, base: Any, offset: Any, kind: Any) -> Any:
    """Where a vector begins."""
    return b.bitcast(b.gep(base, [offset]), kind.as_pointer())


def _places(b: Any, base: Any, long: Any, rows: int, vectors: int, kind: Any) -> list[list[Any]]:
    """Where the vectors of a block begin; row r begins at r·long."""
    whole = long.type
    return [
        [vector(b, base, b.add(b.mul(long, whole(r)), whole(c * LANES)), kind) for c in range(vectors)]
        for r in range(rows)
    ]


def _block(rows: int, vectors: int, adds: bool) -> Any:
    @intrinsic
    def multiply(
        typingctx: Any, x: Any, row: Any, step: Any, w: Any, wide: Any, y: Any, long: Any, n: Any
    ) -> Any:
        """y[r, c] (+)= Σ_{k<n} x[r·row + k·step]·w[k·wide + c]; row r of y begins at r·long."""
        del typingctx, x, row, step, w, wide, y, long, n

        def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            del signature
            x, row, step, w, wide, y, long, n = arguments
            places = _places(b, y, long, rows, vectors, FLOATS)
            zero = ir.Constant(FLOATS, [0.0] * LANES)
            first = [[b.load(place, align=4) if adds else zero for place in line] for line in places]
            for line, into in zip(
                _sums(b, rows, vectors, first, (x, row, step, w, wide, n)), places, strict=True
            ):
                for value, place in zip(line, into, strict=True):
                    b.store(value, place, align=4)
            return context.get_dummy_value()

        size = types.intp
        return types.void(POINTER, size, size, POINTER, size, POINTER, size, size), code

    return multiply


_SIZES = [(rows, vectors) for rows in (5, 4, 1) for vectors in (BROAD, 1)]
#: By (rows, vectors): y[r, c] += Σ_k x[r, k]·w[k, c] in registers.
add_block: Final = {size: _block(*size, adds=True) for size in _SIZES}
#: The same with = instead of +=.
set_block: Final = {size: _block(*size, adds=False) for size in _SIZES}


def _at_byte(typingctx: Any, array: Any, offset: Any) -> Any:
    """Where entry ``offset`` of a contiguous uint8 array lies in memory."""
    del typingctx
    return types.CPointer(types.uint8)(array, types.intp), _address


def _at_integer(typingctx: Any, array: Any, offset: Any) -> Any:
    """Where entry ``offset`` of a contiguous int64 array lies in memory."""
    del typingctx
    return types.CPointer(types.int64)(array, types.intp), _address


def _at_double(typingctx: Any, array: Any, offset: Any) -> Any:
    """Where entry ``offset`` of a contiguous float64 array lies in memory."""
    del typingctx
    return types.CPointer(types.float64)(array, types.intp), _address


def _dot(typingctx: Any, x: Any, y: Any, n: Any) -> Any:
    """Σ_{k<n} x_k·y_k in float64, products exact, n a multiple of 16; lanes are added in a fixed order."""
    del typingctx, x, y, n

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        x, y, n = arguments
        return _products_added(b, x, [y], n)[0]

    return types.float64(POINTER, POINTER, types.intp), code


def _four_dots(typingctx: Any, x: Any, y: Any, step: Any, n: Any, results: Any) -> Any:
    """results[i] = Σ_{k<n} x_k·y[i·step + k] for i < 4, each to the bit what `dot` gives, sooner."""
    del typingctx, x, y, step, n, results

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        x, y, step, n, results = arguments
        rows = [b.gep(y, [b.mul(step, step.type(i))]) for i in range(4)]
        for i, value in enumerate(_products_added(b, x, rows, n)):
            b.store(value, b.gep(results, [n.type(i)]))
        return context.get_dummy_value()

    size = types.intp
    return types.void(POINTER, POINTER, size, size, types.CPointer(types.float64)), code


def _products_added(b: Any, x: Any, rows: list[Any], n: Any) -> list[Any]:
    """Of x with each row, the sum of the products of their entries; x is loaded once."""
    whole = n.type
    before, loop, after = b.block, b.append_basic_block("dot"), b.append_basic_block("summed")
    nothing = ir.Constant(_DOUBLES, [0.0] * LANES)
    b.cbranch(b.icmp_signed(">", n, whole(0)), loop, after)
    b.position_at_end(loop)
    k, totals = b.phi(whole), [b.phi(_DOUBLES) for _ in rows]
    k.add_incoming(whole(0), before)
    one, *others = (b.load(b.bitcast(b.gep(side, [k]), FLOATS.as_pointer()), align=4) for side in (x, *rows))
    added = []
    for other, total in zip(others, totals, strict=True):
        added.append(fused(b, _DOUBLES, b.fpext(one, _DOUBLES), b.fpext(other, _DOUBLES), total))
    following = b.add(k, whole(LANES))
    k.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, n), loop, after)
    b.position_at_end(after)
    lanes = [b.phi(_DOUBLES) for _ in rows]
    for total, more, last in zip(totals, added, lanes, strict=True):
        total.add_incoming(nothing, before)
        total.add_incoming(more, loop)
        last.add_incoming(nothing, before)
        last.add_incoming(more, loop)
    return [lanes_added(b, last) for last in lanes]


def lanes_added(b: Any, lanes: Any) -> Any:
    """The entries of a vector, added one after the other."""
    result = b.extract_element(lanes, ir.IntType(32)(0))
    for lane in range(1, LANES):
        result = b.fadd(result, b.extract_element(lanes, ir.IntType(32)(lane)))
    return result


#: Compiled by numba where they are called.
at: Final[Any] = intrinsic(_at)
at_byte: Final[Any] = intrinsic(_at_byte)
at_double: Final[Any] = intrinsic(_at_double)
at_integer: Final[Any] = intrinsic(_at_integer)
four_dots: Final[Any] = intrinsic(_four_dots)
dot: Final[Any] = intrinsic(_dot)
