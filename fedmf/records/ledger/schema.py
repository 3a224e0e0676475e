"""The tables of a participation ledger: what a row holds, and the chain that binds it to all before it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import LedgerError
from fedmf.participation import Participation
from fedmf.records.record import require_types
from fedmf.records.seal import Seal, Sealed
from fedmf.records.sqlite import RecordKind

#: Of each kind of row by itself, so that one kind may change without the others.
HEADER_VERSION: Final = 1
ROUND_VERSION: Final = 1
METRICS_VERSION: Final = 1
#: The entry of an opening's note with the number of the tail's file that was on the disk before it.
TAIL: Final = "tail"

_encoded: Final = json.JSONEncoder(ensure_ascii=False).encode

_TABLES: Final = """
CREATE TABLE header(id INTEGER PRIMARY KEY CHECK (id = 0), version INTEGER NOT NULL, rounds INTEGER NOT NULL,
  max_participations INTEGER NOT NULL, min_separation INTEGER NOT NULL, json TEXT NOT NULL,
  chain BLOB NOT NULL, mac BLOB NOT NULL) STRICT;
CREATE TABLE openings(number INTEGER PRIMARY KEY, version INTEGER NOT NULL, first_round INTEGER NOT NULL,
  fresh BLOB NOT NULL, note TEXT NOT NULL, chain BLOB NOT NULL, mac BLOB NOT NULL) STRICT;
CREATE TABLE rounds(round INTEGER PRIMARY KEY, version INTEGER NOT NULL, users INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('released', 'empty')), checkpoints TEXT NOT NULL,
  participants BLOB NOT NULL, newcomers BLOB NOT NULL,
  chain BLOB NOT NULL, mac BLOB NOT NULL) STRICT;
CREATE TABLE metrics(round INTEGER PRIMARY KEY, version INTEGER NOT NULL, json TEXT NOT NULL,
  chain BLOB NOT NULL, mac BLOB NOT NULL) STRICT;
"""

# INSERT OR REPLACE deletes without firing DELETE triggers, so replacing is refused before the insert.
_PRESENT: Final = {
    "header": "EXISTS (SELECT 1 FROM header)",
    "openings": "NEW.number <> (SELECT COALESCE(MAX(number) + 1, 0) FROM openings)",
    "rounds": "NEW.round <> (SELECT COALESCE(MAX(round) + 1, 0) FROM rounds)",
}


def _statements() -> list[str]:
    statements = [line.strip() for line in _TABLES.split(";") if line.strip()]
    refusal = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    for table, present in _PRESENT.items():
        for name, event in (
            ("update", f"UPDATE ON {table}"),
            ("delete", f"DELETE ON {table}"),
            ("insert", f"INSERT ON {table} WHEN {present}"),
        ):
            statements.append(f"CREATE TRIGGER {table}_{name} BEFORE {event} {refusal}")
    return statements


SCHEMA: Final = tuple(_statements())
#: "fdmf" in ASCII.
LEDGER: Final = RecordKind("ledger", 0x66646D66, version=1, error=LedgerError, schema=SCHEMA)


class RoundRow(NamedTuple):
    """One committed round as the ledger keeps it, without its place in the chain.

    Args:
        round: t, 0-based.
        version: of this kind of row.
        users: how many took part.
        status: "released" or "empty".
        checkpoints: JSON: slot ↦ {file, digest}, the state after the round; a run has the one slot "state".
        participants: user keys, ascending, 32 bits each, little-endian.
        newcomers: names of users met first in this round in the order of their keys, UTF-8, each ended by a
            NUL.
    """

    round: int
    version: int
    users: int
    status: str
    checkpoints: str
    participants: bytes
    newcomers: bytes

    def keys(self) -> NDArray[np.uint32]:
        """The user keys.

        Raises:
            LedgerError: they are damaged.
        """
        if len(self.participants) % 4:
            raise LedgerError(
                f"the participants of round {self.round} are damaged: {len(self.participants)} bytes."
            )
        return np.frombuffer(self.participants, dtype="<u4")

    def names(self) -> list[str]:
        """The newcomers.

        Raises:
            LedgerError: they are damaged.
        """
        if not self.newcomers:
            return []
        damaged = f"the names of the newcomers of round {self.round} are damaged"
        if self.newcomers[-1:] != b"\x00":
            raise LedgerError(f"{damaged}: the last has no end.")
        try:
            return self.newcomers[:-1].decode().split("\x00")
        except UnicodeDecodeError:
            raise LedgerError(f"{damaged}: not UTF-8.") from None


def round_row(
    round_index: int,
    status: str,
    checkpoints: dict[str, dict[str, str]],
    keys: NDArray[np.integer],
    newcomers: list[str],
) -> RoundRow:
    """The row of a round that is to be committed."""
    return RoundRow(
        round_index,
        ROUND_VERSION,
        len(keys),
        status,
        _encoded(checkpoints),
        np.sort(keys).astype("<u4").tobytes(),
        b"".join(name.encode() + b"\x00" for name in newcomers),
    )


def rows(connection: sqlite3.Connection) -> Iterator[tuple[RoundRow, Sealed]]:
    """The committed rounds in order, each with its chain value and code."""
    query = (
        "SELECT round, version, users, status, checkpoints, participants, newcomers, chain, mac FROM rounds "
        "ORDER BY round"
    )
    for *fields, chain, mac in connection.execute(query):
        require_types(LEDGER, "round", fields, (int, int, int, str, str, bytes, bytes))
        yield RoundRow(*fields), (chain, mac)


def build(path: Path, participation: Participation, header: dict[str, Any], seal: Seal) -> None:
    """Make an empty ledger; the caller holds the writer lock.

    Raises:
        LedgerError: the header is not JSON.
    """
    try:
        text = json.dumps(header, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"header (run description) must be JSON with finite numbers: {error}.") from None
    fields = (HEADER_VERSION, *astuple(participation), text)

    def fill(connection: sqlite3.Connection) -> None:
        sealed = seal.sealed(b"header", *fields)
        connection.execute("INSERT INTO header VALUES (0, ?, ?, ?, ?, ?, ?, ?)", (*fields, *sealed))

    LEDGER.build(path, fill)


def read_header(
    connection: sqlite3.Connection, path: Path, seal: Seal
) -> tuple[Participation, dict[str, Any], bytes]:
    """The contract, the run description and the chain value that all rows begin with.

    Raises:
        LedgerError: there is no header, or it is not as it was written.
    """
    row = connection.execute(
        "SELECT version, rounds, max_participations, min_separation, json, chain, mac FROM header"
    ).fetchone()
    if row is None or row[0] != HEADER_VERSION:
        raise LedgerError(f"{path} is not a whole fedmf ledger: its header is missing.")
    *fields, chain, mac = row
    if (fault := seal.fault((chain, mac), b"header", *fields)) is not None:
        raise LedgerError(f"the header of ledger {path} was altered: {fault}.")
    return Participation(*fields[1:4]), json.loads(fields[4]), chain
