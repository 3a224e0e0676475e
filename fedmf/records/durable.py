"""The one way in which a file is replaced: wholly, durably, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["replace_durably", "sync_directory", "write_durably"]


def write_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file so that after a crash it holds either its old content or the new, never a part.

    Args:
        path: where.
        content: all of it.
        mode: permissions of the file, less what the process masks.
    """
    replace_durably(path, lambda file: file.write(content), mode)


def replace_durably(path: Path, write: Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """See `write_durably`; the content is written by a function, piece by piece if it likes."""
    partial = path.with_name(path.name + ".partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with open(os.open(partial, flags, mode), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
