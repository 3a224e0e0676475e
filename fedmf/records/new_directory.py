"""Directories that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
