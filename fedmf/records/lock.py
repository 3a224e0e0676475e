"""The right to extend a record: one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fedmf.errors import LedgerError

__all__ = ["WriterLock"]


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
