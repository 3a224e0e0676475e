"""Files that a command writes where its caller asks: whole or not at all, and never over another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fedmf.errors import ConfigError


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
