"""Products of matrices from blocks in registers."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled
from fedmf.training.blocks.vectors import (
    LANES,
    add_block,
    at,
    at_double,
    dot,
    four_dots,
    set_block,
)

_4x4, _4x1, _1x4, _1x1 = (add_block[size] for size in ((4, 4), (4, 1), (1, 4), (1, 1)))
_set4x4, _set4x1, _set1x4, _set1x1 = (set_block[size] for size in ((4, 4), (4, 1), (1, 4), (1, 1)))


def padded(columns: int) -> int:
    """The next multiple of a vector's entries."""
    return -(-columns // LANES) * LANES


@compiled
def add_product(x, start, row, step, rows, n, w, first, wide, y, begin, long, columns):
    """y[r, c] += Σ_{k<n} x[r, k]·w[k, c]; every entry is one chain of fused multiply-adds in the order of k.

    Args:
        x: flat float32; entry (r, k) lies at start + r·row + k·step.
        rows: how many r.
        n: how many k.
        w: flat float32; row k begins at first + k·wide.
        y: flat float32; row r begins at begin + r·long.
        columns: how many c, a multiple of 16.
    """
    c = np.int64(0)
    while c < columns:
        four = c + 64 <= columns
        r = np.int64(0)
        while r < rows:
            here, there, result = at(x, start + r * row), at(w, first + c), at(y, begin + r * long + c)
            if r + 4 <= rows:
                if four:
                    _4x4(here, row, step, there, wide, result, long, n)
                else:
                    _4x1(here, row, step, there, wide, result, long, n)
                r += 4
            else:
                if four:
                    _1x4(here, row, step, there, wide, result, long, n)
                else:
                    _1x1(here, row, step, there, wide, result, long, n)
                r += 1
        c += 64 if four else 16


@compiled
def products_with(products, rows, begin, r, wide):
    """products[i] = the product of row r with row i ≤ r, to the bit that of `dot`.

    Args:
        products: float64; set up to r.
        rows: flat float32; row i begins at begin + i·wide.
        begin: see rows.
        r: which.
        wide: entries of a row, a multiple of 16.
    """
    row, other = at(rows, begin + r * wide), np.int64(0)
    while other + 4 <= r + 1:
        four_dots(row, at(rows, begin + other * wide), wide, wide, at_double(products, other))
        other += 4
    while other <= r:
        products[other] = dot(row, at(rows, begin + other * wide), wide)
        other += 1


@compiled
def set_product(x, start, row, step, rows, n, w, first, wide, y, begin, columns, rest):
    """y[r, c] = Σ_{k<n} x[r, k]·w[k, c] with the float32 sums of `add_product`.

    Args:
        x, start, row, step, rows, n, w, first, wide: see `add_product`; rows of w are padded.
        y: flat float32; row r begins at begin + r·columns.
        columns: how many c, any number.
        rest: memory for 16 entries.
    """
    c = np.int64(0)
    while c + 16 <= columns:
        four = c + 64 <= columns
        r = np.int64(0)
        while r < rows:
            here, there = at(x, start + r * row), at(w, first + c)
            result = at(y, begin + r * columns + c)
            if r + 4 <= rows:
                if four:
                    _set4x4(here, row, step, there, wide, result, columns, n)
                else:
                    _set4x1(here, row, step, there, wide, result, columns, n)
                r += 4
            else:
                if four:
                    _set1x4(here, row, step, there, wide, result, columns, n)
                else:
                    _set1x1(here, row, step, there, wide, result, columns, n)
                r += 1
        c += 64 if four else 16
    if c == columns:
        return
    for r in range(rows):
        _set1x1(at(x, start + r * row), row, step, at(w, first + c), wide, at(rest, 0), LANES, n)
        for i in range(columns - c):
            y[begin + r * columns + c + i] = rest[i]
