"""Files of the user's own that can be made again: whatever is wrong with one, it is as if it were not there.

Optimised designs and machine code are kept so. A file is under its name and a digest of name and content, so
that damage, a part of it and another file in its place are not there either. The folder and its files belong
to the user and nobody else may open them: what is in them is executed or believed without being made again.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from fedmf.errors import PlatformError

try:
    import fcntl
except ImportError:
    raise PlatformError from None


_MAGIC = b"fedmf kept file 1\n"
_DIGEST = 32
_PARTIAL = "partial"
_PATIENCE = 5.0
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW


def cache_directory() -> Path | None:
    """Where files are kept: FEDMF_CACHE, else XDG_CACHE_HOME/fedmf, else ~/.cache/fedmf; None if off.

    Set FEDMF_CACHE=off to keep nothing.
    """
    chosen = os.environ.get("FEDMF_CACHE", "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # no home directory
        return (Path(home) if home else Path.home() / ".cache") / "fedmf"
    return None


class KeptFiles:
    """Files of one kind in a folder of the user's own, mode 0700.

    Args:
        root: where the folder is; made if need be.
        kind: names the folder, with the user's number, so that users who share a root share no folder.
        largest: bytes of the largest content.
        most: bytes of all files together; the oldest make room.

    Guarantees:
        `read` gives exactly what was written under that name, by this user, or nothing: after damage, a kill
        or a power loss at any moment, with any number of threads and processes, and where folder or file
        belongs to somebody else or is open to others. No method raises an error of the operating system, and
        none waits longer than some seconds.

    >>> import tempfile
    >>> files = KeptFiles(Path(tempfile.mkdtemp()), "examples", largest=100, most=1000)
    >>> files.write("one", b"content")
    >>> files.read("one"), files.read("two")
    (b'content', None)
    """

    def __init__(self, root: Path, kind: str, largest: int, most: int) -> None:
        self.folder = root / f"{kind}-{os.geteuid()}"
        self._largest, self._most = largest, most

    def read(self, name: str) -> bytes | None:
        """What was written under this name, if that is certain."""
        limit = len(_MAGIC) + _DIGEST + self._largest
        try:
            with self._opened() as folder:
                handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _OPEN, dir_fd=folder)
            with open(handle, "rb") as file:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode) or not _own(status, 0o022) or status.st_size > limit:
                    return None
                stored = file.read(limit + 1)
        except OSError:
            return None
        content = stored[len(_MAGIC) + _DIGEST :]
        return content if stored == _sealed(name, content) else None

    def write(self, name: str, content: bytes) -> None:
        """Keep this under that name, in place of whatever is there; where that fails nothing is kept."""
        stored = _sealed(name, content)
        if len(content) > self._largest:
            return
        with suppress(OSError):
            wide = self._made()
            with self._opened() as folder:
                _lock(folder)
                if wide:  # others may have put something in
                    for found in os.listdir(folder):
                        _remove(found, folder)
                self._make_room(folder, len(stored))
                try:
                    _replace(name, stored, folder)
                finally:
                    with suppress(OSError):
                        _remove(_PARTIAL, folder)

    def _made(self) -> bool:
        """Make the folder, or close it to others; whether it was open to them."""
        try:
            status = self.folder.lstat()
        except FileNotFoundError:
            for missing in reversed([part for part in self.folder.parents if not part.exists()]):
                missing.mkdir(0o700, exist_ok=True)
            self.folder.mkdir(exist_ok=True)
            self.folder.chmod(0o700)  # whatever the mask
            return False
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{self.folder} belongs to another user.")
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder:
            self.folder.unlink()
            self.folder.mkdir()
        if not is_folder or stat.S_IMODE(status.st_mode) != 0o700:
            self.folder.chmod(0o700)
        return not _own(status, 0o077)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of the folder, if it is the user's own and closed to others."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        try:
            if not _own(os.fstat(folder), 0o077):
                raise PermissionError(f"{self.folder} is open to others.")
            yield folder
        finally:
            os.close(folder)

    def _make_room(self, folder: int, size: int) -> None:
        """Remove the oldest files until there is room for one of this size."""
        found = [(os.stat(name, dir_fd=folder, follow_symlinks=False), name) for name in os.listdir(folder)]
        total = sum(status.st_size for status, _ in found) + size
        for status, name in sorted(found, key=lambda each: each[0].st_mtime_ns):
            if total <= self._most:
                return
            _remove(name, folder)
            total -= status.st_size


def _sealed(name: str, content: bytes) -> bytes:
    return _MAGIC + sha256(name.encode() + b"\0" + content).digest() + content


def _own(status: os.stat_result, others: int) -> bool:
    """Whether something belongs to this user and gives others none of these permissions."""
    return status.st_uid == os.geteuid() and not status.st_mode & others


def _lock(folder: int) -> None:
    """Keep other writers out until the descriptor is closed."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(0.01)


def _replace(name: str, stored: bytes, folder: int) -> None:
    _remove(_PARTIAL, folder)  # of a writer that was killed
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
    with open(os.open(_PARTIAL, flags, 0o600, dir_fd=folder), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(stored)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.replace(_PARTIAL, name, src_dir_fd=folder, dst_dir_fd=folder)
    except IsADirectoryError:
        _remove(name, folder)
        os.replace(_PARTIAL, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError:  # a directory
        shutil.rmtree(name, dir_fd=folder)
