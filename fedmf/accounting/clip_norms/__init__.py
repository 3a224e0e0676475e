"""What the clip norm of a run does from round to round, and what learning it costs."""

from fedmf.accounting.clip_norms.rules import CLIPPINGS, Clipping, FixedClipping, NormCourse, QuantileClipping

__all__ = ["CLIPPINGS", "Clipping", "FixedClipping", "NormCourse", "QuantileClipping"]
