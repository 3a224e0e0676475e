"""Where the bits of z(t, i) lie in the keystream; processors and graphics cards follow the same layout."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = [
    "BLOCK_BYTES",
    "LARGEST",
    "MAX_DIMENSION",
    "NORMALS_PER_BLOCK",
    "PAIRS_PER_BLOCK",
    "REFINED_BELOW",
    "Domain",
    "nonce",
    "refinement_nonce",
]

BLOCK_BYTES: Final = 64
"""A ChaCha20 block: sixteen little-endian 32-bit words w_0 … w_15."""

NORMALS_PER_BLOCK: Final = 16
"""One variable per word: element i is in block ⌊i/16⌋."""

PAIRS_PER_BLOCK: Final = 8
"""Pair k has radius word w_k and angle word w_{8+k}; it gives elements 16c + k (cosine) and 16c + 8 + k."""

REFINED_BELOW: Final = 1 << 16
"""A radius word below this is followed by 64 bits from the refinement stream."""

LARGEST: Final = 11.596308
"""|z| never exceeds √(2·97·ln 2): the smallest u is 2⁻⁹⁷."""

MAX_DIMENSION: Final = NORMALS_PER_BLOCK * 2**32 - 1
"""Largest d: beyond it the 32-bit block counter of ChaCha20 would wrap and repeat noise."""

_REFINEMENT: Final = 1 << 31


class Domain(IntEnum):
    """What the noise is for; different domains never share a keystream block."""

    TRAINING = 1
    FIRST_MOMENT = 2
    SECOND_MOMENT = 3
    COHORTS = 4


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
