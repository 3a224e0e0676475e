"""Keyed Gaussian noise as integers, and its correlation: row t of C⁻¹z round by round.

Kernels and streams are loaded when they are asked for; keys need no torch.
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily
from fedmf.noise.key import KEY_HEADER, Domain, NoiseKey
from fedmf.noise.schedule import FRESH_BYTES, KeySchedule

if TYPE_CHECKING:
    from fedmf.noise.innovations import Innovations
    from fedmf.noise.stream import NoiseStream
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "FRESH_BYTES",
    "KEY_HEADER",
    "Domain",
    "Innovations",
    "KeySchedule",
    "NoiseKey",
    "NoiseStream",
]
