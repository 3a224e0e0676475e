"""Canaries in a run: how many, in which rounds they take part, and what guessing their coins shows."""

from fedmf.accounting.canaries.part import (
    CONFIDENCE,
    Canaries,
    CanaryBound,
    canaries_part,
    canaries_words,
    canary_bound,
    canary_power,
)
from fedmf.accounting.canaries.scores import (
    CanaryScores,
    SignedPattern,
    canary_scores,
    spread_patterns,
    worst_from,
)

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
