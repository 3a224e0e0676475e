"""Keyed Gaussian noise and its streaming correlation: z(t, i) from ChaCha20, then [C⁻¹z]_t round by round."""

from fedmf.noise.blocks import BlockedNoise
from fedmf.noise.key import NoiseKey
from fedmf.noise.source import MAX_DIMENSION, Domain, GaussianSource
from fedmf.noise.stream import CorrelatedNoise, HorizonExceededError

__all__ = [
    "MAX_DIMENSION",
    "BlockedNoise",
    "CorrelatedNoise",
    "Domain",
    "GaussianSource",
    "HorizonExceededError",
    "NoiseKey",
]
