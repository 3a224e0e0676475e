"""Moments of a stream without an end: a number of rows of a user for life, and time cut into segments."""

from fedmf.moments.unbounded.lifetime import ENDLESS, Lifetime
from fedmf.moments.unbounded.segments import Growing, SegmentMechanisms, Segments, Steady
from fedmf.moments.unbounded.unbounded_stream import UnboundedStream
from fedmf.moments.unbounded.variances import GrowingErrors, ReleaseErrors, SteadyErrors

__all__ = [
    "ENDLESS",
    "Growing",
    "GrowingErrors",
    "Lifetime",
    "ReleaseErrors",
    "SegmentMechanisms",
    "Segments",
    "Steady",
    "SteadyErrors",
    "UnboundedStream",
]
