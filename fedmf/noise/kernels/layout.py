"""Where the bits of z(t, i) lie in the keystream; processors and graphics cards follow the same layout."""

from __future__ import annotations

from typing import Final

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
