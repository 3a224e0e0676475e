"""Canaries in a run: what they add to its sums, what is kept of releases for them, and what that shows."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.runs.canaries.finding import CanaryFinding, canary_finding
    from fedmf.runs.canaries.team import CANARY_ROWS, CanaryRows, CanaryTeam, coins_of
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "CANARY_ROWS",
    "CanaryFinding",
    "CanaryRows",
    "CanaryTeam",
    "canary_finding",
    "coins_of",
]
