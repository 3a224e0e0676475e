"""Upper bounds on δ of Balls-in-Bins without random numbers."""

from fedmf.accounting.deterministic.bound import DeterministicNoise, deterministic_delta, deterministic_noise
from fedmf.accounting.deterministic.independent import EqualBins
from fedmf.accounting.deterministic.overlaps import BinOverlaps

__all__ = [
    "BinOverlaps",
    "DeterministicNoise",
    "EqualBins",
    "deterministic_delta",
    "deterministic_noise",
]
