"""Who may extend a record: one process at a time, with the newest copy, until a release does not
end well.

High-water marks say how far a run or stream was released, so that older copies of it are not
continued. Two small files are written after each commit. One is next to the ledger: a ledger in
which the newest commits are missing (a flipped bit in SQLite's log, a log that was not copied)
holds less than it says. The other is on this machine, in ``$XDG_STATE_HOME/fedmf/marks/`` (by
default ``~/.local/state/fedmf/marks/``), outside of what is copied and restored with a run: an
older copy, or one next to which another continued, holds less than that, or something else. Noise
never depends on a mark: copies that continue on two machines draw from different sub-keys, because
each opening has random bits of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fedmf.errors import LedgerError, PlatformError
from fedmf.noise.key import NoiseKey

try:
    import fcntl
except ImportError:
    raise PlatformError from None

_log = logging.getLogger("fedmf")
#: Of one length, so that a later line replaces an earlier one whole.
_LINE: Final = re.compile(rb"(\d{12}) ([0-9a-f]{64})\n")
_START: Final = b"%012d %s\n" % (0, b"0" * 64)
_FINGERPRINT: Final = re.compile(r"[0-9A-Za-z]+")
#: How often a mark is read that may be being written.
_LOOKS: Final = 3
#: (commits, chain value of the last)
Reached = tuple[int, bytes]


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


class ReleaseGuard:
    """The right to release under one opening: lost for good by whatever does not end well.

    From the moment a row of noise is drawn for a sum until the release is durable, it is unknown
    who saw what: a commit may exist although its flush failed, or a user's own rule may have seen
    the noisy update. Another sum must not get the same row. The right is therefore lost, and only a
    new opening, with fresh random bits, continues.
    """

    def __init__(self) -> None:
        #: Why nothing may be released any more, one line.
        self.failed: str | None = None

    def require(self) -> None:
        """Raise the error if the right is lost."""
        if self.failed is not None:
            raise LedgerError(self.failed)

    @contextmanager
    def releasing(self, what: str) -> Iterator[None]:
        """Release something, or write to the record: all of it, or nothing more.

        Args:
            what: is released or written, in a message; where this is part of another release and
                fails, the message is about the part.

        Raises:
            LedgerError: the right was lost before, or is lost by an error of that kind.
            BaseException: whatever else was raised; the right is lost too.
        """
        self.require()
        try:
            yield
        except BaseException as error:
            if self.failed is not None:
                raise
            known = isinstance(error, LedgerError)
            reason = (
                str(error).rstrip(".")
                if known or isinstance(error, OSError)
                else type(error).__name__
            )
            self.failed = (
                f"{what} failed ({reason}); this process releases nothing more. "
                f"Resume: {what} counts if it is whole on the disk."
            )
            if known:
                raise type(error)(self.failed) from error
            raise


class HighWaterMark:
    """The marks of one ledger.

    Args:
        ledger: path of the ledger.
        key: of the run or stream, for a writer; None for a reader. A public key has no mark on this
            machine, since simulations with one seed share it.
        remembered: whether to have a mark on this machine.

    Raises:
        LedgerError: another process has a copy of the run or stream open.
    """

    def __init__(self, ledger: Path, key: NoiseKey | None, remembered: bool = True) -> None:
        self._ledger = ledger
        self._here = -1
        self._machine = -1
        self._machine_file: Path | None = None
        if key is None:
            return
        with contextlib.suppress(OSError):
            self._here = os.open(_beside(ledger), os.O_RDWR | os.O_CLOEXEC)
        if remembered and not key.public and (folder := marks_folder()) is not None:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._machine_file = folder / key.fingerprint
                self._machine = os.open(self._machine_file, flags, 0o600)
                fcntl.flock(self._machine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise LedgerError(
                    f"{ledger.parent} must be the only open copy of its run; another process has"
                    " one open. Wait for it to end or stop it."
                ) from None
            except OSError as error:
                _log.warning(
                    "%s is not writable (%s): older copies of a run go unnoticed", folder, error
                )

    @staticmethod
    def begin(ledger: Path) -> None:
        """Make the mark next to a new ledger."""
        descriptor = os.open(
            _beside(ledger), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        try:
            os.pwrite(descriptor, _START, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> list[Reached]:
        """What the marks say, to be read before the ledger is.

        Raises:
            LedgerError: the mark next to the ledger is missing or damaged.
        """
        here: Reached | None = None
        for _ in range(_LOOKS):
            with contextlib.suppress(OSError):
                here = _reached(_beside(self._ledger).read_bytes())
            if here is not None:
                break
        else:
            raise LedgerError(
                f"{_beside(self._ledger)} (how far the ledger was committed) is missing or damaged."
                " Restore the whole directory from one copy."
            )
        machine = _reached(os.pread(self._machine, 1 << 10, 0)) if self._machine >= 0 else None
        return [here, *([] if machine is None else [machine])]

    def check(self, marks: Sequence[Reached], chains: Sequence[bytes]) -> None:
        """See that a ledger holds what its marks say.

        Args:
            marks: as `read` gave them.
            chains: chain value of each commit.

        Raises:
            LedgerError: it holds fewer commits, or other ones.
        """
        here, *machine = marks
        if not holds(chains, here):
            raise LedgerError(
                f"{self._ledger} holds {len(chains)} commits and not the {here[0]} that its mark"
                " says were made: it is an older copy, or its newest rows are lost. Continue with"
                " the newest copy."
            )
        for reached in machine:
            if not holds(chains, reached):
                raise LedgerError(self._contradiction(reached[0], len(chains)))

    def _contradiction(self, seen: int, held: int) -> str:
        """An error about commits that this machine has seen and the ledger does not hold."""
        if seen > held:
            return (
                f"{self._ledger} holds {held} commits and not the {seen} that this machine has seen"
                " were made: it is an older copy, another branch, or its newest rows are lost."
                " Continue with the newest copy."
            )
        return (
            f"{self._ledger} is another branch of its run: this machine has seen the run continue"
            f" in another copy, to {seen} commits, and this copy has {held}. Continue that one. To"
            " continue this one as well, which costs users the epsilon of both, remove"
            f" {self._machine_file}."
        )

    def note(self, commits: int, chain: bytes) -> None:
        """Note a commit that is durable; the marks themselves need not reach the disk."""
        line = b"%012d %s\n" % (commits, chain.hex().encode())
        for descriptor in (self._here, self._machine):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.pwrite(descriptor, line, 0)

    def close(self) -> None:
        """Let another process have them."""
        for descriptor in (self._here, self._machine):
            if descriptor >= 0:
                os.close(descriptor)
        self._here = self._machine = -1


def seen_here(fingerprint: str) -> Reached | None:
    """What this machine has seen of a run or stream, for a reader; None if nothing is known.

    Args:
        fingerprint: of its noise key.
    """
    folder = marks_folder()
    if folder is None or _FINGERPRINT.fullmatch(fingerprint) is None:
        return None
    with contextlib.suppress(OSError):
        return _reached((folder / fingerprint).read_bytes())
    return None


def marks_folder() -> Path | None:
    """Where the marks of this machine are; None without a home directory."""
    home = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return state / "fedmf" / "marks"


def _beside(ledger: Path) -> Path:
    return ledger.with_name(ledger.name + "-mark")


def _reached(content: bytes) -> Reached | None:
    line = _LINE.fullmatch(content)
    return None if line is None else (int(line[1]), bytes.fromhex(line[2].decode()))


def holds(chains: Sequence[bytes], reached: Reached) -> bool:
    """Whether a ledger has the commits that end with this one."""
    commits, chain = reached
    return commits == 0 or (commits <= len(chains) and chains[commits - 1] == chain)
