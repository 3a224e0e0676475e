"""Clipping to an exact bound, and integer sums of clipped updates."""

from fedmf.clipping.bounded_add import FRACTION_BITS
from fedmf.clipping.clipped_rows import ClippedRows, clip_factors, clip_to_fixed_point
from fedmf.clipping.clipped_sum import ClippedSum, SumSpec
from fedmf.clipping.features import fixed_point_energies
from fedmf.clipping.memory import PART, copied_vector, in_parts, new_vector
from fedmf.clipping.user_statistics import SIGNS, UserScalar

__all__ = [
    "FRACTION_BITS",
    "PART",
    "SIGNS",
    "ClippedRows",
    "ClippedSum",
    "SumSpec",
    "UserScalar",
    "clip_factors",
    "clip_to_fixed_point",
    "copied_vector",
    "fixed_point_energies",
    "in_parts",
    "new_vector",
]
