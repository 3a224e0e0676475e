"""The clip norm of a run: one for all rounds, or one that follows a quantile of users' norms."""

from fedmf.parts.clip_norm.course import NormCourse
from fedmf.parts.clip_norm.rules import CLIPPINGS, Clipping, FixedClipping, QuantileClipping

__all__ = ["CLIPPINGS", "Clipping", "FixedClipping", "NormCourse", "QuantileClipping"]
