"""What a process keeps in step while it extends a ledger: the tail's files, its tables, and the database."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmf.errors import LedgerError
from fedmf.records.frames import Field, State
from fedmf.records.ledger.reading import LedgerReading
from fedmf.records.ledger.schema import LEDGER, Opening
from fedmf.records.ledger.tail import fold, rows_of, show_row, show_tail, tail_rows
from fedmf.records.lock import ReleaseRight, WriterLock
from fedmf.records.seal import Seal


class LedgerWriting(LedgerReading):
    """A ledger that rows can be appended to, if it has the lock.

    Args:
        path: of the database.
        connection: to it.
        lock: the right to write; None for reading.
        seal: under the key of the run.

    Attributes:
        right: to release, which may be shared with another ledger.
        doubtful: the chain value of the round whose commit failed though all of it was handed over: somebody
            may have read it, and whether it reaches the disk is not known. None if there is none.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: WriterLock | None, seal: Seal
    ) -> None:
        super().__init__(path, connection, seal)
        self._lock, self.right = lock, ReleaseRight(LedgerError)
        self.doubtful: bytes | None = None
        self._process = os.getpid()
        self._looked = False
        self._opening: Opening | None = None
        #: The last record, if it is a round that this process committed.
        self._tip: tuple[int, bytes] | None = None
        #: What the opening of this process will note.
        self.note: Mapping[str, Any] = {}

    @property
    def committed(self) -> bytes | None:
        """The chain value of the last round, if this process committed it and nothing after it."""
        return None if self._tip is None else self._tip[1]

    def head(self) -> bytes:
        """See `LedgerReading.head`."""
        return self.committed or super().head()

    def _last(self) -> tuple[int | None, bytes]:
        return self._tip or super()._last()

    def close(self) -> None:
        """Close the file and give the right to write back. Closing twice is harmless."""
        if self._lock is not None and os.getpid() == self._process:
            # The rows are on the disk already. What failed is left as it is to the next opening.
            with contextlib.suppress(LedgerError):
                if self.right.lost is None:
                    self._fold_at_the_end()
        self._tip = None
        self._tail.end_file()
        self._connection.close()
        if self._lock is not None:
            self._lock.release()

    def _append(self, row: tuple[Field, ...], state: State | None = None) -> None:
        self._show_news()
        if self._tail.heavy:
            with self._folded():
                pass
        self._tail.append(row, state)
        show_row(self._connection, row)

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """While something is written: if that fails nothing more is, and the files tell what is there."""
        self._writable()
        with self._mutex, self.right.exercise(what), LEDGER.one_line_errors(self.path):
            try:
                yield
            except BaseException:
                self._histories = self._tip = None
                self._looked = False
                raise

    def _writable(self) -> None:
        if self._lock is None:
            raise LedgerError(f"ledger {self.path} was opened read-only.")
        if os.getpid() != self._process:
            raise LedgerError(
                f"ledger {self.path} belongs to the process that opened it, not to a fork of it."
            )
        self.right.require()

    def _show_news(self) -> None:
        if self._lock is None:
            super()._show_news()
        elif not self._looked:  # nobody else writes: what comes is known
            rows, self._tip = rows_of(self._tail.frames()), None
            show_tail(self._connection, rows)
            self._tail.hold(rows)
            self._looked = True

    @contextmanager
    def _folded(self) -> Iterator[None]:
        """A transaction of the database that begins with the rows of the tail."""
        with LEDGER.one_line_errors(self.path):
            self._show_news()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                fold(self._connection)
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            show_tail(self._connection, [])
            self._tail.hold([])

    def _take_over(self) -> None:
        """Move what another process left in the tail into the database, and write its last state again."""
        self._show_news()
        if tail_rows(self._connection):
            with self._folded():
                pass
            self._keep_last_state(anew=True)

    def _fold_at_the_end(self) -> None:
        with self._written("closing"):
            if self._looked and tail_rows(self._connection):
                self._connection.execute("PRAGMA busy_timeout=1000")  # whoever reads may go on reading
                with self._folded():
                    pass
                self._keep_last_state()

    def _keep_last_state(self, anew: bool = False) -> None:
        committed = self.checkpoint()
        if committed is not None:
            self._tail.keep_only(committed[2], anew)
