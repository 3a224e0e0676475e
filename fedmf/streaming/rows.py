"""Rows of a stream as vectors: their layout, how cells become numbers, the clip, and labels of releases."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.streaming.settings import Settings

#: Most characters of a label.
_LONGEST_LABEL: Final = 256
#: What would end a line or cannot be written: control characters, line separators, halves of surrogate pairs.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: Norms are computed in floating point; what comes within this of ζ is scaled to this below it.
_MARGIN: Final = 1e-9


@dataclass(frozen=True)
class Layout:
    """Which vector a row is, and what goes with it.

    Args:
        columns: names of the d coordinates in order.
        user: name of the column with the user's id, None if there is none.
        labels: names of the columns with public texts that are released unchanged.
        array: the column of arrays of d numbers each; "" where a row is one; None where every number has a
            column.
    """

    columns: tuple[str, ...]
    user: str | None = None
    labels: tuple[str, ...] = ()
    array: str | None = None

    @property
    def dimension(self) -> int:
        """d."""
        return len(self.columns)

    @property
    def cells(self) -> tuple[str, ...]:
        """The columns of a table that hold the numbers."""
        return self.columns if self.array is None else (self.array,)


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Consecutive rows.

    Args:
        values: shape (rows, d), float64; zeros where a row is invalid.
        users: the id of each row's user, None where it cannot be read; None without a user column.
        faults: indices of the rows that are invalid.
        labels: the texts of each row's label columns, "" where one cannot be read; empty without columns.
    """

    values: NDArray[np.float64]
    users: Sequence[str | None] | None
    faults: frozenset[int] = frozenset()
    labels: Sequence[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return len(self.values)

    def chosen(self, indices: Sequence[int]) -> RowBlock:
        """Some of the rows, without labels."""
        users = None if self.users is None else [self.users[i] for i in indices]
        faults = frozenset(at for at, i in enumerate(indices) if i in self.faults)
        return RowBlock(self.values[list(indices)], users, faults)


def declared_cells(settings: Settings) -> tuple[str, ...]:
    """With a schema, the columns with cells that are read as text: those of the vector, and those of
    labels."""
    assert settings.encoding is not None
    return tuple(dict.fromkeys((*settings.encoding.names, *settings.labels.values())))


def declared_layout(settings: Settings) -> Layout:
    """Of the vectors of a schema's rows: z, and where valid rows are counted a last coordinate c."""
    assert settings.coordinates is not None
    return Layout(settings.coordinates, settings.user_column, tuple(settings.labels.values()))


def encoded(
    cells: Mapping[str, list[str]],
    users: Sequence[str | None] | None,
    faults: Collection[int],
    settings: Settings,
) -> RowBlock:
    """Rows of a schema as vectors of `declared_layout`.

    A row in which a cell in use is missing or cannot be read is invalid like any other that cannot be read:
    it takes its step as a zero vector. No cell decides anything else.

    Args:
        cells: as text by the names of `declared_cells`, "" for a missing one.
        users: of the rows.
        faults: of rows with cells that could not be told apart.
        settings: with a schema.

    Guarantees: a row depends on its own cells alone.
    """
    schema, encoding = settings.schema, settings.encoding
    assert schema is not None
    assert encoding is not None
    z, valid = encoding.encode([cells[name] for name in encoding.names])
    valid[list(faults)] = False
    z[~valid] = 0.0
    if weight := settings.count_weight:
        z = np.concatenate([z, weight * valid[:, None].astype(np.float64)], axis=1)
    labels = [map(label_of, schema.label_of(name, cells[name])) for name in settings.labels.values()]
    return RowBlock(z, users, frozenset(np.flatnonzero(~valid).tolist()), list(zip(*labels, strict=True)))


def numbered(rows: Sequence[Sequence[object]], users: Sequence[str | None] | None) -> RowBlock:
    """Rows of d entries as vectors; one with an entry that is no finite number is invalid.

    >>> block = numbered([[1, 0.5], [1, True], [2.0, 1e999]], None)
    >>> block.values.tolist(), sorted(block.faults)
    ([[1.0, 0.5], [0.0, 0.0], [0.0, 0.0]], [1, 2])
    """
    values = np.array([[_number(entry) for entry in row] for row in rows])
    invalid = ~np.isfinite(values).all(axis=1)
    values[invalid] = 0.0
    return RowBlock(values, users, frozenset(np.flatnonzero(invalid).tolist()))


def _number(entry: object) -> float:
    """Of a number, NaN for anything else; text is none, as `true` is none."""
    if type(entry) is float:
        return entry
    if isinstance(entry, bool) or not isinstance(entry, int | float):
        return math.nan
    try:
        return float(entry)
    except OverflowError:
        return math.inf


def label_of(value: object) -> str:
    """The text of a label as it is released: one line of at most 256 characters.

    Args:
        value: text, a Boolean, or a number, which is written the shortest way.

    Guarantees:
        The text depends on nothing but the value, UTF-8 can hold it, and it has no line breaks or other
        control characters: each is written as U+FFFD. Longer text ends with "…". Anything else is
        empty.

    >>> label_of("22 Nov"), label_of("a\\nb"), label_of(17), label_of(None), len(label_of(999 * "x"))
    ('22 Nov', 'a�b', '17', '', 256)
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        return ""
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return "…"
    if len(text) > _LONGEST_LABEL:
        text = text[: _LONGEST_LABEL - 1] + "…"
    return _UNFIT.sub("\ufffd", text)


def clip_rows(values: NDArray[np.float64], clip_norm: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Rows x·min(1, ζ/‖x‖), and which were longer than ζ.

    Args:
        values: shape (rows, d), finite.
        clip_norm: ζ > 0.

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
    target = clip_norm * (1 - _MARGIN)
    over = norms > target
    clipped = values.copy()
    clipped[over] = shape[over] * (target / root[over])[:, None]
    return clipped, norms > clip_norm * (1 + _MARGIN)
