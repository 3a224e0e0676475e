"""Rows scaled back to the norm bound, each the same whatever rows stand beside it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Norms are computed in floating point; what comes within this of ζ is scaled to this below it.
_MARGIN: Final = 1e-9


def clip_rows(
    values: NDArray[np.float64], norm_bound: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Rows x·min(1, ζ/‖x‖), and which were longer than ζ.

    Args:
        values: shape (rows, d), finite.
        norm_bound: ζ > 0.

    Guarantees:
        ‖row‖ ≤ ζ in exact arithmetic for d up to 10⁶, also where squares would overflow or vanish. The bits
        of a row do not depend on the other rows. Rows shorter than (1 − 10⁻⁹)ζ stay as they are.

    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)[0].round(6)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    largest = np.abs(values).max(axis=1, initial=0.0)
    shape = values / np.where(largest > 0, largest, 1.0)[:, None]
    root = np.zeros(len(values))
    for column in np.ascontiguousarray(shape.T):  # one after the other: a fixed order for every row
        root += column * column
    root = np.sqrt(root)
    with np.errstate(over="ignore"):
        norms = largest * root
    target = norm_bound * (1 - _MARGIN)
    over = norms > target
    clipped = values.copy()
    clipped[over] = shape[over] * (target / root[over])[:, None]
    return clipped, norms > norm_bound * (1 + _MARGIN)
