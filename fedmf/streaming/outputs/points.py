"""Released means over time, few enough to be drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.streaming.outputs.renderer import Renderer
from fedmf.streaming.released import Releases
from fedmf.typing import Array

_POINTS: Final = 1000
_BLOCK: Final = 4096


@dataclass(frozen=True, eq=False)
class MeanPoints:
    """Released means of some steps.

    Args:
        t: the steps.
        mean: shape (steps, d).
        error: standard errors of a coordinate of the mean.
        times: the public timestamps of the steps, as text; None for a stream without them.
    """

    t: NDArray[np.int64]
    mean: Array
    error: Array
    times: list[str] | None


def mean_points(renderer: Renderer, releases: Callable[[int, int], Releases], records: int) -> MeanPoints:
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
    parts: dict[str, list[NDArray[Any]]] = {"t": [], "mean": [], "mean_standard_error": [], "timestamp": []}
    for start in range(0, records, _BLOCK):
        stop = min(records, start + _BLOCK)
        if not (chosen := wanted[(start <= wanted) & (wanted < stop)] - start).size:
            continue
        fields = renderer.fields(releases(start, stop))
        for name, values in parts.items():
            if name in fields:
                values.append(fields[name][chosen])
    t, mean, error = (np.concatenate(parts[name]) for name in ("t", "mean", "mean_standard_error"))
    times = [str(text) for block in parts["timestamp"] for text in block]
    return MeanPoints(t, mean, error, times or None)
