"""How many rows keep to a contract: for whoever may see them; not private."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.data.contract.columns import Category, Encoded, Number, Time, User, numbers_of_cells
from fedmf.data.contract.contract import DataContract


@dataclass
class Kept:
    """What was seen of one column. Not private.

    Args:
        missing: rows without a cell.
        unreadable: rows whose cell is not what was declared.
        clipped: rows whose number lies outside its bounds, and counts as the nearer one.
        filled: whether a missing cell is filled.
    """

    missing: int = 0
    unreadable: int = 0
    clipped: int = 0
    filled: bool = False


def check_rows(
    contract: DataContract, blocks: Iterator[dict[str, list[str]]]
) -> tuple[dict[str, Kept], int, int]:
    """(what was seen of each column that is read, how many rows there are, how many of them are valid).

    Args:
        contract: what was declared.
        blocks: cells as text by column, "" for a missing one, some rows at a time.
    """
    read = {
        name: column for name, column in contract.columns.items() if isinstance(column, Encoded | Time | User)
    }
    seen = {name: Kept(filled=getattr(column, "fill", None) is not None) for name, column in read.items()}
    rows = valid = 0
    for cells in blocks:
        good = np.ones(len(next(iter(cells.values()))), dtype=bool)
        for name, column in read.items():
            missing = np.array([not cell for cell in cells[name]])
            readable = _readable(column, cells[name])
            seen[name].missing += int(missing.sum())
            seen[name].unreadable += int((~readable & ~missing).sum())
            if isinstance(column, Number):
                with np.errstate(invalid="ignore"):
                    numbers = numbers_of_cells(cells[name])
                    outside = (numbers < column.lower) | (numbers > column.upper)
                seen[name].clipped += int((outside & readable).sum())
            good &= readable
        rows, valid = rows + len(good), valid + int(good.sum())
    return seen, rows, valid


def _readable(column: Encoded | Time | User, cells: list[str]) -> NDArray[np.bool_]:
    if isinstance(column, Number | Category):
        return column.encode(cells)[1]
    if isinstance(column, Time):
        return column.steps_of(cells) >= 0
    return np.array([bool(cell) for cell in cells])
