"""The file that holds the key of a run or stream: for its owner only, durable, and never written over."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from fedmf.errors import ConfigError
from fedmf.noise import KEY_HEADER, NoiseKey
from fedmf.records.durable import sync_directory

_MAX_BYTES: Final = 4096


def save_key(path: Path, key: NoiseKey) -> None:
    """Write the key to a new file of mode 0600, flushed to disk together with its directory entry.

    Raises:
        FileExistsError: something is at `path` already; a key is never overwritten.
        OSError: the file cannot be written; nothing is left behind.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # whatever the umask is
            file.write(key.secret_text())
            file.flush()
            os.fsync(descriptor)
        sync_directory(path.parent)
    except BaseException:
        path.unlink()
        raise


def load_key(path: Path) -> NoiseKey:
    """Read what `save_key` wrote, with its public or private standing.

    Args:
        path: the key file.

    Raises:
        ConfigError: the file cannot be read, others can read or write it (checked on the open file), or it is
            damaged. The message is one line and does not show the key.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"cannot use noise key {path}: mode (of the key file) must be 0600; got {mode:04o}. "
                    "Others may have read this key: start a new run with a new key."
                )
            key = NoiseKey.from_secret_text(file.read(_MAX_BYTES))  # no name: tracebacks show names
    except OSError as error:
        raise ConfigError(f"cannot use noise key {path}: {error.strerror or error}.") from None
    if key is None:
        raise ConfigError(
            f"file (key) must hold an intact '{KEY_HEADER}'; got something else at {str(path)!r}. "
            "Restore it from a copy; without it the run cannot continue."
        )
    return key
