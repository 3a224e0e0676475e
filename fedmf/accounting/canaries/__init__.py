"""Canaries in a run: how many, in which rounds they take part, and what guessing their coins shows."""

from fedmf.accounting.canaries.bound import CONFIDENCE, CanaryBound, canary_bound, canary_power
from fedmf.accounting.canaries.part import canaries_part, canaries_words
from fedmf.accounting.canaries.patterns import SignedPattern, spread_patterns, worst_from
from fedmf.accounting.canaries.scores import CanaryScores, canary_scores
from fedmf.accounting.canaries.table import Canaries

__all__ = [
    "CONFIDENCE",
    "Canaries",
    "CanaryBound",
    "CanaryScores",
    "SignedPattern",
    "canaries_part",
    "canaries_words",
    "canary_bound",
    "canary_power",
    "canary_scores",
    "spread_patterns",
    "worst_from",
]
