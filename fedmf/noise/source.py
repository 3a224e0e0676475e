"""z(t, i): standard normal variables as a keyed function of round and element."""

from __future__ import annotations

import math
import threading
from enum import IntEnum
from typing import Final

import torch

from fedmf.noise.key import NoiseKey

__all__ = ["MAX_DIMENSION", "Domain", "GaussianSource"]

NORMALS_PER_BLOCK: Final = 8
MAX_DIMENSION: Final = NORMALS_PER_BLOCK * 2**32 - 1
"""Largest d: beyond it the 32-bit block counter of ChaCha20 would wrap and repeat noise."""

TILE: Final = 1 << 17
"""Elements transformed at once: the scratch memory is 4 MiB whatever d is."""

GROUP: Final = 1 << 10
"""Requests are widened to aligned groups, so that an element always meets the same vector instructions."""

_MAGNITUDE_MASK: Final = 2**63 - 1


class Domain(IntEnum):
    """What the noise is for; different domains never share a keystream block."""

    TRAINING = 1
    FIRST_MOMENT = 2
    SECOND_MOMENT = 3
    COHORTS = 4


class GaussianSource:
    """Independent N(0, 1) variables z(t, i) for rounds t and elements 0 ≤ i < d, with random access.

    The 96-bit ChaCha20 nonce is domain (32 bits) ‖ t (64 bits), little-endian, and the 32-bit block
    counter is ⌊i/8⌋. A 64-byte block is eight little-endian words w_0 … w_7; each pair
    (w_{2j}, w_{2j+1}) gives two variables by Box–Muller in float64:

        u = ((w_{2j} mod 2⁶³) + ½)·2⁻⁶³,   φ = π·2⁻⁶³·int64(w_{2j+1}),   r = √(−2 ln u),
        z(t, 8c + 2j) = r·cos φ,   z(t, 8c + 2j + 1) = r·sin φ.

    So |z| reaches √(128 ln 2) = 9.42 and u is never 0.

    Args:
        key: the run's key.
        dimension: d, 1 ≤ d < 2³⁵.
        domain: separates uses of one key.

    Raises:
        ValueError: d or the domain is out of range.

    Guarantees:
        z(t, i) depends on (key, domain, t, i) only: not on d, nor on how a vector is cut into requests,
        nor on the order of requests, nor on the number of threads, to the last bit. Across processor
        types and builds of torch the last bits of log, cos and sin may differ.
        Different (domain, t, ⌊i/8⌋) use different keystream blocks.
        Calls from several threads are safe.

    References:
        Nir and Langley (2018), RFC 8439, sections 2.3-2.4. Box and Muller (1958), "A Note on the
        Generation of Random Normal Deviates".

    >>> source = GaussianSource(NoiseKey.from_seed(0), dimension=20)
    >>> whole = source.block(3, 0, 20)
    >>> torch.equal(torch.cat([source.block(3, 0, 7), source.block(3, 7, 20)]), whole)
    True
    """

    def __init__(self, key: NoiseKey, dimension: int, domain: Domain = Domain.TRAINING) -> None:
        if (
            isinstance(dimension, bool)
            or not isinstance(dimension, int)
            or not 1 <= dimension <= MAX_DIMENSION
        ):
            raise ValueError(
                f"d (dimension) must be an integer with 1 <= d < 2^35; got {dimension!r}. "
                "A longer vector would exhaust the block counter of one round."
            )
        try:
            self.domain = Domain(domain)
        except ValueError:
            known = ", ".join(f"{member.name}={member.value}" for member in Domain)
            raise ValueError(f"domain (use of the noise) must be one of {known}; got {domain!r}.") from None
        self.key = key
        self.dimension = dimension
        self._scratch = threading.local()

    def block(self, t: int, start: int, stop: int) -> torch.Tensor:
        """The variables z(t, start), …, z(t, stop − 1).

        Args:
            t: round, 0 ≤ t < 2⁶⁴.
            start: first element.
            stop: one past the last element, 0 ≤ start ≤ stop ≤ d.

        Returns:
            A new float64 tensor of shape (stop − start,) on the CPU.

        Raises:
            ValueError: t, start or stop out of range.
        """
        if not 0 <= t < 2**64:
            raise ValueError(f"t (round) must satisfy 0 <= t < 2^64; got {t}.")
        if not 0 <= start <= stop <= self.dimension:
            raise ValueError(
                f"start, stop (elements) must satisfy 0 <= start <= stop <= d = {self.dimension}; "
                f"got {start}, {stop}."
            )
        out = torch.empty(stop - start, dtype=torch.float64)
        nonce = int(self.domain).to_bytes(4, "little") + t.to_bytes(8, "little")
        at = start
        while at < stop:
            base = at - at % GROUP
            end = min(stop, base + TILE)
            tile = self._tile(nonce, base, end - base)
            out[at - start : end - start] = tile[at - base : end - base]
            at = end
        return out

    def _tile(self, nonce: bytes, base: int, count: int) -> torch.Tensor:
        """At least `count` variables from the aligned element `base`: a view of this thread's scratch."""
        scratch = self._local_scratch()
        padded = -(-count // GROUP) * GROUP
        words = scratch.words[:padded]
        self.key.keystream(nonce, base // NORMALS_PER_BLOCK).update_into(
            scratch.zeros[: 8 * padded], words.numpy().data.cast("B")
        )
        return _box_muller(words, scratch)

    def _local_scratch(self) -> _Scratch:
        scratch: _Scratch | None = getattr(self._scratch, "buffers", None)
        if scratch is None:
            scratch = self._scratch.buffers = _Scratch(min(TILE, -(-self.dimension // GROUP) * GROUP))
        return scratch

    def __repr__(self) -> str:
        return f"GaussianSource({self.key!r}, dimension={self.dimension}, domain={self.domain.name})"


class _Scratch:
    """Buffers for one tile, reused so that a round does not allocate."""

    def __init__(self, count: int) -> None:
        self.zeros = memoryview(bytes(8 * count))
        self.words = torch.empty(count, dtype=torch.int64)
        self.normals = torch.empty(count, dtype=torch.float64)
        self.radius, self.angle, self.wave = torch.empty(3, count // 2, dtype=torch.float64)


def _box_muller(words: torch.Tensor, scratch: _Scratch) -> torch.Tensor:
    """Turn pairs of 64-bit words (destroyed) into pairs of N(0, 1) variables, in `scratch.normals`."""
    pairs, half = words.view(-1, 2), words.numel() // 2
    radius, angle, wave = scratch.radius[:half], scratch.angle[:half], scratch.wave[:half]
    normals = scratch.normals[: words.numel()]
    radius.copy_(pairs[:, 0].bitwise_and_(_MAGNITUDE_MASK))
    radius.add_(0.5).mul_(2.0**-63).log_().mul_(-2.0).sqrt_()
    angle.copy_(pairs[:, 1])
    angle.mul_(math.pi * 2.0**-63)
    torch.mul(radius, torch.cos(angle, out=wave), out=normals.view(-1, 2)[:, 0])
    torch.mul(radius, torch.sin(angle, out=wave), out=normals.view(-1, 2)[:, 1])
    return normals
