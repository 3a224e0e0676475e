"""Rows of float64 numbers as rows of integers of bounded norm, each row by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmf.noise.loops import compiled


@compiled("void(float64[:,::1], float64, float64, float64, int64[:,::1], float64[::1], boolean[::1])")
def clip_rows(
    rows: Any, clip_norm: Any, scale: Any, limit: Any, integers: Any, norms: Any, counted: Any
) -> None:
    """Set integers to the rows, clipped to ζ, in units in which ζ is ``scale``, rounded towards zero.

    Sums are made in the order of entries: the integers of a row are the same on any processor, whatever
    other rows there are. That Σ n² ≤ 2²ᴮ is proved as in `fedmf.clipping.merge.merge`: every |n| ≤ 2ᴮ, and a
    row with a computed sum of squares above the limit becomes zeros.

    Args:
        rows: shape (rows, d).
        clip_norm: ζ.
        scale: 2ᴮ with a margin, B ≤ 31.
        limit: `square_limit` of d and B.
        integers: shape (rows, d); set.
        norms: norms of the rows in units of ζ; set, 0 for those that are not finite.
        counted: whether a row is finite and within the bound; set. The others become zeros.
    """
    for r in range(rows.shape[0]):
        row = rows[r]
        out = integers[r]
        largest = 0.0
        finite = True
        for i in range(row.size):
            size = abs(row[i])
            finite &= size < np.inf
            largest = max(largest, size)
        out[:] = 0
        norms[r] = 0.0
        counted[r] = finite
        if not finite or largest == 0.0:
            continue
        # Squares of huge or tiny entries stay in range after a division by the largest.
        square = 0.0
        for i in range(row.size):
            x = row[i] / largest
            square += x * x
        root = np.sqrt(square)
        size = largest / clip_norm
        norms[r] = size * root
        factor = scale * (1.0 / root if norms[r] > 1.0 else size)
        square = 0.0
        for i in range(row.size):
            out[i] = np.int64(row[i] / largest * factor)
            square += np.float64(out[i]) * np.float64(out[i])
        if not square <= limit:
            out[:] = 0
            counted[r] = False
