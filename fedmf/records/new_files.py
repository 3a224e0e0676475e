"""Files that a command writes where its caller asks: whole or not at all, and never over another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedmf.errors import ConfigError
from fedmf.records.durable import sync_directory

__all__ = ["new_file", "require_free"]


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
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "wb") as file:
                yield file
                file.flush()
                os.fchmod(handle, mode)
                os.fsync(handle)
            os.link(partial, path)  # unlike a renaming, this cannot replace a file
        finally:
            os.unlink(partial)
        sync_directory(path.parent)
    except FileExistsError:
        require_free(path)
        raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}.") from None
