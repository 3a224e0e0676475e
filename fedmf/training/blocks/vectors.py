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
#: Vectors side by side in a block of a product, so that the sums of six rows stay in registers.
BROAD: Final = 4 if WHOLE else 1

FLOATS = ir.VectorType(ir.FloatType(), LANES)
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
    """first[r][c] + Σ_{k<n} x[r·row + k·step]·w[c, k] of a block, in registers; see `add_product`."""
    x, row, step, w, wide, apart, n = operands
    whole, each = row.type, range(vectors)
    before, loop, after = b.block, b.append_basic_block("product"), b.append_basic_block("done")
    b.cbranch(b.icmp_signed(">", n, whole(0)), loop, after)
    b.position_at_end(loop)
    k = b.phi(whole)
    k.add_incoming(whole(0), before)
    sums = [[b.phi(FLOATS) for _ in each] for _ in range(rows)]
    line = b.gep(w, [b.mul(k, wide)])
    weights = [b.load(vector(b, line, b.mul(apart, whole(c)), FLOATS), align=4) for c in each]
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


def _block(rows: int, vectors: int) -> Any:
    @intrinsic
    def multiply(
        typingctx: Any, x: Any, row: Any, step: Any, w: Any, wide: Any, apart: Any, y: Any, long: Any, n: Any
    ) -> Any:
        """y[r, c] += Σ_{k<n} x[r·row + k·step]·w[c, k]; row r of y begins at r·long.

        Vector v of row k of w begins at k·wide + v·apart.
        """
        del typingctx, x, row, step, w, wide, apart, y, long, n

        def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            del signature
            x, row, step, w, wide, apart, y, long, n = arguments
            places = _places(b, y, long, rows, vectors, FLOATS)
            first = [[b.load(place, align=4) for place in line] for line in places]
            for line, into in zip(
                _sums(b, rows, vectors, first, (x, row, step, w, wide, apart, n)), places, strict=True
            ):
                for value, place in zip(line, into, strict=True):
                    b.store(value, place, align=4)
            return context.get_dummy_value()

        size = types.intp
        return types.void(POINTER, size, size, POINTER, size, size, POINTER, size, size), code

    return multiply


_SIZES = [(rows, vectors) for rows in (6, 4, 1) for vectors in (BROAD, 1)]
#: By (rows, vectors): y[r, c] += Σ_k x[r, k]·w[k, c] in registers.
add_block: Final = {size: _block(*size) for size in _SIZES}


def _at_byte(typingctx: Any, array: Any, offset: Any) -> Any:
    """Where entry ``offset`` of a contiguous uint8 array lies in memory."""
    del typingctx
    return types.CPointer(types.uint8)(array, types.intp), _address


def _at_integer(typingctx: Any, array: Any, offset: Any) -> Any:
    """Where entry ``offset`` of a contiguous int64 array lies in memory."""
    del typingctx
    return types.CPointer(types.int64)(array, types.intp), _address


def lanes_added(b: Any, lanes: Any) -> Any:
    """The entries of a vector, added one after the other."""
    result = b.extract_element(lanes, ir.IntType(32)(0))
    for lane in range(1, LANES):
        result = b.fadd(result, b.extract_element(lanes, ir.IntType(32)(lane)))
    return result


#: Compiled by numba where they are called.
at: Final[Any] = intrinsic(_at)
at_byte: Final[Any] = intrinsic(_at_byte)
at_integer: Final[Any] = intrinsic(_at_integer)
