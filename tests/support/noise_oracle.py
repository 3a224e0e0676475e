"""z(t, i) once more, from RFC 8439 and the documented layout in plain Python and mpmath; imports no fedmf."""

from __future__ import annotations

import struct
from functools import lru_cache

import mpmath

MASK = 0xFFFFFFFF


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439 §2.3 in plain Python."""
    initial = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    initial += struct.unpack("<3I", nonce)
    state = list(initial)

    def rotate(value: int, count: int) -> int:
        return ((value << count) | (value >> (32 - count))) & MASK

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & MASK
            state[z] = rotate(state[z] ^ state[x], turn)

    for _ in range(10):
        for i in range(4):
            quarter(i, i + 4, i + 8, i + 12)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((a + b) & MASK for a, b in zip(state, initial, strict=True)))


def pair(radius: int, refinement: int, angle: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """(r cos φ, r sin φ) to 40 digits from a radius word, 64 refinement bits and an angle word."""
    with mpmath.workdps(40):
        if radius < 2**16:
            u = mpmath.mpf(2 * (radius * 2**64 + refinement) + 1) / 2**97
        else:
            u = mpmath.mpf(2 * radius + 1) / 2**33
        r = mpmath.sqrt(-2 * mpmath.log(u))
        phi = 2 * mpmath.pi * mpmath.mpf(2 * angle + 1) / 2**33
        return r * mpmath.cos(phi), r * mpmath.sin(phi)


@lru_cache(maxsize=4096)
def _block(key: bytes, tag: int, t: int, counter: int) -> bytes:
    return chacha20_block(key, counter, struct.pack("<IQ", tag, t))


def normal(key: bytes, domain: int, t: int, i: int) -> float:
    """z(t, i)."""
    words = struct.unpack("<16I", _block(key, domain, t, i // 16))
    extra = struct.unpack("<8Q", _block(key, domain | 1 << 31, t, i // 16))
    k = i % 8
    return float(pair(words[k], extra[k], words[8 + k])[i % 16 // 8])
