"""Directories and files that appear whole or not at all, and never over another."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedmf.errors import ConfigError
from fedmf.records.durable import sync_directory


def create_directory(
    path: Path,
    what: str,
    fill: Callable[[Path], object],
    mode: int = 0o700,
    error: type[ValueError] = ConfigError,
) -> None:
    """Make a directory with everything in it that belongs there from the start.

    It is built next to its place, hidden and for its owner alone, and renamed.

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
        building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
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
        raise ConfigError(f"{path} exists already and is not replaced. Remove it or choose another name.")


@contextmanager
def new_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """A binary file that gets its name when the block ends well.

    Args:
        path: where it will be.
        mode: its permissions; by default nobody else may read it.

    Raises:
        ConfigError: there is something at that place already, or it cannot be written. What was there is as
            it was, and nothing is left next to it.

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
