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


def load_key(path: Path, fingerprint: str | None = None) -> NoiseKey:
    """Read what `save_key` wrote, with its public or private standing.

    Args:
        path: the key file.
        fingerprint: of the key that it must hold; None if nothing is recorded.

    Raises:
        ConfigError: the file cannot be read, others can read or write it (checked on the open file), it is
            damaged, or it holds another key. The message is one line and does not show the key.
    """
    key = NoiseKey.from_secret_text(read_secret(path, "noise key", "start a new run with a new key"))
    if key is None:
        raise ConfigError(
            f"file (key) must hold an intact '{KEY_HEADER}'; got something else at {str(path)!r}. "
            "Restore it from a copy; without it the run cannot go on."
        )
    if fingerprint is not None and fingerprint != key.fingerprint:
        raise ConfigError(
            f"noise key {path} is not the key of this run: its fingerprint is {key.fingerprint}."
        )
    return key


def read_secret(path: Path, what: str, otherwise: str) -> bytes:
    """The first bytes of a key file, as many as a key of ours can have.

    Args:
        path: the file.
        what: what messages call it, such as "noise key".
        otherwise: what to do if others may have read it.

    Raises:
        ConfigError: it cannot be read, or others can read or write it (checked on the open file). The message
            is one line and shows nothing of it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"cannot use {what} {path}: mode (of the key file) must be 0600; got {mode:04o}. "
                    f"Others may have read this key: {otherwise}."
                )
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot use {what} {path}: {error.strerror or error}.") from None
