"""What strategy matrices the accountants of sampled cohorts cover."""

from __future__ import annotations

__all__ = ["NegativeEntriesError"]


class NegativeEntriesError(ValueError):
    """A strategy matrix with negative entries, for which no dominating pair is known."""
