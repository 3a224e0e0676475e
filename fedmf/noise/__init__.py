"""Keyed Gaussian noise and its streaming correlation: z(t, i) from ChaCha20, then [C⁻¹z]_t round by round."""

from fedmf.noise.kernels import MAX_DIMENSION, Domain
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows import BlockedNoise, NoiseStream
from fedmf.noise.source import GaussianSource

__all__ = [
    "MAX_DIMENSION",
    "BlockedNoise",
    "Domain",
    "GaussianSource",
    "NoiseKey",
    "NoiseStream",
]
