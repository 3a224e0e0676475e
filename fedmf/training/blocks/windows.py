"""Convolutions and inner products of small images in vector registers.

Every entry of a result is one chain of fused multiply-adds in a fixed order (for inner products: sixteen of
them, added up in a fixed order), whatever block it lies in.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedmf.training.blocks.vectors import FLOATS, LANES, POINTER, fused, spread, vector

_INT = ir.IntType(32)
_SIZE = types.intp


class Loop:
    """for i in range(n), n at least 1, with values that are carried from turn to turn."""

    def __init__(self, b: Any, n: Any, carried: list[Any]) -> None:
        self._b, self._n = b, n
        before, self._block = b.block, b.append_basic_block("loop")
        b.branch(self._block)
        b.position_at_end(self._block)
        self.i = b.phi(n.type)
        self.i.add_incoming(n.type(0), before)
        self.values = [b.phi(value.type) for value in carried]
        for phi, value in zip(self.values, carried, strict=True):
            phi.add_incoming(value, before)

    def close(self, values: list[Any]) -> list[Any]:
        """Ends the turn; what the last turn leaves."""
        b = self._b
        following = b.add(self.i, self._n.type(1))
        self.i.add_incoming(following, b.block)
        for phi, value in zip(self.values, values, strict=True):
            phi.add_incoming(value, b.block)
        after = b.append_basic_block("after")
        b.cbranch(b.icmp_signed("<", following, self._n), self._block, after)
        b.position_at_end(after)
        return values


def _window_block(rows: int, vectors: int, near: bool = False) -> Any:
    @intrinsic
    def block(
        typingctx: Any, x: Any, row: Any, jump: Any, w: Any, wide: Any, start: Any, y: Any, m: Any, n: Any
    ) -> Any:
        """y[r·wide + c] = start[c] + Σ_{j<m} Σ_{k<n} x[r·row + j·jump + k]·w[(j·n + k)·wide + c].

        m and n are positive; row is 1 in blocks that are ``near``: so many addresses find no room.
        """
        del typingctx, x, row, jump, w, wide, start, y, m, n

        def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            del signature
            x, row, jump, w, wide, start, y, m, n = arguments
            each = [(r, c) for r in range(rows) for c in range(vectors)]
            whole = row.type
            first = [b.load(vector(b, start, whole(c * LANES), FLOATS), align=4) for _, c in each]
            lines = Loop(b, m, first)
            line = b.gep(x, [b.mul(lines.i, jump)])
            kernel = b.gep(w, [b.mul(b.mul(lines.i, n), wide)])
            entries = Loop(b, n, lines.values)
            here = b.gep(kernel, [b.mul(entries.i, wide)])
            weights = [b.load(vector(b, here, whole(c * LANES), FLOATS), align=4) for c in range(vectors)]
            numbers = []
            for r in range(rows):
                place = b.gep(line, [b.add(entries.i, whole(r) if near else b.mul(row, whole(r)))])
                numbers.append(spread(b, b.load(place), FLOATS))
            sums = [
                fused(b, FLOATS, numbers[r], weights[c], value)
                for (r, c), value in zip(each, entries.values, strict=True)
            ]
            sums = lines.close(entries.close(sums))
            for (r, c), value in zip(each, sums, strict=True):
                place = b.add(b.mul(wide, whole(r)), whole(c * LANES))
                b.store(value, vector(b, y, place, FLOATS), align=4)
            return context.get_dummy_value()

        places = (POINTER, _SIZE, _SIZE, POINTER, _SIZE, POINTER, POINTER, _SIZE, _SIZE)
        return types.void(*places), code

    return block


def _dot_block(rows: int, outputs: int) -> Any:
    @intrinsic
    def block(
        typingctx: Any, x: Any, row: Any, w: Any, wide: Any, n: Any, start: Any, y: Any, long: Any
    ) -> Any:
        """y[r·long + o] = start[o] + Σ_{k<n} x[r·row + k]·w[o·wide + k], n a multiple of 16 and positive."""
        del typingctx, x, row, w, wide, n, start, y, long

        def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            del signature
            x, row, w, wide, n, start, y, long = arguments
            whole, each = row.type, [(r, o) for r in range(rows) for o in range(outputs)]
            zeros = [ir.Constant(FLOATS, [0.0] * LANES) for _ in each]
            loop = Loop(b, b.sdiv(n, whole(LANES)), zeros)
            k = b.mul(loop.i, whole(LANES))
            ws = [
                b.load(vector(b, b.gep(w, [b.mul(wide, whole(o))]), k, FLOATS), align=4)
                for o in range(outputs)
            ]
            xs = [
                b.load(vector(b, b.gep(x, [b.mul(row, whole(r))]), k, FLOATS), align=4) for r in range(rows)
            ]
            sums = loop.close(
                [fused(b, FLOATS, xs[r], ws[o], s) for (r, o), s in zip(each, loop.values, strict=True)]
            )
            for (r, o), value in zip(each, sums, strict=True):
                total = b.fadd(_added(b, value), b.load(b.gep(start, [whole(o)])))
                b.store(total, b.gep(y, [b.add(b.mul(long, whole(r)), whole(o))]))
            return context.get_dummy_value()

        places = (POINTER, _SIZE, POINTER, _SIZE, _SIZE, POINTER, POINTER, _SIZE)
        return types.void(*places), code

    return block


def _added(b: Any, value: Any) -> Any:
    """The sum of a vector's entries: halves on halves."""
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        halves = [
            b.shuffle_vector(value, value, ir.Constant(ir.VectorType(_INT, lanes), list(part)))
            for part in (range(lanes), range(lanes, 2 * lanes))
        ]
        value = b.fadd(*halves)
    return b.extract_element(value, _INT(0))


def _copy_apart(typingctx: Any, x: Any, x_step: Any, y: Any, y_step: Any, n: Any) -> Any:
    """y[i·y_step] = x[i·x_step] for i < n, n positive."""
    del typingctx, x, x_step, y, y_step, n

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        x, x_step, y, y_step, n = arguments
        loop = Loop(b, n, [n.type(0), n.type(0)])
        here, there = loop.values
        b.store(b.load(b.gep(x, [here])), b.gep(y, [there]))
        loop.close([b.add(here, x_step), b.add(there, y_step)])
        return context.get_dummy_value()

    return types.void(POINTER, _SIZE, POINTER, _SIZE, _SIZE), code


#: By (pixels, vectors of channels): outputs of a convolution in a row.
window_block: Final = {
    size: _window_block(*size) for size in ((8, 2), (7, 2), (4, 2), (1, 2), (8, 1), (7, 1), (4, 1), (1, 1))
}
#: The same for pixels of one number.
near_block: Final = _window_block(14, 1, near=True)
#: By (rows, outputs).
dot_block: Final = {(r, o): _dot_block(r, o) for r in (5, 4, 1) for o in (4, 1)}
copy_apart: Final[Any] = intrinsic(_copy_apart)
