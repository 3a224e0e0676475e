"""The tables of a participation ledger and how its file is opened, locked and created."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fedmf.participation import Participation

FORMAT_VERSION: Final = 3
# "fdmf" in ASCII: what `file` and SQLite read as the application id of the file.
APPLICATION_ID: Final = 0x66646D66


class LedgerError(ValueError):
    """A ledger cannot be created, opened, read or extended; the message is one line."""


class ParticipationViolation(LedgerError):
    """A round would break, or rows already do break, the participation contract."""


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


class WriterLock:
    """The right to extend one ledger: an flock on a file beside it, released when the process dies.

    The lock is not taken on the database file itself: closing any descriptor of that file would drop
    the POSIX locks that SQLite holds on it.
    """

    def __init__(self, ledger: Path) -> None:
        self._path = ledger.with_name(ledger.name + ".lock")
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LedgerError(f"ledger {ledger} cannot be locked for writing: {error.strerror}.") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise LedgerError(
                f"ledger {ledger} is being written by another process. Wait for that run to end or stop it."
            ) from None
        self._held = True

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it would let two processes hold it."""
        if self._held:
            self._held = False
            os.close(self._descriptor)


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the operating system raise into a LedgerError of one line."""
    try:
        yield
    except sqlite3.Error as error:
        reason = " ".join(str(error).split())
        if reason == "file is not a database":
            raise LedgerError(f"{path} is not a fedmf ledger: {reason}.") from None
        raise LedgerError(
            f"ledger {path} failed: {reason}. Nothing was recorded by this operation."
        ) from error
    except OSError as error:
        raise LedgerError(f"ledger {path} failed: {error.strerror or error}.") from error


def connect(path: Path, read_only: bool) -> sqlite3.Connection:
    """A connection on which COMMIT returns only when the transaction would survive a power loss.

    A rollback journal with synchronous=EXTRA also flushes the directory after the journal is removed
    (FULL does not, so a power loss could bring the journal back and undo the commit), and leaves one
    file that is complete by itself, where write-ahead logging would leave the newest rounds in a second
    file that copying the ledger can miss.

    A reader opens the file for writing too if it may, because only then can SQLite roll back what a killed
    writer left half-done; query_only keeps it from writing anything else.
    """
    uri = path.absolute().as_uri() + "?mode=rw"
    # A writer waits for a long reader rather than fail the run.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=300.0)
    try:
        for pragma in (
            "synchronous=EXTRA",
            "fullfsync=ON",
            f"query_only={int(read_only)}",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


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
