"""Canaries in a run: what they add to its sums, what is kept of releases for them, and what that shows."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.parts.canaries.chosen import (
        CANARY_ROWS,
        CONFIDENCE,
        Canaries,
        CanaryBound,
        canary_bound,
        canary_power,
    )
    from fedmf.parts.canaries.team import CanaryTeam, coins_of
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "CANARY_ROWS",
    "CONFIDENCE",
    "Canaries",
    "CanaryBound",
    "CanaryTeam",
    "canary_bound",
    "canary_power",
    "coins_of",
]
