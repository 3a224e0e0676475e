"""Files and directories that are written wholly and durably or not at all, and the key file.

Everything that must survive a crash is written by these functions, except the ledger itself, which
is SQLite's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Final

from fedmf.errors import ConfigError, LedgerError
from fedmf.noise.key import KEY_HEADER, NoiseKey

#: Beginning of the name of a directory that is being created.
_UNFINISHED: Final = ".fedmf-making-"
#: Seconds after which such a directory is taken to be left by a killed process.
_ABANDONED: Final = 3600


def write_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file so that after a crash it holds either its old content or the new, never a part.

    Args:
        path: of the file.
        content: of the whole file.
        mode: permissions of the file, less those that the process masks; by default only the owner
            may read it.
    """
    replace_durably(path, lambda file: file.write(content), mode)


def replace_durably(path: Path, write: Callable[[BinaryIO], object], mode: int = 0o600) -> None:
    """Write a file as `write_durably` does, with content that a function writes piece by piece."""
    partial = path.with_name(path.name + ".partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        if os.path.lexists(partial):  # the file of a killed process would keep its permissions
            partial.unlink()
        with open(os.open(partial, flags, mode), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def overwrite_durably(path: Path, content: bytes) -> None:
    """Write a file in place, of which a crash may leave a part; nothing may refer to it yet."""
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, write_at(descriptor, content, 0))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        sync_directory(path.parent)


def write_at(descriptor: int, content: bytes | memoryview, at: int) -> int:
    """Write bytes at a place of a file without flushing them, and return their number."""
    view = memoryview(content)
    written = 0
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], at + written)
    return written


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def tighten(path: Path) -> None:
    """Remove all permissions of group and others from a directory and everything in it.

    Files of other users, targets of links and the permissions of the owner are left as they are.
    """
    for place in [path, *path.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # another process may be tidying up
            status = place.lstat()
            excess = stat.S_IMODE(status.st_mode) & 0o077
            if excess and status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
                place.chmod(stat.S_IMODE(status.st_mode) & ~0o077)


def create_directory(
    path: Path,
    what: str,
    fill: Callable[[Path], object],
    mode: int = 0o700,
) -> None:
    """Create a directory with its first files.

    It is built next to its place under a hidden name, for its owner alone, and renamed. The
    directory of a process that was killed meanwhile is removed by the next one, after an hour.

    Args:
        path: absent or an empty directory.
        what: name of the directory in messages, such as "state directory".
        fill: writes the files durably into the directory that it is given.
        mode: permissions of the directory.

    Raises:
        ConfigError: there are other files, or the directory cannot be written. Errors of `fill`
            that are not of the operating system pass. Nothing is left behind.

    Guarantees:
        After a crash the directory is whole, or absent.

    >>> place = Path(tempfile.mkdtemp()) / "run"
    >>> create_directory(place, "output directory", lambda folder: (folder / "config").touch())
    >>> [file.name for file in place.iterdir()], [entry.name for entry in place.parent.iterdir()]
    (['config'], ['run'])
    >>> create_directory(place, "output directory", lambda folder: None)
    Traceback (most recent call last):
        ...
    fedmf.errors.ConfigError: output directory ... must be new or empty; it contains other files.
    """
    try:
        if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
            found = "contains other files" if path.is_dir() else "is no directory"
            raise ConfigError(f"{what} {path} must be new or empty; it {found}.")
        with contextlib.suppress(FileExistsError):  # a file, in which nothing can be created
            path.parent.mkdir(parents=True, exist_ok=True)
        for unfinished in path.parent.glob(f"{_UNFINISHED}*"):
            with contextlib.suppress(FileNotFoundError):  # another process may be tidying up
                if time.time() - unfinished.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(unfinished, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=path.parent))
        try:
            fill(building)
            os.chmod(building, mode)
            sync_directory(building)
            os.replace(building, path)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        sync_directory(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{what} {path} cannot be created: {error.strerror or error}. Choose another place."
        ) from None


def require_free(path: Path) -> None:
    """Require that nothing exists at a path, not even a dangling link.

    Raises:
        ConfigError: something does.
    """
    if os.path.lexists(path):
        raise ConfigError(
            f"{path} exists already and is not overwritten. Remove it or choose another name."
        )


@contextmanager
def new_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open a new binary file that gets its name when the block ends without an error.

    Args:
        path: of the file.
        mode: its permissions; by default only the owner may read it.

    Raises:
        ConfigError: something exists at the path already, which is left as it is; or the file
            cannot be written. Nothing is left next to it.

    >>> path = Path(tempfile.mkdtemp()) / "mine"
    >>> with new_file(path) as file:
    ...     written = file.write(b"text")
    >>> with new_file(path):
    ...     pass
    Traceback (most recent call last):
        ...
    fedmf.errors.ConfigError: ... exists already and is not overwritten. ...
    """
    require_free(path)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
            yield file  # type: ignore[misc]
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            os.link(file.name, path)  # unlike a renaming, a link cannot replace a file
        try:
            sync_directory(path.parent)
        except OSError:
            path.unlink()
            raise
    except FileExistsError:
        require_free(path)
        raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}.") from None


def save_key(path: Path, key: NoiseKey) -> None:
    """Write the file of a key, for its owner alone."""
    # The text has no name, since tracebacks show the values of names.
    replace_durably(path, lambda file: file.write(key.secret_text()))


def load_key(path: Path) -> NoiseKey:
    """Read the file that `save_key` wrote, of a public or private key.

    Args:
        path: of the key file.

    Raises:
        ConfigError: the file cannot be read or is damaged. The message is one line and does not
            show the key.
        LedgerError: others can read or write it (checked on the open file).
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise LedgerError(
                    f"cannot use noise key {path}: mode (of the key file) must be 0600; got"
                    f" {mode:04o}. Others may have read the key: start a new run with a new key."
                )
            # The text has no name, since tracebacks show the values of names.
            key = NoiseKey.from_secret_text(file.read(1 << 12))
    except OSError as error:
        raise ConfigError(f"cannot use noise key {path}: {error.strerror}. Restore it.") from None
    if key is None:
        raise ConfigError(
            f"file (key) must hold an intact '{KEY_HEADER}'; got something else at {str(path)!r}. "
            "Restore it from a copy; the run cannot continue without it."
        )
    return key
