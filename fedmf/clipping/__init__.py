"""Clipping to an exact bound, and integer sums of clipped updates."""

from fedmf.clipping.features import fixed_point_energies
from fedmf.clipping.fixed_point import ClippedRows, ClippedSums, FixedPointSum
from fedmf.clipping.integers import clip, clip_to_fixed_point
from fedmf.clipping.memory import PART, copied_vector, in_parts, new_vector
from fedmf.clipping.merge import FRACTION_BITS
from fedmf.clipping.statistics import SIGNS, Statistic

__all__ = [
    "FRACTION_BITS",
    "PART",
    "SIGNS",
    "ClippedRows",
    "ClippedSums",
    "FixedPointSum",
    "Statistic",
    "clip",
    "clip_to_fixed_point",
    "copied_vector",
    "fixed_point_energies",
    "in_parts",
    "new_vector",
]
