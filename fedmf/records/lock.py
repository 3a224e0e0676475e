"""The right to extend a record: one process at a time."""

from __future__ import annotations

import os
from pathlib import Path

from fedmf.errors import PlatformError
from fedmf.records.sqlite import RecordKind

try:
    import fcntl
except ImportError:
    raise PlatformError from None

__all__ = ["WriterLock"]


class WriterLock:
    """The right to extend one record: an flock on a file beside it, released when the process dies.

    The lock is not taken on the database file itself: closing any descriptor of that file would drop
    the POSIX locks that SQLite holds on it.

    Args:
        kind: of the record; its error is raised.
        path: of the record.

    Raises:
        ValueError: as the kind's error: the place is not writable, or another process writes the record.
    """

    def __init__(self, kind: RecordKind, path: Path) -> None:
        place = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, kind.mode)
        except OSError as error:
            raise kind.error(f"{kind.name} {path} cannot be locked for writing: {error.strerror}.") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise kind.error(
                f"{kind.name} {path} is being written by another process. Wait for it to end or stop it."
            ) from None
        self._held = True

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it would let two processes hold it."""
        if self._held:
            self._held = False
            os.close(self._descriptor)
