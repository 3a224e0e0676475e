"""Rows of correlated noise, streamed from keyed normals."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.noise.rows.blocked_noise import BlockedNoise
    from fedmf.noise.rows.noise_stream import HorizonExceededError, NoiseStream
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "BlockedNoise",
    "HorizonExceededError",
    "NoiseStream",
]
