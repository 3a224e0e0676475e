"""The tables of a participation ledger and how its file is opened, locked and created."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any, Final

from fedmf.errors import LedgerError
from fedmf.participation import Participation
from fedmf.records.sqlite import connect

FORMAT_VERSION: Final = 3
# "fdmf" in ASCII: what `file` and SQLite read as the application id of the file.
APPLICATION_ID: Final = 0x66646D66


_TABLES: Final = """
CREATE TABLE header(id INTEGER PRIMARY KEY CHECK (id = 0), version INTEGER NOT NULL, rounds INTEGER NOT NULL,
  max_participations INTEGER NOT NULL, min_separation INTEGER NOT NULL, json TEXT NOT NULL) STRICT;
CREATE TABLE rounds(round INTEGER PRIMARY KEY, users INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('released', 'empty')), checkpoint TEXT NOT NULL,
  digest TEXT NOT NULL, participants BLOB NOT NULL, newcomers BLOB NOT NULL) STRICT;
CREATE TABLE metrics(round INTEGER PRIMARY KEY, json TEXT NOT NULL) STRICT;
"""

# INSERT OR REPLACE deletes without firing DELETE triggers, so replacing is refused before the insert.
_PRESENT: Final = {
    "header": "EXISTS (SELECT 1 FROM header)",
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


def build(path: Path, participation: Participation, header: dict[str, Any]) -> None:
    """Write an empty ledger beside ``path`` and move it into place, so that it exists whole or not at all.

    The caller holds the writer lock, hence nobody else creates ``path`` meanwhile.
    """
    text = json.dumps(header, ensure_ascii=False, allow_nan=False)
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o644)
    connection = connect(temporary, read_only=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO header VALUES (0, ?, ?, ?, ?, ?)",
            (
                FORMAT_VERSION,
                participation.rounds,
                participation.max_participations,
                participation.min_separation,
                text,
            ),
        )
        connection.execute("COMMIT")
    finally:
        connection.close()
    os.rename(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_header(connection: sqlite3.Connection, path: Path) -> tuple[Participation, dict[str, Any]]:
    """The contract and the run description of an open ledger, after checking that it is one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LedgerError(f"{path} is not a fedmf ledger: its application id is {application:#x}.")
    if version != FORMAT_VERSION:
        raise LedgerError(
            f"ledger {path} has format version {version}; this fedmf reads version {FORMAT_VERSION}. "
            "Use the fedmf version that wrote it."
        )
    row = connection.execute(
        "SELECT version, rounds, max_participations, min_separation, json FROM header"
    ).fetchone()
    if row is None or row[0] != FORMAT_VERSION:
        raise LedgerError(f"{path} is not a whole fedmf ledger: its header is missing.")
    return Participation(*row[1:4]), json.loads(row[4])
