"""Products of matrices from blocks in registers."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled
from fedmf.training.blocks.vectors import (
    BROAD,
    LANES,
    add_block,
    at,
    at_double,
    dot,
    four_dots,
    set_block,
)

_5xB, _4xB, _1xB = (add_block[rows, BROAD] for rows in (5, 4, 1))
_5x1, _4x1, _1x1 = (add_block[rows, 1] for rows in (5, 4, 1))
_set5xB, _set4xB, _set1xB = (set_block[rows, BROAD] for rows in (5, 4, 1))
_set5x1, _set4x1, _set1x1 = (set_block[rows, 1] for rows in (5, 4, 1))


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
        broad = BROAD > 1 and c + BROAD * LANES <= columns
        r = np.int64(0)
        while r < rows:
            here, there, result = at(x, start + r * row), at(w, first + c), at(y, begin + r * long + c)
            left = rows - r
            if left >= 5 and left % 4 != 0:
                if broad:
                    _5xB(here, row, step, there, wide, result, long, n)
                else:
                    _5x1(here, row, step, there, wide, result, long, n)
                r += 5
            elif left >= 4:
                if broad:
                    _4xB(here, row, step, there, wide, result, long, n)
                else:
                    _4x1(here, row, step, there, wide, result, long, n)
                r += 4
            else:
                if broad:
                    _1xB(here, row, step, there, wide, result, long, n)
                else:
                    _1x1(here, row, step, there, wide, result, long, n)
                r += 1
        c += BROAD * LANES if broad else LANES


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
        broad = BROAD > 1 and c + BROAD * LANES <= columns
        r = np.int64(0)
        while r < rows:
            here, there = at(x, start + r * row), at(w, first + c)
            result = at(y, begin + r * columns + c)
            left = rows - r
            if left >= 5 and left % 4 != 0:
                if broad:
                    _set5xB(here, row, step, there, wide, result, columns, n)
                else:
                    _set5x1(here, row, step, there, wide, result, columns, n)
                r += 5
            elif left >= 4:
                if broad:
                    _set4xB(here, row, step, there, wide, result, columns, n)
                else:
                    _set4x1(here, row, step, there, wide, result, columns, n)
                r += 4
            else:
                if broad:
                    _set1xB(here, row, step, there, wide, result, columns, n)
                else:
                    _set1x1(here, row, step, there, wide, result, columns, n)
                r += 1
        c += BROAD * LANES if broad else LANES
    if c == columns:
        return
    for r in range(rows):
        _set1x1(at(x, start + r * row), row, step, at(w, first + c), wide, at(rest, 0), LANES, n)
        for i in range(columns - c):
            y[begin + r * columns + c + i] = rest[i]
