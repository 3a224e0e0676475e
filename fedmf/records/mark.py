"""High-water marks: how far a run or stream was released, so that older copies of it are not continued.

Two small files are written after each commit. One is next to the ledger: a ledger in which the newest commits
are missing (a flipped bit in SQLite's log, a log that was not copied) holds less than it says. The other is
on this machine, in ``$XDG_STATE_HOME/fedmf/marks/`` (by default ``~/.local/state/fedmf/marks/``), outside of
what is copied and restored with a run: an older copy, or one next to which another continued, holds less than
that, or something else. Noise never depends on a mark: copies that continue on two machines draw from
different sub-keys, because each opening has random bits of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fedmf.errors import LedgerError
from fedmf.noise import NoiseKey
from fedmf.records.lock import fcntl

_log = logging.getLogger("fedmf")
#: Of one length, so that a later line replaces an earlier one whole.
_LINE: Final = re.compile(rb"(\d{12}) ([0-9a-f]{64})\n")
_START: Final = b"%012d %s\n" % (0, b"0" * 64)
#: How often a mark is read that may be being written.
_LOOKS: Final = 3
#: (commits, chain value of the last)
Reached = tuple[int, bytes]


class Mark:
    """The marks of one ledger.

    Args:
        ledger: path of the ledger.
        key: of the run or stream, for a writer; None for a reader. A public key has no mark on this machine,
            since simulations with one seed share it.
        remembered: whether to have a mark on this machine.

    Raises:
        LedgerError: another process has a copy of the run or stream open.
    """

    def __init__(self, ledger: Path, key: NoiseKey | None, remembered: bool = True) -> None:
        self._ledger, self._here, self._machine = ledger, -1, -1
        if key is None:
            return
        with contextlib.suppress(OSError):
            self._here = os.open(_beside(ledger), os.O_RDWR | os.O_CLOEXEC)
        if remembered and not key.public and (folder := marks_folder()) is not None:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._machine = os.open(folder / key.fingerprint, flags, 0o600)
                fcntl.flock(self._machine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise LedgerError(
                    f"{ledger.parent} must be the only open copy of its run; another process has one open. "
                    "Wait for it to end or stop it."
                ) from None
            except OSError as error:
                _log.warning("%s is not writable (%s): older copies of a run cannot be told", folder, error)

    @staticmethod
    def begin(ledger: Path) -> None:
        """Make the mark next to a new ledger."""
        descriptor = os.open(_beside(ledger), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
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
                f"{_beside(self._ledger)} (how far the ledger was committed) is missing or damaged. Restore "
                "the whole directory from one copy."
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
        for place, (commits, chain) in zip(("its mark says", "this machine has seen"), marks, strict=False):
            if commits > len(chains) or (commits and chains[commits - 1] != chain):
                raise LedgerError(
                    f"{self._ledger} holds {len(chains)} commits and not the {commits} that {place} were "
                    "made: it is an older copy, or its newest rows are lost. Continue with the newest copy."
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
