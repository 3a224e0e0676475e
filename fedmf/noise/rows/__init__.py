"""Rows of correlated noise, streamed from keyed normals."""

from fedmf.noise.rows.blocked_noise import BlockedNoise
from fedmf.noise.rows.noise_stream import HorizonExceededError, NoiseStream
from fedmf.noise.rows.storage import NoiseStorage

__all__ = [
    "BlockedNoise",
    "HorizonExceededError",
    "NoiseStorage",
    "NoiseStream",
]
