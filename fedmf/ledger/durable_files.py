"""Files and directories that are written wholly and durably or not at all, and the file of a
key.
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

from fedmf.errors import ConfigError
from fedmf.noise.key import KEY_HEADER, NoiseKey

#: How a directory is called while it is made, and the seconds after which one was left by a killed
#: process.
_MAKING: Final = ".fedmf-making-"
_ABANDONED: Final = 3600


def write_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file so that after a crash it holds either its old content or the new, never a part.

    Args:
        path: where.
        content: all of it.
        mode: permissions of the file, less what the process masks; by default only the owner may
            read it.
    """
    replace_durably(path, lambda file: file.write(content), mode)


def replace_durably(path: Path, write: Callable[[BinaryIO], object], mode: int = 0o600) -> None:
    """See `write_durably`; the content is written by a function, piece by piece if it likes."""
    partial = path.with_name(path.name + ".partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        if os.path.lexists(partial):  # what a killed process left would keep its permissions
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
    """Write a file in place; after a crash it may hold a part. For content that nothing refers to
    yet.
    """
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
    """Write all of some bytes at a place of a file, not flushed; how many there were."""
    view = memoryview(content)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], at + done)
    return done


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def tighten(path: Path) -> None:
    """Take every permission of group and others from a directory and all that is in it.

    What other users own and what links point to is left as it is; so is the mode of the owner.
    """
    for place in [path, *path.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # another process may be tidying up
            status = place.lstat()
            wide = stat.S_IMODE(status.st_mode) & 0o077
            if wide and status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
                place.chmod(stat.S_IMODE(status.st_mode) & ~0o077)


def create_directory(
    path: Path,
    what: str,
    fill: Callable[[Path], object],
    mode: int = 0o700,
    error: type[ValueError] = ConfigError,
) -> None:
    """Make a directory with everything in it that belongs there from the start.

    It is built next to its place, hidden and for its owner alone, and renamed. What a process left
    that was killed meanwhile is removed by the next one, after an hour.

    Args:
        path: where; absent or an empty directory.
        what: what messages call it, such as "state directory".
        fill: writes the files into the directory it is given, durably.
        mode: permissions of the directory.
        error: raised with one line.

    Raises:
        ValueError: as `error`: the place is taken or cannot be written. Errors of `fill` that are
            not of the operating system pass. In each case nothing is left behind.

    Guarantees:
        After a crash the directory is there whole, or there is none.

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
            raise error(f"{what} {path} must be new or empty; it contains other files.")
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f"{_MAKING}*"):
            with contextlib.suppress(FileNotFoundError):  # another process may be tidying up
                if time.time() - left.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(left, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=_MAKING, dir=path.parent))
        try:
            fill(building)
            os.chmod(building, mode)
            sync_directory(building)
            os.replace(building, path)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        sync_directory(path.parent)
    except OSError as failure:
        raise error(f"{what} {path} cannot be created: {failure.strerror or failure}.") from None


def require_free(path: Path) -> None:
    """Refuse a place where there is something already, also a dangling link.

    Raises:
        ConfigError: there is.
    """
    if os.path.lexists(path):
        raise ConfigError(
            f"{path} exists already and is not overwritten. Remove it or choose another name."
        )


@contextmanager
def new_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """A binary file that gets its name when the block ends well.

    Args:
        path: where it will be.
        mode: its permissions; by default only the owner may read it.

    Raises:
        ConfigError: there is something at that place already, or it cannot be written. What was
            there is as it was, and nothing is left next to it.

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
    """Write the file of a key, for its owner alone, into a directory that is being made."""
    replace_durably(
        path, lambda file: file.write(key.secret_text())
    )  # no name: tracebacks show names


def load_key(path: Path) -> NoiseKey:
    """Read what `save_key` wrote, with its public or private standing.

    Args:
        path: the key file.

    Raises:
        ConfigError: the file cannot be read, others can read or write it (checked on the open
            file), or it is damaged. The message is one line and does not show the key.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"cannot use noise key {path}: mode (of the key file) must be 0600; got"
                    f" {mode:04o}. Others may have read the key: start a new run with a new key."
                )
            key = NoiseKey.from_secret_text(file.read(1 << 12))  # no name: tracebacks show names
    except OSError as error:
        raise ConfigError(f"cannot use noise key {path}: {error.strerror or error}.") from None
    if key is None:
        raise ConfigError(
            f"file (key) must hold an intact '{KEY_HEADER}'; got something else at {str(path)!r}. "
            "Restore it from a copy; the run cannot continue without it."
        )
    return key
