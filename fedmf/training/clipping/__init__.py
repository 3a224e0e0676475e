"""Clipping to an exact bound, and integer sums of clipped updates."""

from fedmf.training.clipping.energies import fixed_point_energies
from fedmf.training.clipping.fixed_point import ClippedSums, FixedPointSum
from fedmf.training.clipping.integers import FRACTION_BITS, clip, clip_to_fixed_point
from fedmf.training.clipping.kernel import clip_row, partial_sums
from fedmf.training.clipping.memory import PART, ReusedVectors, copied_vector, empty_vector
from fedmf.training.clipping.merge import Into
from fedmf.training.clipping.rows import ClippedRows, UpdateSum
from fedmf.training.clipping.statistics import SIGNS, RowStatistic, Statistic

__all__ = [
    "FRACTION_BITS",
    "PART",
    "SIGNS",
    "ClippedRows",
    "ClippedSums",
    "FixedPointSum",
    "Into",
    "ReusedVectors",
    "RowStatistic",
    "Statistic",
    "UpdateSum",
    "clip",
    "clip_row",
    "clip_to_fixed_point",
    "copied_vector",
    "empty_vector",
    "fixed_point_energies",
    "partial_sums",
]
