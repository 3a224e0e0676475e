"""Clipping to an exact bound, and integer sums of clipped updates."""

from fedmf.training.clipping.counted_sum import CountedSum
from fedmf.training.clipping.energies import fixed_point_energies
from fedmf.training.clipping.fixed_point import FRACTION_BITS, FixedPointSum, clip, clip_to_fixed_point
from fedmf.training.clipping.memory import PART, copied_vector, empty_vector
from fedmf.training.clipping.pair_sum import ClippedSums, FixedPointPair
from fedmf.training.clipping.rows import ClippedRows
from fedmf.training.clipping.update_sum import UpdateSum

__all__ = [
    "FRACTION_BITS",
    "PART",
    "ClippedRows",
    "ClippedSums",
    "CountedSum",
    "FixedPointPair",
    "FixedPointSum",
    "UpdateSum",
    "clip",
    "clip_to_fixed_point",
    "copied_vector",
    "empty_vector",
    "fixed_point_energies",
]
