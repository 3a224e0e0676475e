"""What is kept of every release for canaries: its sum along each one's direction."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import ConfigError
from fedmf.records import write_durably

#: Float64, little-endian: n rows of m numbers, NaN where nothing was released yet.
CANARY_ROWS: Final = "canaries.rows"


class CanaryRows:
    """A file of n rows of m numbers, each written before its round is committed.

    A round that was not committed is written again when it is released, so rows below the rounds released
    are those of the released models.

    Args:
        folder: the run directory.
        rounds: n.
        count: m.
    """

    def __init__(self, folder: Path, rounds: int, count: int) -> None:
        self._path, self._rounds, self._count = folder / CANARY_ROWS, rounds, count

    def create(self) -> None:
        """Write the file, every number NaN."""
        write_durably(self._path, np.full((self._rounds, self._count), np.nan, "<f8").tobytes())

    def put(self, t: int, row: NDArray[np.float64]) -> None:
        """Keep row t, durably.

        Raises:
            OSError: the disk failed.
        """
        content = row.astype("<f8").tobytes()
        file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.pwrite(file, content, t * len(content)) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        finally:
            os.close(file)

    def released(self, rounds: int) -> NDArray[np.float64]:
        """The rows of so many rounds, shape (rounds, m).

        Raises:
            ConfigError: the file is missing or of another size.
        """
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}.") from None
        if len(content) != 8 * self._rounds * self._count:
            raise ConfigError(
                f"{self._path} must hold {self._rounds} rows of {self._count} numbers; it has "
                f"{len(content)} bytes."
            )
        return np.frombuffer(content, "<f8").reshape(self._rounds, self._count)[:rounds].copy()
