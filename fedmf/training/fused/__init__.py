"""Local training in one compiled call a user, weights in the processor's cache."""

from fedmf.training.fused.program import FusedProgram

__all__ = ["FusedProgram"]
