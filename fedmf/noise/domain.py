"""What a stream of noise is for, and the nonces by which uses of one key never meet."""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import Final, Self

_REFINEMENT: Final = 1 << 31
#: Domains of parts have this bit, those that are numbered here have not.
_PART: Final = 1 << 30


class Domain(IntEnum):
    """What the noise is for; different domains never share a keystream block.

    >>> Domain.of_part("norms") == Domain.of_part("norms") != Domain.of_part("counts")
    True
    """

    TRAINING = 1
    FIRST_MOMENT = 2
    SECOND_MOMENT = 3
    COHORTS = 4
    CLIPPING = 6

    @classmethod
    def of_part(cls, name: str) -> Self:
        """That of a quantity which has a name and no number: 30 bits of its name's SHA-256."""
        digest = hashlib.sha256(b"fedmf part: " + name.encode()).digest()
        return cls(_PART | int.from_bytes(digest[:4], "little") % _PART)

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or not _PART <= value < _REFINEMENT:
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = f"PART_{value - _PART:08x}", value
        return member


def nonce(domain: Domain, t: int) -> bytes:
    """The 12-byte nonce of round t: domain (32 bits, little-endian) ‖ t (64 bits, little-endian).

    Raises:
        ValueError: t is not an integer with 0 ≤ t < 2⁶⁴.
    """
    return _nonce(int(domain), t)


def refinement_nonce(domain: Domain, t: int) -> bytes:
    """The nonce of the refinement stream of round t: as `nonce`, with bit 31 of the domain set.

    Raises:
        ValueError: t is not an integer with 0 ≤ t < 2⁶⁴.
    """
    return _nonce(int(domain) | _REFINEMENT, t)


def _nonce(tag: int, t: int) -> bytes:
    if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < 2**64:
        raise ValueError(f"t (round) must satisfy 0 <= t < 2^64; got {t!r}.")
    return tag.to_bytes(4, "little") + t.to_bytes(8, "little")
