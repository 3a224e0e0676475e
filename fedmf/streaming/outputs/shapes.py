"""Releases as text: JSON lines, tidy CSV with a row for each step and number, wide CSV with one a step."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.streaming.outputs.counted import mean_errors
from fedmf.streaming.outputs.renderer import Renderer
from fedmf.streaming.position import Releases
from fedmf.typing import Array

#: In their order, as far as there are such.
_QUANTITIES: Final = (
    "mean",
    "valid_share",
    "covariance",
    "first",
    "second",
    "density_mean",
    "density_covariance",
    "correlation",
)
#: Those for which intervals say it, or that have a bias.
_WITHOUT_ERROR: Final = ("density_mean", "density_covariance", "correlation")
#: Bytes for some releases.
Shape = Callable[[Renderer, Releases], bytes]


def _tidy(renderer: Renderer, releases: Releases) -> bytes:
    head = ["t", *renderer.label_names, "quantity", "column", "column_2", "value", "standard_error"]
    head += ["low", "high"] if renderer.intervals else []
    numbers = list(_numbers(renderer, releases))
    rows = (
        [*begin, number.quantity, *number.columns, *number.cells(i)]
        for i, begin in enumerate(_beginnings(renderer, releases))
        for number in numbers
    )
    return _csv(rows if releases.first else _after(head, rows))


def _wide(renderer: Renderer, releases: Releases) -> bytes:
    series = wide_columns(renderer, releases)
    head = ["t", *renderer.label_names, *series]
    rows = (
        [*begin, *(_shown(values[i]) for values in series.values())]
        for i, begin in enumerate(_beginnings(renderer, releases))
    )
    return _csv(rows if releases.first else _after(head, rows))


def wide_columns(renderer: Renderer, releases: Releases) -> dict[str, list[float]]:
    """Columns of numbers by name, "mean:speed" and "standard_error:mean:speed" say, a row each release."""
    series = {}
    for number in _numbers(renderer, releases):
        name = ":".join(part for part in (number.quantity, *number.columns) if part)
        for what, values in zip(("", "standard_error:", "low:", "high:"), number.series, strict=False):
            if values is not None:
                series[what + name] = values
    return series


#: By name. A header stands before the first release.
SHAPES: Final[Mapping[str, Shape]] = {"json": Renderer.lines, "tidy": _tidy, "wide": _wide}


@dataclass(frozen=True, eq=False)
class _Number:
    """One number of each release: what it is, of which columns; values, standard errors, interval ends."""

    quantity: str
    columns: tuple[str, str]
    series: list[list[float] | None]

    def cells(self, i: int) -> list[float | str]:
        """Of a release, empty where there is none."""
        return ["" if values is None else _shown(values[i]) for values in self.series]


def _beginnings(renderer: Renderer, releases: Releases) -> Iterator[list[Any]]:
    """t and labels of each release."""
    for i, t in enumerate(renderer.steps(releases).tolist()):
        yield [t, *releases.label(i)]


def _numbers(renderer: Renderer, releases: Releases) -> Iterator[_Number]:
    fields = renderer.fields(releases)
    errors = renderer.errors(fields)
    for quantity in _QUANTITIES:
        if quantity not in fields:
            continue
        values = fields[quantity]
        parts = [values, errors.get(quantity, None if quantity in _WITHOUT_ERROR else np.nan)]
        if renderer.intervals:
            parts += [fields.get(f"{quantity}_{end}") for end in ("low", "high")]
        arrays = [None if part is None else np.broadcast_to(part, values.shape) for part in parts]
        names = renderer.coordinates if quantity in ("first", "second") else renderer.names
        for place, columns in _places(values.shape[1:], names, renderer.block_names):
            if quantity == "correlation" and columns[0] == columns[1]:
                continue
            at = (slice(None), *place)
            alone = quantity in ("first", "mean", "density_mean")
            pair = (columns[0], "") if alone else columns
            yield _Number(quantity, pair, [None if array is None else array[at].tolist() for array in arrays])


def _places(
    shape: tuple[int, ...], names: tuple[str, ...], blocks: tuple[str, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[str, str]]]:
    """Where the different numbers of a release stand, and the columns they are of."""
    if not shape:
        yield (), ("", "")
        return
    if len(shape) == 2:
        for i in range(shape[0]):
            for j in range(i, shape[1]):
                yield (i, j), (names[i], names[j])
        return
    of = names if shape[0] == len(names) else blocks
    for i in range(shape[0]):
        yield (i,), (of[i], of[i])


def _shown(error: float) -> float | str:
    return "" if math.isnan(error) else error


def _after(head: list[str], rows: Iterable[list[Any]]) -> Iterator[list[Any]]:
    yield head
    yield from rows


def _csv(rows: Iterable[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


_POINTS: Final = 1000
_BLOCK: Final = 4096


@dataclass(frozen=True, eq=False)
class MeanPoints:
    """Released means of some steps.

    Args:
        t: the steps.
        mean: shape (steps, d).
        error: their standard errors, shape (steps, d).
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
    parts: dict[str, list[NDArray[Any]]] = {"t": [], "mean": [], "error": [], "timestamp": []}
    for start in range(0, records, _BLOCK):
        stop = min(records, start + _BLOCK)
        if not (chosen := wanted[(start <= wanted) & (wanted < stop)] - start).size:
            continue
        fields = renderer.fields(releases(start, stop))
        fields["error"] = np.broadcast_to(mean_errors(fields), fields["mean"].shape)
        for name, values in parts.items():
            if name in fields:
                values.append(fields[name][chosen])
    t, mean, error = (np.concatenate(parts[name]) for name in ("t", "mean", "error"))
    times = [str(text) for block in parts["timestamp"] for text in block]
    return MeanPoints(t, mean, error, times or None)
