"""The right to extend a record: one process at a time, with the newest copy, until a failure.

High-water marks say how far a run or stream was released, so that older copies of it are not
continued. Two small files are written after each commit. One is next to the ledger: a ledger whose
newest commits are missing (a flipped bit in SQLite's log, a log that was not copied) holds fewer
than it says. The other is on this machine, in ``$FEDMF_MARKS`` or ``$XDG_STATE_HOME/fedmf/marks/``
(by default ``~/.local/state/fedmf/marks/``), which is not copied and restored with a run: an older
copy, or a copy of which another was continued, holds fewer commits, or other ones. Noise never
depends on a mark: copies that continue on two machines draw from different sub-keys, because each
opening has random bits of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from fedmf.errors import BusyError, LedgerError, PlatformError
from fedmf.ledger.signals import held_back
from fedmf.noise.key import NoiseKey

try:
    import fcntl
except ImportError:
    raise PlatformError from None

_log = logging.getLogger("fedmf")
#: Lines have one length, so that a later one replaces all of an earlier one.
_LINE: Final = re.compile(rb"(\d{12}) ([0-9a-f]{64})\n")
_START: Final = b"%012d %s\n" % (0, b"0" * 64)
_FINGERPRINT: Final = re.compile(r"[0-9a-f]+")
_SEEN: Final = "this machine has seen"
_NO_MARK: Final = "%s: this machine has no mark of it (%s): make sure that it is the newest copy"
#: Attempts to read a mark, which may be read while it is written.
_ATTEMPTS: Final = 3


class Progress(NamedTuple):
    """The progress of a ledger.

    Attributes:
        commits: their number.
        chain: chain value of the last.
    """

    commits: int
    chain: bytes

    def is_held_by(self, chains: Sequence[bytes]) -> bool:
        """Whether a ledger with these chain values of its commits has made this progress."""
        if not self.commits:
            return True
        return self.commits <= len(chains) and chains[self.commits - 1] == self.chain


class WriterLock:
    """The right to write to a file: an flock on another file next to it.

    It is released when the process dies. The lock is not taken on a database file itself: closing
    any descriptor of that file would drop the POSIX locks that SQLite holds on it.

    Args:
        path: of a ledger, or of another file that one process at a time may write.

    Raises:
        LedgerError: the folder is not writable.
        BusyError: another process has the lock.
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
            raise BusyError(
                f"{path} is being written by another process. Wait for it to end or stop it."
            ) from None
        self._held = True

    def release(self) -> None:
        """Release the lock; its file stays, since two processes could lock it during removal."""
        if self._held:
            self._held = False
            os.close(self._descriptor)


class ReleaseGuard:
    """The right to release under one opening, which any failure ends permanently.

    From the moment a row of noise is drawn for a sum until the release is durable, the noisy sum
    may become known: a commit may exist although its flush failed, or a user's own rule may have
    seen the noisy update. Another sum must not get the same row. So after a failure only a new
    opening, with new random bits, may continue.
    """

    def __init__(self) -> None:
        #: The reason, in one line, why nothing more may be released; None while something may.
        self.failed: str | None = None

    def require(self) -> None:
        """Require that the right is not lost.

        Raises:
            LedgerError: it is.
        """
        if self.failed is not None:
            raise LedgerError(self.failed)

    @contextmanager
    def releasing(self, what: str) -> Iterator[None]:
        """Release something, or write to the record; after any error the right is lost.

        SIGINT and SIGTERM wait until it has ended.

        Args:
            what: the release in a message. Of a release that is part of another, the message is
                about the part.

        Raises:
            LedgerError: the right was lost before, or is lost by an error of that kind.
            BaseException: any other error, by which the right is lost too.
        """
        with held_back():
            self.require()
            try:
                yield
            except BaseException as error:
                if self.failed is not None:
                    raise
                reason = type(error).__name__
                if isinstance(error, LedgerError | OSError):
                    reason = str(error).rstrip(".")
                self.failed = (
                    f"{what} failed ({reason}); this process releases nothing more. "
                    f"Resume: {what} counts if it was completely written."
                )
                if isinstance(error, LedgerError):
                    raise type(error)(self.failed) from error
                raise


class HighWaterMark:
    """The marks of one ledger.

    Args:
        ledger: path of the ledger.
        key: of the run or stream, for a writer; None for a reader. A public key has no mark on this
            machine, since simulations with the same seed share it.
        remembered: whether there is a mark on this machine.

    Raises:
        BusyError: another process has a copy of the run or stream open.
    """

    def __init__(self, ledger: Path, key: NoiseKey | None, remembered: bool = True) -> None:
        self._ledger = ledger
        self._here = -1
        self._machine = -1
        self._machine_file: Path | None = None
        self._remembered = remembered and key is not None and not key.public
        if key is None:
            return
        with contextlib.suppress(OSError):
            self._here = os.open(_mark_file(ledger), os.O_RDWR | os.O_CLOEXEC)
        folder = marks_folder()
        if self._remembered and folder is not None:
            self._open_mark_of_machine(folder, key.fingerprint)

    def _open_mark_of_machine(self, folder: Path, name: str) -> None:
        """Open and lock the mark on this machine, or warn that there is none."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._machine_file = folder / name
            self._machine = os.open(self._machine_file, flags, 0o600)
            fcntl.flock(self._machine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise BusyError(
                f"{self._ledger.parent} must be the only open copy of its run; another process has"
                " one open. Wait for it to end or stop it."
            ) from None
        except OSError as error:
            _log.warning(
                "%s is not writable (%s): older copies go unnoticed; set FEDMF_MARKS", folder, error
            )

    @staticmethod
    def begin(ledger: Path) -> None:
        """Create the mark next to a new ledger."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(_mark_file(ledger), flags, 0o600)
        try:
            os.pwrite(descriptor, _START, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> dict[str, Progress]:
        """Read the marks; to be called before the ledger is read.

        Returns:
            The progress that each mark states, by what a message says of the mark.

        Raises:
            LedgerError: the mark next to the ledger is missing or damaged.
        """
        marks = {"its mark says": self._read_here()}
        if self._machine >= 0:
            progress = _progress_of(os.pread(self._machine, 1 << 10, 0))
            if progress is not None:
                marks[_SEEN] = progress
        return marks

    def _read_here(self) -> Progress:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(OSError):
                progress = _progress_of(_mark_file(self._ledger).read_bytes())
                if progress is not None:
                    return progress
        raise LedgerError(
            f"{_mark_file(self._ledger)} (how far the ledger was committed) is missing or damaged."
            " Restore the whole directory from one copy."
        )

    def check(self, marks: Mapping[str, Progress], chains: Sequence[bytes]) -> None:
        """Check that a ledger holds the commits that its marks state.

        Logs a warning if this machine has no mark of a ledger with commits.

        Args:
            marks: from `read`.
            chains: chain value of each commit.

        Raises:
            LedgerError: it holds fewer commits, or other ones.
        """
        if self._remembered and chains and _SEEN not in marks:
            _log.warning(_NO_MARK, self._ledger.parent, marks_folder())
        for mark, progress in marks.items():
            if progress.is_held_by(chains):
                continue
            seen = progress.commits
            held = len(chains)
            if mark == _SEEN and seen <= held:
                raise LedgerError(
                    f"{self._ledger} is another branch of its run: {mark} the run continue in"
                    f" another copy, to {seen} commits, and this copy has {held}. Continue that"
                    " one. To continue this one as well, which costs users the epsilon of both,"
                    f" remove {self._machine_file}."
                )
            raise LedgerError(
                f"{self._ledger} holds {held} commits and not the {seen} that {mark} were made: it"
                " is an older copy, or its newest rows are lost. Continue with the newest copy."
            )

    def write(self, commits: int, chain: bytes) -> None:
        """Write the progress after a durable commit; the marks need not reach the disk."""
        line = b"%012d %s\n" % (commits, chain.hex().encode())
        for descriptor in (self._here, self._machine):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.pwrite(descriptor, line, 0)

    def close(self) -> None:
        """Close the marks, so that another process can lock them."""
        for descriptor in (self._here, self._machine):
            if descriptor >= 0:
                os.close(descriptor)
        self._here = -1
        self._machine = -1


def progress_seen_here(fingerprint: str) -> Progress | None:
    """Return the progress of a run or stream that this machine has seen; None without a mark.

    Args:
        fingerprint: of its noise key.
    """
    folder = marks_folder()
    if folder is None or _FINGERPRINT.fullmatch(fingerprint) is None:
        return None
    with contextlib.suppress(OSError):
        return _progress_of((folder / fingerprint).read_bytes())
    return None


def marks_folder() -> Path | None:
    """Return the folder of the marks of this machine; None without a home directory."""
    named = os.environ.get("FEDMF_MARKS")
    if named:
        return Path(named).absolute()
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:
            return None
    return state / "fedmf" / "marks"


def _mark_file(ledger: Path) -> Path:
    return ledger.with_name(ledger.name + "-mark")


def _progress_of(content: bytes) -> Progress | None:
    """Read the line of a mark; None if it is not whole."""
    line = _LINE.fullmatch(content)
    if line is None:
        return None
    return Progress(int(line[1]), bytes.fromhex(line[2].decode()))
