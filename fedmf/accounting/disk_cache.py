"""A disk cache: an entry that is damaged or not ours is treated as missing.

It stores optimized designs and figures of `dp_accounting`. A file holds a digest of its name and
content, so that damaged, truncated and exchanged files are misses.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_DIGEST = 32


def cache_directory() -> Path | None:
    """The folder of all caches: FEDMF_CACHE, else XDG_CACHE_HOME/fedmf, else ~/.cache/fedmf.

    It is None with FEDMF_CACHE=off, and for users without a home directory.
    """
    chosen = os.environ.get("FEDMF_CACHE", "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if shared:
        return Path(shared) / "fedmf"
    with suppress(RuntimeError):  # no home directory
        return Path.home() / ".cache" / "fedmf"
    return None


class DiskCache:
    """Files of one kind in a folder of the user's own, mode 0700.

    Args:
        root: the folder of all caches, created if need be.
        kind: names the folder, with the user's number, so that users who share a root share no
            folder.
        largest: bytes of the largest content.
        most: bytes of all files together; the oldest make room.

    Guarantees:
        `read` gives exactly what was written under that name, or nothing: after damage, a kill or a
        power loss, and where the folder belongs to somebody else or is open to others. No method
        raises an error of the operating system.

    >>> files = DiskCache(Path(tempfile.mkdtemp()), "examples", largest=100, most=1000)
    >>> files.write("one", b"content")
    >>> files.read("one"), files.read("two")
    (b'content', None)
    """

    def __init__(self, root: Path, kind: str, largest: int, most: int) -> None:
        self.folder = root / f"{kind}-{os.geteuid()}"
        self._largest = largest
        self._most = most

    def read(self, name: str) -> bytes | None:
        """Return the content that was written under this name; None if that is not certain."""
        path = self.folder / name
        with suppress(OSError):
            if self._is_ours() and stat.S_ISREG(path.lstat().st_mode):
                stored = path.read_bytes()
                content = stored[_DIGEST:]
                if stored == _sealed(name, content):
                    return content
        return None

    def write(self, name: str, content: bytes) -> None:
        """Store content under a name, in place of an older file; after an error nothing is."""
        if len(content) > self._largest:
            return
        with suppress(OSError):
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                return
            handle, partial = tempfile.mkstemp(dir=self.folder)
            try:
                with open(handle, "wb") as file:
                    file.write(_sealed(name, content))
                os.replace(partial, self.folder / name)
            except OSError:
                os.unlink(partial)
            self._make_room()

    def _is_ours(self) -> bool:
        """Return whether the folder is this user's and closed to others."""
        status = self.folder.lstat()
        return (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.geteuid()
            and not status.st_mode & 0o077
        )

    def _make_room(self) -> None:
        newest_first = sorted(self.folder.iterdir(), key=lambda path: -path.lstat().st_mtime)
        total = 0
        for path in newest_first:
            total += path.lstat().st_size
            if total > self._most:
                path.unlink(missing_ok=True)


def _sealed(name: str, content: bytes) -> bytes:
    return sha256(name.encode() + b"\0" + content).digest() + content
