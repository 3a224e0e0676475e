"""k(t, i) once more, by 320 bits of U and V and 420 of arithmetic; imports no fedmf.

Only the raw keystream comes from a library. The layout is that of docs/theory/noise.md.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from mpmath import mp, mpf

PRECISION = 420
MORE_BITS = 1 << 31


@lru_cache(maxsize=65536)
def block(key: bytes, tag: int, t: int, counter: int) -> tuple[int, ...]:
    """Eight 64-bit words of ChaCha20 (RFC 8439): counter, then tag and t as nonce."""
    position = struct.pack("<IIQ", counter, tag, t)
    stream = Cipher(algorithms.ChaCha20(key, position), mode=None).encryptor()
    return struct.unpack("<8Q", stream.update(bytes(64)))


def bits(key: bytes, domain: int, t: int, i: int) -> tuple[int, int]:
    """The first 320 bits of U and of V for element i."""
    counter = i // 8
    j = i % 4
    first = block(key, domain, t, counter)
    more = block(key, domain | MORE_BITS, t, 4 * counter + j)
    u = first[j]
    v = first[4 + j]
    for step in range(4):
        u = u << 64 | more[step]
        v = v << 64 | more[4 + step]
    return u, v


def normal(u: int, v: int, size: int, sine: bool) -> Any:
    """N for U and V in the middle of what their first bits leave."""
    unit = mpf(2) ** -size
    radius = mp.sqrt(-2 * mp.log((u + mpf(1) / 2) * unit))
    turns = 2 * (v + mpf(1) / 2) * unit
    return radius * (mp.sinpi(turns) if sine else mp.cospi(turns))


def nearest(u: int, v: int, size: int, sine: bool, scale: float) -> int:
    """The integer nearest ρN."""
    with mp.workprec(PRECISION):
        return int(mp.nint(scale * normal(u, v, size, sine)))


def innovation(key: bytes, domain: int, t: int, i: int, scale: float) -> int:
    """k(t, i)."""
    u, v = bits(key, domain, t, i)
    return nearest(u, v, 320, i % 8 > 3, scale)


def distance_to_half(
    u: int, v: int, size: int, sine: bool, scale: float
) -> tuple[float, float, float]:
    """How far ρN is from the nearest half integer, with r and U as float."""
    with mp.workprec(PRECISION):
        x = scale * normal(u, v, size, sine)
        fraction = x - mp.floor(x)
        uniform = (u + mpf(1) / 2) * mpf(2) ** -size
        radius = mp.sqrt(-2 * mp.log(uniform))
        return float(abs(fraction - mpf(1) / 2)), float(radius), float(uniform)
