"""Directories and files that appear whole or not at all, and never over another."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from fedmf.errors import ConfigError
from fedmf.records.durable import sync_directory
from fedmf.records.lock import fcntl

_UNFINISHED: Final = ".fedmf-unfinished"


def create_directory(
    path: Path,
    what: str,
    fill: Callable[[Path], object],
    mode: int = 0o700,
    error: type[ValueError] = ConfigError,
) -> None:
    """Make a directory with everything in it that belongs there from the start.

    It is built beside its place and renamed. What killed processes left of such buildings is removed by the
    next one that builds beside them, for whatever place; what another living process builds is left alone.

    Args:
        path: where; absent or an empty directory.
        what: what messages call it, such as "state directory".
        fill: writes the files into the directory it is given, durably.
        mode: permissions of the directory.
        error: raised with one line.

    Raises:
        ValueError: as `error`: the place is taken or cannot be written. Errors of `fill` that are not of the
            operating system pass. In each case nothing is left behind.

    Guarantees:
        After a crash the directory is there whole, or there is none.

    >>> place = Path(tempfile.mkdtemp()) / "run"
    >>> create_directory(place, "output directory", lambda folder: (folder / "config").touch())
    >>> [file.name for file in place.iterdir()], [entry.name for entry in place.parent.iterdir()]
    (['config'], ['run'])
    >>> create_directory(place, "output directory", lambda folder: None)
    Traceback (most recent call last):
        ...
    fedmf.errors.ConfigError: output directory ... must be new or empty; it holds something else.
    """
    try:
        if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
            raise error(f"{what} {path} must be new or empty; it holds something else.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_directory(path.parent, path.name) as building:
            fill(building)
            os.chmod(building, mode)
            sync_directory(building)
            os.replace(building, path)
            sync_directory(path.parent)
    except OSError as failure:
        raise error(f"{what} {path} cannot be created: {failure.strerror or failure}.") from None


@contextmanager
def scratch_directory(parent: Path, name: str) -> Iterator[Path]:
    """A directory of mode 0700 that is gone afterwards; after a kill, when the next one beside it is made.

    Args:
        parent: where.
        name: a part of its name.
    """
    for left_over in parent.glob(f".*{_UNFINISHED}"):
        with _locked(left_over) as free:
            if free:
                shutil.rmtree(left_over, ignore_errors=True)
    while True:
        building = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=_UNFINISHED, dir=parent))
        with _locked(building) as free:
            if not free:  # somebody else has just taken it for a left-over
                continue
            try:
                yield building
            finally:
                shutil.rmtree(building, ignore_errors=True)
            return


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Whether this process alone holds the directory, which is still there and its own."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = directory.exists() and os.fstat(descriptor).st_uid == os.geteuid()
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def require_free(path: Path) -> None:
    """Refuse a place where there is something already, also a dangling link.

    Raises:
        ConfigError: there is.
    """
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already and is not replaced. Remove it or choose another name.")


@contextmanager
def new_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """A binary file that gets its name when the block ends well.

    Args:
        path: where it will be.
        mode: its permissions; by default nobody else may read it.

    Raises:
        ConfigError: there is something at that place already, or it cannot be written. What was there is as
            it was, and nothing is left beside it.

    >>> path = Path(tempfile.mkdtemp()) / "mine"
    >>> with new_file(path) as file:
    ...     written = file.write(b"text")
    >>> with new_file(path):
    ...     pass
    Traceback (most recent call last):
        ...
    fedmf.errors.ConfigError: ... exists already and is not replaced. ...
    """
    require_free(path)
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _nameless(path.parent) as (handle, source):
                with open(handle, "wb", closefd=False) as file:
                    yield file
                    file.flush()
                    os.fchmod(handle, mode)
                    os.fsync(handle)
                # Unlike a renaming, a link cannot replace a file.
                os.link(source, path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
            _made_durable(folder, path)
        finally:
            os.close(folder)
    except FileExistsError:
        require_free(path)
        raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}.") from None


@contextmanager
def _nameless(folder: Path) -> Iterator[tuple[int, str]]:
    """A descriptor of a new file, and what can be linked to: without a name, so that a kill leaves nothing.

    Where the file system has no such files it has a name of its own, which a kill may leave.
    """
    handle = -1
    with suppress(AttributeError, OSError):  # not Linux; not this file system
        handle = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    source = f"/proc/self/fd/{handle}"
    named = handle < 0 or not os.path.exists(source)
    if named:
        if handle >= 0:
            os.close(handle)
        handle, source = tempfile.mkstemp(prefix=".fedmf-", dir=folder)
    try:
        yield handle, os.path.abspath(source)
    finally:
        os.close(handle)
        if named:
            os.unlink(source)


def _made_durable(folder: int, path: Path) -> None:
    """Make the new name durable, or take it back."""
    try:
        os.fsync(folder)
    except OSError:
        try:
            path.unlink()
        except OSError:
            raise ConfigError(
                f"{path} is whole, but its disk does not say that its name is there to stay. Check the disk."
            ) from None
        raise
