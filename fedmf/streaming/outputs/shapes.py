"""Releases as text: JSON lines, tidy CSV with a row for each step and number, wide CSV with one a step."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedmf.streaming.outputs.renderer import Renderer
from fedmf.streaming.released import Releases

__all__ = ["SHAPES", "Shape"]

#: Bytes for some releases.
Shape = Callable[[Renderer, Releases], bytes]


def _json(renderer: Renderer, releases: Releases) -> bytes:
    return renderer.lines(releases)


def _tidy(renderer: Renderer, releases: Releases) -> bytes:
    head = ["t", *renderer.label_names, "quantity", "column", "column_2", "value", "standard_error"]
    numbers = list(_numbers(renderer, releases))
    rows = (
        [*begin, number.quantity, *number.columns, number.values[i], _shown(number.errors[i])]
        for i, begin in enumerate(_beginnings(renderer, releases))
        for number in numbers
    )
    return _csv(rows if releases.first else _after(head, rows))


def _wide(renderer: Renderer, releases: Releases) -> bytes:
    numbers = list(_numbers(renderer, releases))
    head = ["t", *renderer.label_names]
    for number in numbers:
        name = ":".join(part for part in (number.quantity, *number.columns) if part)
        head += [name, f"standard_error:{name}"]
    rows = (
        [*begin, *(part for number in numbers for part in (number.values[i], _shown(number.errors[i])))]
        for i, begin in enumerate(_beginnings(renderer, releases))
    )
    return _csv(rows if releases.first else _after(head, rows))


#: By name. A header stands before the first release.
SHAPES: Final[Mapping[str, Shape]] = {"json": _json, "tidy": _tidy, "wide": _wide}


@dataclass(frozen=True, eq=False)
class _Number:
    """One number of each release: what it is, of which columns, its values and standard errors."""

    quantity: str
    columns: tuple[str, str]
    values: list[float]
    errors: list[float]


def _beginnings(renderer: Renderer, releases: Releases) -> Iterator[list[Any]]:
    """t and labels of each release."""
    for i, t in enumerate(renderer.steps(releases).tolist()):
        yield [t, *releases.label(i)]


def _numbers(renderer: Renderer, releases: Releases) -> Iterator[_Number]:
    fields, errors = renderer.fields(releases), renderer.errors(releases)
    for quantity in ("mean", "covariance", "first", "second"):
        if quantity not in fields:
            continue
        values = fields[quantity]
        error = np.broadcast_to(errors.get(quantity, np.nan), values.shape)
        for place, columns in _places(values.shape[1:], renderer.names, renderer.block_names):
            at = (slice(None), *place)
            pair = columns if quantity in ("covariance", "second") else (columns[0], "")
            yield _Number(quantity, pair, values[at].tolist(), error[at].tolist())


def _places(
    shape: tuple[int, ...], names: tuple[str, ...], blocks: tuple[str, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[str, str]]]:
    """Where the different numbers of a release stand, and the columns they are of."""
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
