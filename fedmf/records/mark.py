"""How far this machine has seen each run and stream, so that an older copy of one is not continued.

One small file for each noise key in ``$XDG_STATE_HOME/fedmf/marks/`` (by default
``~/.local/state/fedmf/marks/``), outside of what is copied and restored with a run. Where it cannot be
kept, because there is no home or it is read-only, a run continues without it. Noise never depends on it:
copies that continue on two machines draw from different sub-keys, because each opening has random bits of
its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from fedmf.errors import ConfigError
from fedmf.noise import NoiseKey, RecordedOpening
from fedmf.records.lock import fcntl

_log = logging.getLogger("fedmf")
#: Of one length, so that a later line replaces an earlier one whole.
_LINE: Final = re.compile(rb"(\d{12}) ([0-9a-f]{64})\n")


@dataclass(eq=False)
class Mark:
    """The number of rounds (or steps) released on this machine, and which opening released the last of them.

    Two copies of a directory that continue differ in the random bits of their openings, so these identify
    what was released. One process at a time has the mark of a run open for writing.

    Args:
        released: rounds; 0 if this machine knows of none.
        opening: SHA-256 of the random bits of the opening that released the last round, hexadecimal.
    """

    released: int = 0
    opening: str = ""
    _descriptor: int | None = None

    @classmethod
    def open(cls, key: NoiseKey | None) -> Self:
        """The mark of the run or stream with this key, for writing; of public keys, or none, it is empty.

        Raises:
            ConfigError: another process has a copy of the run or stream open.
        """
        if key is None or key.public or (folder := marks_folder()) is None:
            return cls()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(folder / key.fingerprint, flags, 0o600)
        except OSError as error:
            _log.warning("%s is not writable (%s): older copies of this run cannot be told", folder, error)
            return cls()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(
                f"run directory must be the only open copy of the run with key {key.fingerprint}; another "
                "process has one open. Wait for it to end or stop it."
            ) from None
        return cls(*_read(descriptor), descriptor)

    @classmethod
    def look(cls, fingerprint: str | None) -> Self:
        """The mark as it is, for a reader, which looks at it before it reads the record."""
        folder = marks_folder()
        if fingerprint is None or folder is None:
            return cls()
        try:
            descriptor = os.open(folder / fingerprint, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return cls()
        try:
            return cls(*_read(descriptor))
        finally:
            os.close(descriptor)

    def matches(self, openings: Sequence[RecordedOpening], released: int) -> bool:
        """Whether a record with these openings and rounds holds all that was released on this machine."""
        return released >= self.released and _digest(openings, self.released) == self.opening

    def note(self, openings: Sequence[RecordedOpening], released: int) -> None:
        """Note how far a record is, after its commit and without waiting for the disk."""
        if self._descriptor is None or not released:
            return
        self.released, self.opening = released, _digest(openings, released)
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, b"%012d %s\n" % (released, self.opening.encode()), 0)

    def close(self) -> None:
        """Let another process have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def marks_folder() -> Path | None:
    """Where marks are; None without a home directory."""
    home = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return state / "fedmf" / "marks"


def _digest(openings: Sequence[RecordedOpening], released: int) -> str:
    """Of the opening that released the last of so many rounds; empty for none."""
    fresh = [opening.fresh for opening in openings if opening.first_round < released]
    return hashlib.sha256(b"fedmf mark\x00" + fresh[-1]).hexdigest() if fresh else ""


def _read(descriptor: int) -> tuple[int, str]:
    content = b""
    with contextlib.suppress(OSError):
        content = os.pread(descriptor, 1 << 10, 0)
    if (line := _LINE.fullmatch(content)) is None:
        if content:
            _log.warning("a mark of fedmf is damaged: it cannot tell whether this run is an older copy")
        return 0, ""
    return int(line[1]), line[2].decode()
