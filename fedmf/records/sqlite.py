"""Records in SQLite files whose commits survive a power loss."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedmf.records.durable import sync_directory, unless_read_only


@dataclass(frozen=True)
class RecordKind:
    """One kind of record in a SQLite file: what it is called, how it is recognised, what it raises.

    Args:
        name: what messages call it, such as "ledger".
        application_id: four bytes that `file` and SQLite read as the application id of the file.
        version: of the format. A file of another version is refused, never converted.
        error: raised with one line by everything here.
        mode: permissions of a new file.
        schema: the statements that make its tables and triggers.
    """

    name: str
    application_id: int
    version: int
    error: type[ValueError]
    mode: int = 0o600
    schema: tuple[str, ...] = ()

    @contextmanager
    def one_line_errors(self, path: Path) -> Iterator[None]:
        """Turn what SQLite and the operating system raise into an error of this kind."""
        try:
            yield
        except sqlite3.Error as error:
            reason = " ".join(str(error).split())
            if reason == "file is not a database":
                raise self.error(f"{path} is not a fedmf {self.name}: {reason}.") from None
            raise self.error(f"{self.name} {path} failed: {reason}.") from error
        except OSError as error:
            raise self.error(f"{self.name} {path} failed: {error.strerror or error}.") from error

    def build(self, path: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
        """Make the file of a new record beside its place and move it there: it exists whole or not at all.

        Args:
            path: where; nobody else creates it meanwhile.
            fill: writes the first rows, within the transaction that makes the tables.
        """
        temporary = path.with_name(path.name + ".new")
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=self.mode)
        with closing(_connected(temporary, read_only=False)) as connection, transaction(connection):
            connection.execute(f"PRAGMA application_id={self.application_id}")
            connection.execute(f"PRAGMA user_version={self.version}")
            for statement in self.schema:
                connection.execute(statement)
            fill(connection)
        os.rename(temporary, path)
        sync_directory(path.parent)

    def open(self, path: Path, read_only: bool) -> sqlite3.Connection:
        """A connection on which COMMIT returns only when the transaction would survive a power loss.

        What a writer committed before it died, or before its disk failed, is made to survive one first: a
        journal that comes back would undo it.

        Raises:
            ValueError: as `error`: a file of another kind or of another version, left as it was.
        """
        with self.one_line_errors(path):
            connection = _connected(path, read_only)
            try:
                self._recognise(connection, path)
                with unless_read_only():
                    sync_directory(path.parent)
                if not read_only:
                    connection.execute("PRAGMA journal_mode=DELETE")
            except BaseException:
                connection.close()
                raise
        return connection

    def check_file(self, connection: sqlite3.Connection) -> None:
        """See that the pages of a record fit together and that it has the tables and triggers it should.

        Raises:
            ValueError: as `error`.
        """
        (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise self.error(f"the {self.name} file is damaged: {' '.join(verdict.split())}.")
        query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
        present = [row[0] for row in connection.execute(query)]
        missing = [statement for statement in self.schema if statement not in present]
        if missing:
            name = missing[0].split("(")[0].split(" BEFORE ")[0]
            raise self.error(
                f"the {self.name}'s schema was altered: no '{name}' as written by this format version."
            )
        if len(present) != len(self.schema):
            raise self.error(f"the {self.name}'s schema was altered: it has tables or triggers of its own.")

    def _recognise(self, connection: sqlite3.Connection, path: Path) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != self.application_id:
            raise self.error(f"{path} is not a fedmf {self.name}: its application id is {application:#x}.")
        if version != self.version:
            raise self.error(
                f"{self.name} {path} has format version {version}; this fedmf reads version {self.version}. "
                "Use the fedmf version that wrote it."
            )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is written inside takes effect whole or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _connected(path: Path, read_only: bool) -> sqlite3.Connection:
    """SQLite set up so that what is committed stays.

    A rollback journal with synchronous=EXTRA also flushes the directory after the journal is removed
    (FULL does not, so a power loss could bring the journal back and undo the commit), and leaves one
    file that is complete by itself, where write-ahead logging would leave the newest rounds in a second
    file that copying the record can miss.

    A reader opens the file for writing too if it may, because only then can SQLite roll back what a killed
    writer left half-done; query_only keeps it from writing anything else.
    """
    uri = path.absolute().as_uri() + "?mode=rw"
    # A writer waits for a long reader rather than fail the run.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=300.0)
    try:
        for pragma in ("synchronous=EXTRA", "fullfsync=ON", f"query_only={int(read_only)}"):
            connection.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection
