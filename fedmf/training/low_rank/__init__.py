"""Local training of users whose weights never exist."""

from fedmf.training.low_rank.program import LowRankProgram

__all__ = ["LowRankProgram"]
