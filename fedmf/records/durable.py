"""The one way in which a file is replaced: wholly, durably, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["replace_durably", "sync_directory", "write_durably"]


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it holds either its old content or the new, never a part."""
    replace_durably(path, lambda file: file.write(content))


def replace_durably(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """See `write_durably`; the content is written by a function, piece by piece if it likes."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
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
