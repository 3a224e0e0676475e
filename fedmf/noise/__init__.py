"""Keyed Gaussian noise and its streaming correlation: z(t, i) from ChaCha20, then [C⁻¹z]_t round by round.

Kernels and streams are loaded when they are asked for; keys need no torch.
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily
from fedmf.noise.key import KEY_HEADER, Domain, NoiseKey
from fedmf.noise.schedule import FRESH_BYTES, KeySchedule

if TYPE_CHECKING:
    from fedmf.noise.row_pass import TileWork
    from fedmf.noise.source import GaussianSource
    from fedmf.noise.stream import NoiseStream
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "FRESH_BYTES",
    "KEY_HEADER",
    "Domain",
    "GaussianSource",
    "KeySchedule",
    "NoiseKey",
    "NoiseStream",
    "TileWork",
]
