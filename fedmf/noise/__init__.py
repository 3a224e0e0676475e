"""Keyed Gaussian noise and its streaming correlation: z(t, i) from ChaCha20, then [C⁻¹z]_t round by round."""

from fedmf.noise.domain import Domain
from fedmf.noise.kernels import MAX_DIMENSION
from fedmf.noise.key import KEY_HEADER, NoiseKey
from fedmf.noise.rows import BlockedNoise, NoiseStorage, NoiseStream
from fedmf.noise.schedule import KeySchedule
from fedmf.noise.source import GaussianSource

__all__ = [
    "KEY_HEADER",
    "MAX_DIMENSION",
    "BlockedNoise",
    "Domain",
    "GaussianSource",
    "KeySchedule",
    "NoiseKey",
    "NoiseStorage",
    "NoiseStream",
]
