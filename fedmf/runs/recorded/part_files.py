"""What parts of a run keep in its directory, beside the ledger."""

from __future__ import annotations

import os
from pathlib import Path

from fedmf.errors import ConfigError, LedgerError
from fedmf.parts import FileRow
from fedmf.records import write_at


def read_of_part(path: Path, name: str) -> bytes:
    """A file of a part.

    Args:
        path: the run directory.
        name: of the file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path / name}: {error.strerror}.") from None


def keep_of_part(path: Path, row: FileRow) -> None:
    """Write a row at its place, durably.

    Raises:
        LedgerError: the disk failed; nothing was committed.
    """
    try:
        file = os.open(path / row.name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_at(file, row.content, row.at)
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        reason = f"cannot write {row.name}: {error.strerror}. Nothing was released."
        raise LedgerError(reason) from None
