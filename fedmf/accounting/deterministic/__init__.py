"""Upper bounds on δ of Balls-in-Bins without random numbers."""

from fedmf.accounting.deterministic.bound import DeterministicNoise, deterministic_delta, deterministic_noise
from fedmf.accounting.deterministic.circular import CircularChain
from fedmf.accounting.deterministic.conditional import ConditionalMoments
from fedmf.accounting.deterministic.independent import EqualBins
from fedmf.accounting.deterministic.overlaps import BinOverlaps

__all__ = [
    "BinOverlaps",
    "CircularChain",
    "ConditionalMoments",
    "DeterministicNoise",
    "EqualBins",
    "deterministic_delta",
    "deterministic_noise",
]
