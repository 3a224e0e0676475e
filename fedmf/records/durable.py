"""The one way in which a file is replaced: wholly, durably, or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file so that after a crash it holds either its old content or the new, never a part.

    Args:
        path: where.
        content: all of it.
        mode: permissions of the file, less what the process masks; by default nobody else may read it.
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
    """Write a file in place; after a crash it may hold a part. For content that nothing refers to yet."""
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, write_at(descriptor, content, 0))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        sync_directory(path.parent)


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


def write_at(descriptor: int, content: bytes | memoryview, at: int) -> int:
    """Write all of some bytes at a place of a file, not flushed; how many there were."""
    view, done = memoryview(content), 0
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
