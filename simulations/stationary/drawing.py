"""Names of this folder's curves, and their points as `simulations/design/pictures.py` draws
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["EXACT", "FTRL", "LOWEST", "SGD", "Panel", "points"]

SGD = "Noisy-SGD"
FTRL = "ν-Noisy-FTRL"
LOWEST = "best Toeplitz noise"
EXACT = "exact"
#: Curves, x label, y label and, at last, which axes are logarithmic if not both.
Curves = Mapping[str, Sequence[tuple[float, ...]]]
Panel = tuple[Curves, str, str] | tuple[Curves, str, str, str]


def points(*columns: Iterable[float]) -> list[tuple[float, ...]]:
    """(x, y) or (x, y, half width of the interval) from columns."""
    return [tuple(map(float, row)) for row in zip(*columns, strict=True)]
