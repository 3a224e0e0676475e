"""Released means over time, few enough to be drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from fedmf.streaming.outputs.renderer import Renderer
from fedmf.streaming.released import Releases
from fedmf.typing import Array

__all__ = ["mean_points"]

_POINTS: Final = 1000
_BLOCK: Final = 4096


def mean_points(
    renderer: Renderer, releases: Callable[[int, int], Releases], records: int
) -> tuple[Array, Array, Array]:
    """Steps, means and standard errors of the means of about a thousand releases, the last among them.

    Args:
        renderer: of the stream.
        releases: those from start to stop − 1.
        records: how many there are.

    Raises:
        ValueError: there are none.
    """
    if not records:
        raise ValueError("releases (of the stream) must be at least one for a picture; got none.")
    wanted = np.unique(np.linspace(0, records - 1, min(records, _POINTS)).astype(np.int64))
    parts = []
    for start in range(0, records, _BLOCK):
        stop = min(records, start + _BLOCK)
        if not (chosen := wanted[(start <= wanted) & (wanted < stop)] - start).size:
            continue
        block = releases(start, stop)
        fields, errors = renderer.fields(block), renderer.errors(block)
        parts.append((fields["t"][chosen], fields["mean"][chosen], errors["mean"][chosen, 0]))
    t, mean, error = (np.concatenate(part) for part in zip(*parts, strict=True))
    return t, mean, error
