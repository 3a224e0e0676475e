"""The secret from which all noise of a run is derived, and the nonces that keep its uses apart.

Rows of noise, cohorts, signatures of records and the keys of single openings come from one key. No
two of these uses share a block of keystream or a sub-key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from enum import IntEnum
from typing import Final, NoReturn, Self, final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
NONCE_BYTES = 12
KEY_HEADER = "fedmf noise key, version 1"
_TEXT = re.compile(
    KEY_HEADER + r"\nkind: (private|public)\nfingerprint: ([0-9a-f]{16})\nkey: ([0-9a-f]{64})\n"
)
_SEED_LABEL = b"fedmf noise key from seed, version 1\x00"
_FINGERPRINT_LABEL = b"fedmf noise key fingerprint, version 1\x00"
_SUBKEY_LABEL = b"fedmf sub-key, version 1\x00"

_MORE_BITS: Final = 1 << 31
#: Domains of statistics have this bit; those that are numbered here do not.
_PART: Final = 1 << 30


class Domain(IntEnum):
    """The purposes of noise; different domains never share a keystream block.

    >>> norms = Domain.of_statistic("norms")
    >>> norms == Domain.of_statistic("norms"), norms == Domain.of_statistic("counts")
    (True, False)
    """

    TRAINING = 1
    FIRST_MOMENT = 2
    SECOND_MOMENT = 3
    COHORTS = 4

    @classmethod
    def of_statistic(cls, name: str) -> Self:
        """Return the domain of a named statistic: 30 bits of the SHA-256 of its name."""
        digest = hashlib.sha256(b"fedmf part: " + name.encode()).digest()
        return cls(_PART | int.from_bytes(digest[:4], "little") % _PART)

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Return the member for the number of a statistic's domain; `Domain(value)` calls it."""
        if not isinstance(value, int) or not _PART <= value < _MORE_BITS:
            return None
        member = int.__new__(cls, value)
        member._name_ = f"PART_{value - _PART:08x}"
        member._value_ = value
        return member


def nonce(domain: Domain, t: int) -> bytes:
    """Return the 12-byte nonce of round t: domain (32 bits) ‖ t (64 bits), both little-endian.

    Raises:
        ValueError: t is not an integer with 0 ≤ t < 2⁶⁴.
    """
    return _nonce(int(domain), t)


def more_bits_nonce(domain: Domain, t: int) -> bytes:
    """Return the nonce of further bits for round t: as `nonce`, with bit 31 of the domain set.

    Raises:
        ValueError: t is not an integer with 0 ≤ t < 2⁶⁴.
    """
    return _nonce(int(domain) | _MORE_BITS, t)


def _nonce(tag: int, t: int) -> bytes:
    if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < 2**64:
        raise ValueError(f"t (round) must satisfy 0 <= t < 2^64; got {t!r}.")
    return tag.to_bytes(4, "little") + t.to_bytes(8, "little")


@final
class NoiseKey:
    """A 256-bit ChaCha20 key that opens streams of noise and is never shown.

    Privacy rests on it: anyone who knows the key can subtract the noise. Make one with `from_os` or
    with `from_seed` (reproducible and therefore *not private*), and use it for one run only: two
    runs with one key add the same noise. `fedmf.ledger.durable_files` keeps it in a file.

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
        """Wrap raw key bytes; prefer `from_os` or `from_seed`.

        Args:
            secret: 32 bytes.
            public: True if the bytes can be guessed or are published, so that nothing is private.

        Raises:
            ValueError: not exactly 32 bytes.
        """
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
            size = type(secret).__name__
            if isinstance(secret, bytes):
                size = f"{len(secret)} bytes"
            del secret  # so that no traceback holds it
            raise ValueError(f"key (noise key) must be {KEY_BYTES} bytes; got {size}.")
        self.__secret = secret
        self._public = bool(public)
        self._fingerprint = hashlib.sha256(_FINGERPRINT_LABEL + secret).hexdigest()[:16]

    @classmethod
    def from_os(cls) -> NoiseKey:
        """Return a new key from the operating system's random number generator."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> NoiseKey:
        """Return a reproducible key for tests; `public` is True, so it gives no privacy.

        Args:
            seed: a non-negative integer of any size; the key is SHA-256(label ‖ decimal digits).

        Raises:
            ValueError: not a non-negative integer.
        """
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(
                f"seed (of the noise key) must be a non-negative integer; got {seed!r}."
            )
        return cls(hashlib.sha256(_SEED_LABEL + str(seed).encode()).digest(), public=True)

    @classmethod
    def from_secret_text(cls, text: bytes) -> NoiseKey | None:
        """Return the key that `secret_text` wrote; None if the text is another or damaged.

        It does not raise, so that no traceback holds the text.
        """
        match = _TEXT.fullmatch(text.decode("ascii", errors="replace"))
        if match is None:
            return None
        key = cls(bytes.fromhex(match[3]), public=match[1] == "public")
        if key.fingerprint != match[2]:
            return None
        return key

    def secret_text(self) -> bytes:
        """Return the key as four lines of ASCII for a key file, with its kind and fingerprint.

        These bytes are the key: write them to the file and keep no other reference.
        """
        kind = "public" if self._public else "private"
        head = f"{KEY_HEADER}\nkind: {kind}\nfingerprint: {self.fingerprint}\n"
        return f"{head}key: {self.__secret.hex()}\n".encode()

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the key and are safe to print.

        They are the beginning of a labeled SHA-256.
        """
        return self._fingerprint

    @property
    def public(self) -> bool:
        """True for keys from a seed; a run with such a key is not private.

        Anybody can draw its noise again.
        """
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

    def subkey(self, purpose: str) -> bytes:
        """Return 32 bytes for a purpose other than noise.

        They are HKDF-SHA256 (RFC 5869) of the key, without salt, with info = label ‖ purpose.

        Args:
            purpose: printable ASCII, such as "records", or "opening" and random bits in hex.

        Returns:
            Bytes as secret as the key: for a public key they are public.

        Raises:
            ValueError: purpose is empty or not printable ASCII.

        Guarantees:
            The same bytes for the same key and purpose. Bytes for different purposes, and the
            keystreams of noise and cohorts, tell nothing about each other or the key to anyone who
            cannot tell HMAC-SHA256 and ChaCha20 under one key from random functions.

        >>> key = NoiseKey.from_seed(1)
        >>> records = key.subkey("records")
        >>> records == key.subkey("records"), records == key.subkey("publication")
        (True, False)
        """
        if (
            not isinstance(purpose, str)
            or not purpose
            or not (purpose.isascii() and purpose.isprintable())
        ):
            raise ValueError(
                f"purpose (of a sub-key) must be printable ASCII and not empty; got {purpose!r}."
            )
        info = _SUBKEY_LABEL + purpose.encode()
        return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(self.__secret)

    def opening(self, salt: bytes) -> NoiseKey:
        """Return the key of the noise that one opening of a run adds.

        A public key serves all openings itself.

        Args:
            salt: random bytes of the opening, which no two openings share.

        Guarantees:
            Keys of different openings are independent for anyone who cannot tell HMAC-SHA256 from a
            random function, as for `subkey`.
        """
        if self._public:
            return self
        return NoiseKey(self.subkey("opening " + salt.hex()))

    def cohort_seed(self) -> int:
        """Return the 256-bit seed of random cohorts, from a keystream that no noise uses.

        It is as secret as the noise, and a resumed run gets it again from its key file.
        """
        keystream = self.keystream(nonce(Domain.COHORTS, 0), 0)
        return int.from_bytes(keystream.update(bytes(32)), "little")

    def __repr__(self) -> str:
        return f"NoiseKey(fingerprint={self.fingerprint!r}, public={self._public})"

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
