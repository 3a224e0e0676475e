"""What a machine remembers of runs and streams outside their directories, to notice backups and copies.

One file a noise key and user of the machine in `$XDG_STATE_HOME/fedmf/guards/` (by default
`~/.local/state/fedmf/guards/`), mode 0600, written after each commit without waiting for the disk. It is a
help and never a condition: where it cannot be kept (no home, read-only, another machine) a run goes on
without it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from fedmf.errors import ConfigError
from fedmf.noise import NoiseKey, RecordedOpening
from fedmf.records.lock import fcntl

_log = logging.getLogger("fedmf")
_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 24
#: How often a reader looks at a file that may be being written.
_LOOKS: Final = 3
_guarded: Final = ContextVar("guarded", default=True)


@dataclass(frozen=True)
class Loss:
    """Rounds first … released − 1 that were released and are not in the record at hand.

    Attributes:
        first: 0-based.
        released: the first round after them.
        head: what identifies them, hexadecimal; nothing follows from it without the key.
    """

    first: int
    released: int
    head: str


@dataclass(frozen=True)
class _Known:
    """What the file holds: rounds released, keyed digests of the last of them and of all openings, what was
    lost before, and whether the commit of the last round failed."""

    released: int = 0
    head: str = ""
    openings: tuple[tuple[int, str], ...] = ()
    lost: tuple[Loss, ...] = ()
    failed: bool = False

    def text(self) -> bytes:
        lost = [[loss.first, loss.released, loss.head] for loss in self.lost]
        values = [_VERSION, self.released, self.head, [list(pair) for pair in self.openings], lost]
        return json.dumps([*values, True] if self.failed else values).encode()

    @classmethod
    def of_text(cls, text: bytes) -> Self:
        """Raises ValueError, TypeError or a kind of LookupError if it is anything else."""
        version, released, head, openings, lost, *failed = json.loads(text)
        if version != _VERSION or type(released) is not int or released < 0 or failed not in ([], [True]):
            raise ValueError
        pairs = tuple((int(first), str(digest)) for first, digest in openings)
        return cls(
            released, str(head), pairs, tuple(Loss(int(a), int(b), str(c)) for a, b, c in lost), bool(failed)
        )


@contextmanager
def unguarded() -> Iterator[None]:
    """Copies on purpose, in audits and experiments whose releases nobody sees: nothing is remembered."""
    before = _guarded.set(False)
    try:
        yield
    finally:
        _guarded.reset(before)


@dataclass(eq=False)
class Guard:
    """The memory of one run or stream, by the fingerprint of its key; held by one process at a time.

    Guarantees:
        Nothing that happens to its file stops a run, but that another process holds it. The file tells
        whoever can read it how many rounds were released and when, and nothing else without the key.
    """

    _key: bytes = field(repr=False)
    _descriptor: int | None
    _known: _Known
    _written: int = 0

    @classmethod
    def open(cls, key: NoiseKey | None) -> Self:
        """What this machine remembers of the run or stream with this key; nothing for public keys, or none.

        Raises:
            ConfigError: another process has a copy of the run or stream open.
        """
        folder = guards_folder()
        if key is None or key.public or folder is None or not _guarded.get():
            return cls(b"", None, _Known())
        secret = key.subkey("guard")
        place = folder / key.fingerprint
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return cls(secret, None, _Known())
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = os.pread(descriptor, _MOST_BYTES, 0)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(
                f"run directory must be the only one of the run with key {key.fingerprint} that is open; "
                "another process has a copy of it open. Wait for it to end or stop it."
            ) from None
        except OSError:
            os.close(descriptor)
            return cls(secret, None, _Known())
        return cls(secret, descriptor, _read(content, place), len(content))

    @classmethod
    def look(cls, fingerprint: str | None, key: NoiseKey | None) -> Self:
        """What this machine remembers, for somebody who only reads: nothing is made, locked or changed.

        To be looked at before the record is read: a living writer commits first and notes it here then.

        Args:
            fingerprint: of the key of the run or stream; None where nothing is remembered of it.
            key: itself, if it is at hand. Without it numbers of rounds are compared alone.
        """
        folder = guards_folder()
        public = key is not None and key.public
        if fingerprint is None or public or folder is None or not _guarded.get():
            return cls(b"", None, _Known())
        known = _Known()
        for _ in range(_LOOKS):  # it may be seen while it is written
            with contextlib.suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
                descriptor = os.open(folder / fingerprint, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                with open(descriptor, "rb") as file:
                    known = _Known.of_text(file.read(_MOST_BYTES))
                break
        return cls(b"" if key is None else key.subkey("guard"), None, known)

    def lacks(
        self, openings: Sequence[RecordedOpening], released: int, head_after: Callable[[int], bytes | None]
    ) -> tuple[int, int] | None:
        """(rounds that are here, rounds that were released on this machine) if that is more; None if not.

        Args:
            openings: as for `losses`.
            released: likewise.
            head_after: likewise.
        """
        if not self._key:
            known = self._known.released
            return (released, known) if known > released else None
        losses = self.losses(openings, released, head_after)
        return (losses[-1].first, losses[-1].released) if losses else None

    def losses(
        self, openings: Sequence[RecordedOpening], released: int, head_after: Callable[[int], bytes | None]
    ) -> list[Loss]:
        """What was released on this machine and is not in the record; empty if all of it is.

        Args:
            openings: of the record.
            released: rounds in the record.
            head_after: what identifies the first so many rounds of the record, None if that cannot be told.
        """
        known = self._known
        same = 0
        own = [(opening.first_round, self._digest(opening.fresh)) for opening in openings]
        while same < min(len(own), len(known.openings)) and own[same] == known.openings[same]:
            same += 1
        ends = [pairs[same][0] for pairs in (own, known.openings) if same < len(pairs)]
        first = min([released, known.released, *ends])
        if first == known.released and known.released:
            head = head_after(known.released) if known.head else None
            if head is not None and not hmac.compare_digest(self._digest(head), known.head):
                first = 0  # the same openings and other rounds: where they part is not known
        if first >= known.released:
            return []
        earlier = [Loss(min(loss.first, first), loss.released, loss.head) for loss in known.lost]
        return [*earlier, Loss(first, known.released, known.head)]

    def note(
        self,
        openings: Sequence[RecordedOpening],
        released: int,
        head: bytes | None,
        lost: Sequence[Loss] | None = None,
        failed: bool = False,
    ) -> None:
        """Remember how far the record is, after its commit; what cannot be written is not remembered.

        Args:
            openings: of the record.
            released: rounds in the record.
            head: what identifies the last of them.
            lost: what was lost with backups, if that has changed.
            failed: whether the commit of the last round failed: it may be gone, though somebody saw it. This
                alone waits for the disk.
        """
        if self._descriptor is None:
            return
        pairs = self._known.openings
        if len(pairs) != len(openings) or lost is not None:
            pairs = tuple((opening.first_round, self._digest(opening.fresh)) for opening in openings)
        kept = self._known.lost if lost is None else tuple(lost)
        digest = "" if head is None else self._digest(head)
        self._known = _Known(released, digest, pairs, kept, failed)
        text = self._known.text().ljust(self._written)  # one write: a shorter text leaves nothing behind
        try:
            os.pwrite(self._descriptor, text, 0)
            if failed:
                os.fsync(self._descriptor)
        except OSError:
            return
        self._written = len(text)

    def failed(self, losses: Sequence[Loss]) -> bool:
        """Whether all that is newly lost is the round whose commit failed."""
        last = self._known.released
        return self._known.failed and losses[-1] == Loss(last - 1, last, self._known.head)

    def close(self) -> None:
        """Let another process have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _digest(self, content: bytes) -> str:
        return hmac.digest(self._key, content, "sha256").hex()[:32]


def guards_folder() -> Path | None:
    """Where guards are kept: XDG_STATE_HOME/fedmf/guards, else ~/.local/state/fedmf/guards; None if there is
    no home."""
    home = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(home):
        return Path(home) / "fedmf" / "guards"
    try:
        return Path.home() / ".local" / "state" / "fedmf" / "guards"
    except RuntimeError:
        return None


def _read(content: bytes, place: Path) -> _Known:
    if not content.strip():
        return _Known()
    try:
        return _Known.of_text(content)
    except (ValueError, TypeError, LookupError, RecursionError):
        _log.warning(
            "%s does not hold what fedmf wrote there, so that it cannot tell whether this run was restored "
            "from a backup; it is written anew",
            place,
        )
        return _Known()
