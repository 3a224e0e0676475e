"""Openings: when processes began to release under a record, each with random bits of its own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from fedmf.records.sqlite import RecordKind

#: Of an opening's row.
OPENING_VERSION: Final = 1

#: (number, version, first round or step, fresh bytes, note), as every record's table begins.
OpeningRow = tuple[int, int, int, bytes, str]


@dataclass(frozen=True)
class Opening:
    """One process's beginning to release, or to go on releasing, a run or stream.

    Args:
        number: 0, 1, 2 …
        first_round: the next round, or step, when it was made, 0-based.
        fresh: 32 random bytes of its own, from which the noise of its rounds gets its key.
        note: what else is to be remembered of it, JSON-able.
    """

    number: int
    first_round: int
    fresh: bytes
    note: Mapping[str, Any]

    def row(self) -> OpeningRow:
        """What the table holds, without its place in the chain."""
        note = json.dumps(dict(self.note), ensure_ascii=False, allow_nan=False)
        return self.number, OPENING_VERSION, self.first_round, self.fresh, note

    @classmethod
    def of_row(cls, row: OpeningRow) -> Self:
        """What `row` gave."""
        number, _, first, fresh, note = row
        return cls(number, first, fresh, dict(json.loads(note)))


def opening_rows(
    connection: sqlite3.Connection, kind: RecordKind
) -> list[tuple[OpeningRow, tuple[bytes, ...]]]:
    """The openings in order, each with what binds it to its record.

    Raises:
        ValueError: as the kind's error: a row is damaged.
    """
    found = connection.execute("SELECT * FROM openings ORDER BY number").fetchall()
    for row in found:
        require_types(kind, "opening", row[:5], (int, int, int, bytes, str))
    return [(row[:5], row[5:]) for row in found]


def require_types(kind: RecordKind, what: str, row: Sequence[object], types: Sequence[type]) -> None:
    """Damage can turn a column into one of another type, whatever the schema says."""
    if tuple(map(type, row)) != tuple(types):
        raise kind.error(f"{what} {row[0]!r} of the {kind.name} is damaged: a column is of another type.")
