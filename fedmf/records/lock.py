"""The right to extend a record: one process at a time, and only until a release does not end well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmf.errors import LedgerError, PlatformError

try:
    import fcntl
except ImportError:
    raise PlatformError from None


class WriterLock:
    """The right to write at a place: an flock on a file next to it, released when the process dies.

    The lock is not taken on a database file itself: closing any descriptor of that file would drop
    the POSIX locks that SQLite holds on it.

    Args:
        path: of a ledger, or of whatever else one process at a time may write.

    Raises:
        LedgerError: the place is not writable, or another process writes there.
    """

    def __init__(self, path: Path) -> None:
        place = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"{path} cannot be locked for writing: {error.strerror}.") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise LedgerError(
                f"{path} is being written by another process. Wait for it to end or stop it."
            ) from None
        self._held = True

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it would let two processes hold it."""
        if self._held:
            self._held = False
            os.close(self._descriptor)


class ReleaseRight:
    """The right to release under one opening: lost for good by whatever does not end well.

    From the moment a row of noise is drawn for a sum until the release is durable nobody can tell who saw
    what: a commit may be there although its flush failed, a rule of the user's own has seen the noisy update.
    Another sum must not get the same row, so the right is lost, and only a new opening, with fresh random
    bits, continues.
    """

    def __init__(self) -> None:
        #: Why nothing may be released any more, one line.
        self.lost: str | None = None

    def require(self) -> None:
        """Raise the error if the right is lost."""
        if self.lost is not None:
            raise LedgerError(self.lost)

    @contextmanager
    def exercise(self, what: str) -> Iterator[None]:
        """Release something, or write to the record: all of it, or nothing more.

        Args:
            what: is released or written, in a message; where this is part of another release and fails, the
                message is about the part.

        Raises:
            LedgerError: the right was lost before, or is lost by an error of that kind.
            BaseException: whatever else was raised; the right is lost too.
        """
        self.require()
        try:
            yield
        except BaseException as error:
            if self.lost is not None:
                raise
            known = isinstance(error, LedgerError)
            reason = str(error).rstrip(".") if known or isinstance(error, OSError) else type(error).__name__
            self.lost = (
                f"{what} failed ({reason}); this process releases nothing more. "
                f"Resume: {what} counts if it is whole on the disk."
            )
            if known:
                raise type(error)(self.lost) from error
            raise
