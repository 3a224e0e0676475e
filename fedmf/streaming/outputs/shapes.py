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
from fedmf.typing import Array

__all__ = ["SHAPES", "Shape"]

#: Bytes for some releases, the first of which has the number given.
Shape = Callable[[Renderer, int, Array], bytes]


def _json(renderer: Renderer, record: int, releases: Array) -> bytes:
    return renderer.lines(record, releases)


def _tidy(renderer: Renderer, record: int, releases: Array) -> bytes:
    head = ["t", "quantity", "column", "column_2", "value", "standard_error"]
    numbers = list(_numbers(renderer, record, releases))
    steps = renderer.steps(record, len(releases)).tolist()
    rows = (
        [t, number.quantity, *number.columns, number.values[i], _shown(number.errors[i])]
        for i, t in enumerate(steps)
        for number in numbers
    )
    return _csv(rows if record else _after(head, rows))


def _wide(renderer: Renderer, record: int, releases: Array) -> bytes:
    numbers = list(_numbers(renderer, record, releases))
    head = ["t"]
    for number in numbers:
        name = ":".join(part for part in (number.quantity, *number.columns) if part)
        head += [name, f"standard_error:{name}"]
    steps = renderer.steps(record, len(releases)).tolist()
    rows = (
        [t, *(part for number in numbers for part in (number.values[i], _shown(number.errors[i])))]
        for i, t in enumerate(steps)
    )
    return _csv(rows if record else _after(head, rows))


#: By name. A header stands before the first release.
SHAPES: Final[Mapping[str, Shape]] = {"json": _json, "tidy": _tidy, "wide": _wide}


@dataclass(frozen=True, eq=False)
class _Number:
    """One number of each release: what it is, of which columns, its values and standard errors."""

    quantity: str
    columns: tuple[str, str]
    values: list[float]
    errors: list[float]


def _numbers(renderer: Renderer, record: int, releases: Array) -> Iterator[_Number]:
    fields, errors = renderer.fields(record, releases), renderer.errors(record, releases)
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
