"""Products of matrices from blocks in registers."""

from __future__ import annotations

from typing import Final

import numpy as np

from fedmf.compiled import compiled, inlined
from fedmf.training.blocks.vectors import BROAD, LANES, add_block, at, set_block
from fedmf.training.blocks.windows import dot_block

_6xB, _4xB, _1xB = (add_block[rows, BROAD] for rows in (6, 4, 1))
_6x1, _4x1, _1x1 = (add_block[rows, 1] for rows in (6, 4, 1))
_set6xB, _set4xB, _set1xB = (set_block[rows, BROAD] for rows in (6, 4, 1))
_set6x1, _set4x1, _set1x1 = (set_block[rows, 1] for rows in (6, 4, 1))
_dot5, _dot4, _dot1 = (dot_block[rows, 1] for rows in (5, 4, 1))

#: Terms of a sum, and columns of a result, that are dealt with at a time: what they are read from stays in
#: the first cache for all rows.
_DEPTH: Final = 272
_TILE: Final = 64


def padded(columns: int) -> int:
    """The next multiple of a vector's entries."""
    return -(-columns // LANES) * LANES


@inlined
def _block_of(left):
    """How many of so many rows come next: such that few are left for blocks of one."""
    if left >= 6 and left != 8 and left != 9:
        return 6
    return 4 if left >= 4 else 1


@compiled
def add_product(x, start, row, step, rows, n, w, first, wide, apart, y, begin, long, columns):
    """y[r, c] += Σ_{k<n} x[r, k]·w[k, c]; every entry is one chain of fused multiply-adds in the order of k.

    Args:
        x: flat float32; entry (r, k) lies at start + r·row + k·step.
        rows: how many r.
        n: how many k.
        w: flat float32; entries (k, 16v) … (k, 16v + 15) begin at first + k·wide + v·apart.
        y: flat float32; row r begins at begin + r·long.
        columns: how many c, a multiple of 16.
    """
    k = np.int64(0)
    while k < n:
        terms = min(n - k, _DEPTH)
        c = np.int64(0)
        while c < columns:
            broad = BROAD > 1 and c + BROAD * LANES <= columns
            there, r = at(w, first + k * wide + c // LANES * apart), np.int64(0)
            while r < rows:
                here, result = at(x, start + r * row + k * step), at(y, begin + r * long + c)
                taken = _block_of(rows - r)
                if taken == 6:
                    if broad:
                        _6xB(here, row, step, there, wide, apart, result, long, terms)
                    else:
                        _6x1(here, row, step, there, wide, apart, result, long, terms)
                elif taken == 4:
                    if broad:
                        _4xB(here, row, step, there, wide, apart, result, long, terms)
                    else:
                        _4x1(here, row, step, there, wide, apart, result, long, terms)
                elif broad:
                    _1xB(here, row, step, there, wide, apart, result, long, terms)
                else:
                    _1x1(here, row, step, there, wide, apart, result, long, terms)
                r += taken
            c += BROAD * LANES if broad else LANES
        k += terms


@compiled
def row_products(x, begin, wide, rows, products, long, zeros):
    """products[r·long + o] = the product of rows r and o of x in float32: sixteen chains of fused
    multiply-adds, added up in a fixed order, so that it depends on these two rows alone.

    Each is within γ·Σ_k |x_rk·x_ok| of the exact one, γ = (wide/16 + 4)·2⁻²⁴/(1 − (wide/16 + 4)·2⁻²⁴).

    Args:
        x: flat float32; row r begins at begin + r·wide.
        wide: entries of a row, a positive multiple of 16.
        rows: how many.
        products: flat float32.
        long: see products.
        zeros: at least one zero.
    """
    none = at(zeros, np.int64(0))
    for o in range(rows):
        other, r = at(x, begin + o * wide), o
        while r < rows:
            here, result, left = at(x, begin + r * wide), at(products, r * long + o), rows - r
            if left >= 5 and left % 4 != 0:
                _dot5(here, wide, other, wide, wide, none, result, long)
                r += 5
            elif left >= 4:
                _dot4(here, wide, other, wide, wide, none, result, long)
                r += 4
            else:
                _dot1(here, wide, other, wide, wide, none, result, long)
                r += 1
        for r in range(o):
            products[r * long + o] = products[o * long + r]


@compiled
def set_product(x, start, row, step, rows, n, w, first, wide, y, begin, columns, rest):
    """y[r, c] = Σ_{k<n} x[r, k]·w[k, c] with the float32 sums of `add_product`.

    Args:
        x, start, row, step, rows, n: see `add_product`.
        w: flat float32; row k begins at first + k·wide, padded to whole vectors.
        first, wide: see w.
        y: flat float32; row r begins at begin + r·columns.
        columns: how many c, any number.
        rest: memory for 16 entries.
    """
    whole, apart, tile = columns - columns % LANES, np.int64(LANES), np.int64(0)
    while tile < whole:
        until, r = min(tile + _TILE, whole), np.int64(0)
        while r < rows:
            here, taken, c = at(x, start + r * row), _block_of(rows - r), tile
            while c < until:
                broad = BROAD > 1 and c + BROAD * LANES <= until
                there, result = at(w, first + c), at(y, begin + r * columns + c)
                if taken == 6:
                    if broad:
                        _set6xB(here, row, step, there, wide, apart, result, columns, n)
                    else:
                        _set6x1(here, row, step, there, wide, apart, result, columns, n)
                elif taken == 4:
                    if broad:
                        _set4xB(here, row, step, there, wide, apart, result, columns, n)
                    else:
                        _set4x1(here, row, step, there, wide, apart, result, columns, n)
                else:
                    if broad:
                        _set1xB(here, row, step, there, wide, apart, result, columns, n)
                    else:
                        _set1x1(here, row, step, there, wide, apart, result, columns, n)
                c += BROAD * LANES if broad else LANES
            r += taken
        tile = until
    if whole == columns:
        return
    for r in range(rows):
        here = at(x, start + r * row)
        _set1x1(here, row, step, at(w, first + whole), wide, apart, at(rest, 0), apart, n)
        for i in range(columns - whole):
            y[begin + r * columns + whole + i] = rest[i]
