"""The secret from which all noise of a run is derived."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import NoReturn, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms

__all__ = ["NoiseKey", "SecretWords"]

KEY_BYTES = 32
NONCE_BYTES = 12
_HEADER = "fedmf noise key, version 1"
_FILE = re.compile(
    rf"{re.escape(_HEADER)}\nkind: (private|public)\nfingerprint: ([0-9a-f]{{16}})\nkey: ([0-9a-f]{{64}})\n"
)
_MAX_FILE_BYTES = 4096
_SEED_LABEL = b"fedmf noise key from seed, version 1\x00"
_FINGERPRINT_LABEL = b"fedmf noise key fingerprint, version 1\x00"


@final
class NoiseKey:
    """A 256-bit ChaCha20 key that opens streams of noise and shows itself to nobody.

    Privacy rests on it: whoever knows the key can subtract the noise. Make one with `from_os` (in
    memory), `create` (in a file, for a run that must be resumable) or `from_seed` (reproducible and
    therefore *not private*), and use it for one run only: two runs with one key add the same noise.

    Guarantees:
        The key is not in `repr`, `str`, `format`, `vars`, pickles, exception messages or the local
        variables of tracebacks. Copying returns the same object. Equality takes constant time.

    >>> key = NoiseKey.from_seed(7)
    >>> key, key.public
    (NoiseKey(fingerprint='c8c00821b7e250a4', public=True), True)
    >>> NoiseKey.from_os() == NoiseKey.from_os()
    False
    """

    __slots__ = ("__secret", "_fingerprint", "_public")

    def __init__(self, secret: bytes, *, public: bool = False) -> None:
        """Wrap raw key bytes; prefer `from_os`, `create`, `load` or `from_seed`.

        Args:
            secret: 32 bytes.
            public: True if the bytes can be guessed or are published, so that nothing is private.

        Raises:
            ValueError: not exactly 32 bytes.
        """
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
            found = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
            del secret
            raise ValueError(f"key (noise key) must be {KEY_BYTES} bytes; got {found}.")
        self.__secret = secret
        self._public = bool(public)
        self._fingerprint = hashlib.sha256(_FINGERPRINT_LABEL + secret).hexdigest()[:16]

    @classmethod
    def from_os(cls) -> NoiseKey:
        """A fresh key from the operating system's random number generator."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> NoiseKey:
        """A reproducible key for tests and benchmarks; `public` is True, so it protects nobody.

        Args:
            seed: a non-negative integer of any size; the key is SHA-256(label ‖ decimal digits).

        Raises:
            ValueError: not a non-negative integer.
        """
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed (of the noise key) must be a non-negative integer; got {seed!r}.")
        return cls(hashlib.sha256(_SEED_LABEL + str(seed).encode()).digest(), public=True)

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> NoiseKey:
        """Draw a fresh key and make it durable in a new file of mode 0600 before returning it.

        Raises:
            FileExistsError: something is at `path` already; a key is never overwritten.
            OSError: the file cannot be written.
        """
        key = cls.from_os()
        key.save(path)
        return key

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NoiseKey:
        """Read a key file written by `create` or `save`, with its public or private standing.

        Raises:
            PermissionError: the file's group or others can read or write it (checked on the open file).
            ValueError: not a key file, or its key and fingerprint disagree.
            OSError: the file cannot be read.
        """
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as file:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise PermissionError(
                    f"mode (of the key file) must be 0600; got {mode:04o} at {os.fspath(path)!r}. "
                    "Others may have read this key: start a new run with a new key."
                )
            key = _parse(file.read(_MAX_FILE_BYTES))
        if key is None:
            raise ValueError(
                f"file (key) must hold an intact '{_HEADER}'; got something else at {os.fspath(path)!r}. "
                "Restore it from a copy; without it the run cannot go on."
            )
        return key

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file of mode 0600, flushed to disk together with its directory entry.

        Raises:
            FileExistsError: something is at `path` already; a key is never overwritten.
            OSError: the file cannot be written; nothing is left behind.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if os.name == "posix":
                    os.fchmod(descriptor, 0o600)  # whatever the umask is
                file.write(self.__file_text().encode())
                file.flush()
                os.fsync(descriptor)
            _fsync_directory(Path(path).parent)
        except BaseException:
            os.unlink(path)
            raise

    def __file_text(self) -> str:
        kind = "public" if self._public else "private"
        return f"{_HEADER}\nkind: {kind}\nfingerprint: {self._fingerprint}\nkey: {self.__secret.hex()}\n"

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of a labelled SHA-256: they identify the key and are safe to print."""
        return self._fingerprint

    @property
    def public(self) -> bool:
        """True for keys from a seed: anybody can regenerate the noise, so a run with it is not private."""
        return self._public

    def keystream(self, nonce: bytes, counter: int) -> CipherContext:
        """Open the ChaCha20 keystream of RFC 8439 §2.4; encrypting zeros yields it.

        Args:
            nonce: 12 bytes, distinct for distinct purposes.
            counter: block to start at, 0 ≤ counter < 2³²; a block is 64 bytes.

        Raises:
            ValueError: nonce or counter out of range.
        """
        if len(nonce) != NONCE_BYTES or not 0 <= counter < 2**32:
            raise ValueError(
                f"nonce and counter (ChaCha20 position) must be {NONCE_BYTES} bytes and 0..2^32-1; "
                f"got {len(nonce)} bytes and {counter}."
            )
        position = counter.to_bytes(4, "little") + nonce
        return Cipher(algorithms.ChaCha20(self.__secret, position), mode=None).encryptor()

    def secret_words(self) -> SecretWords:
        """The key as eight little-endian 32-bit words, for a device kernel that runs ChaCha20 itself.

        Whoever has them has the key: hand them to the kernel and keep no other reference.
        """
        return np.frombuffer(self.__secret, "<u4").astype(np.uint32).view(SecretWords)

    def __repr__(self) -> str:
        return f"NoiseKey(fingerprint={self._fingerprint!r}, public={self._public})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NoiseKey):
            return NotImplemented
        return hmac.compare_digest(self.__secret, other.__secret) and self._public == other._public

    def __hash__(self) -> int:
        return hash((NoiseKey, self._fingerprint, self._public))

    def __copy__(self) -> NoiseKey:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> NoiseKey:
        return self

    def __getstate__(self) -> NoReturn:
        raise TypeError("NoiseKey cannot be pickled: a key stays in its process and its key file.")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self.__getstate__()


class SecretWords(np.ndarray):
    """An array that does not show its elements and cannot be pickled."""

    def __repr__(self) -> str:
        return f"SecretWords({self.size} hidden)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("SecretWords cannot be pickled: a key stays in its process and its key file.")

    def __reduce__(self) -> NoReturn:
        self.__reduce_ex__(2)


def _parse(content: bytes) -> NoiseKey | None:
    """The key in a file's bytes, or None; returning rather than raising keeps the bytes out of tracebacks."""
    match = _FILE.fullmatch(content.decode("ascii", errors="replace"))
    if match is None:
        return None
    key = NoiseKey(bytes.fromhex(match[3]), public=match[1] == "public")
    return key if key.fingerprint == match[2] else None


def _fsync_directory(directory: Path) -> None:
    """Make a new directory entry durable, where the platform can open directories."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
