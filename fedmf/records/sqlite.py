"""SQLite files whose commits survive a power loss."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmf.errors import LedgerError

__all__ = ["connect", "one_line_errors"]


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
