"""Products of matrices from blocks in registers."""

from __future__ import annotations

from typing import Final

import numpy as np

from fedmf.compiled import compiled, inlined
from fedmf.training.blocks.vectors import BROAD, LANES, add_block, at

_6xB, _4xB, _1xB = (add_block[rows, BROAD] for rows in (6, 4, 1))
_6x1, _4x1, _1x1 = (add_block[rows, 1] for rows in (6, 4, 1))

#: Terms of a sum that are dealt with at a time: what they read stays in the first cache for all rows.
_DEPTH: Final = 272


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
