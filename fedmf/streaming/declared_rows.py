"""Rows of a table by its schema: cells are read as text, and encoded one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from fedmf.data import Schema
from fedmf.streaming.rows import InputError, Layout, RowBlock, RowReader
from fedmf.streaming.settings import Settings


def declared_cells(settings: Settings) -> tuple[str, ...]:
    """The columns whose cells are read as text: those of the vector, and those of public labels."""
    assert settings.encoding is not None
    return tuple(dict.fromkeys((*settings.encoding.names, *settings.labels.values())))


def raw_layout(settings: Settings) -> Layout:
    """What the reader below has to give: no numbers, the user and the cells."""
    return Layout((), False, 0, settings.user_column, declared_cells(settings))


def check_names(schema: Schema, source: str, names: Sequence[str]) -> None:
    """Whether an input has the columns that a schema declares, and no others.

    Raises:
        InputError: it does not.
    """
    try:
        schema.check_header(names, source)
    except ValueError as error:
        raise InputError(str(error)) from None


def declared_layout(settings: Settings) -> Layout:
    """Of the vectors of a schema's rows: z, and where valid rows are counted a last coordinate c."""
    names = settings.coordinates
    assert names is not None
    return Layout(names, False, len(names), settings.user_column, tuple(settings.labels.values()))


def encoded(block: RowBlock, settings: Settings) -> RowBlock:
    """Rows as vectors of `declared_layout`.

    A row in which a cell in use is missing or cannot be read has a fault like any other that cannot be read:
    it takes its step as a zero vector. No cell decides anything else.

    Args:
        block: with the cells of `declared_cells` as labels.
        settings: with a schema.

    Guarantees: a row depends on its own cells alone.
    """
    schema, encoding = settings.schema, settings.encoding
    assert schema is not None
    assert encoding is not None
    names = declared_cells(settings)
    told = dict(zip(names, map(list, zip(*block.labels, strict=True)), strict=False))
    cells = {name: told.get(name, []) for name in names}
    z, valid = encoding.encode([cells[name] for name in encoding.names])
    valid[list(block.faults)] = False
    z[~valid] = 0.0
    faults = dict.fromkeys(np.flatnonzero(~valid).tolist(), "has a cell that is missing or cannot be read")
    if weight := settings.count_weight:
        z = np.concatenate([z, weight * valid[:, None].astype(np.float64)], axis=1)
    given = [schema.label_of(name, cells[name]) for name in settings.labels.values()]
    return RowBlock(block.first, z, block.users, {**faults, **block.faults}, list(zip(*given, strict=True)))


@final
class DeclaredRows(RowReader):
    """The vectors of a schema's rows (`encoded`).

    Args:
        cells: gives the cells of `declared_cells` as labels.
        settings: with a schema.
    """

    def __init__(self, cells: RowReader, settings: Settings) -> None:
        self._cells, self.first_row, self._settings = cells, cells.first_row, settings
        self.layout = declared_layout(settings)

    def read(self, most: int) -> RowBlock | None:
        """See `RowReader.read`."""
        block = self._cells.read(most)
        return None if block is None else encoded(block, self._settings)

    def skip(self, rows: int) -> int:
        """See `RowReader.skip`."""
        return self._cells.skip(rows)

    def where(self, row: int) -> str:
        """See `RowReader.where`."""
        return self._cells.where(row)

    def close(self) -> None:
        """See `RowReader.close`."""
        self._cells.close()
