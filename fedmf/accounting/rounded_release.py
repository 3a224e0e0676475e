"""What a run releases whose stored noise is rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.release import RunRelease
from fedmf.factorization import Branches, Sensitivity
from fedmf.participation import Participation

__all__ = ["RoundedRelease"]


@final
@dataclass(frozen=True, eq=False)
class RoundedRelease(RunRelease):
    """A release whose stored noise is rounded, which moves it by W standard deviations at most.

    The z have F = 1/(1 − W·σ) times the standard deviation that is accounted for. A user whose pattern has
    the sensitivity s_π is then seen with μ ≤ s_π/(F·σ·s) + W = s̃_π/(σ·s), s the planned sensitivity, with

        s̃_π = s_π/F + (1 − 1/F)·s,

    which is s for the worst pattern: see docs/noise-streams.md. Before the first participation nothing of the
    user can move any rounding. Of a pair, both noises are F times as large and the sums' is rounded:
    √((A/F + W)² + (B/F)²) ≤ √(A² + B²)/F + W. Rounding moves m continuations of one run by √m·W at most.

    Args:
        exact: the release without rounding.
        inflation: F ≥ 1.
        planned: s.
    """

    exact: RunRelease
    inflation: float
    planned: float

    @property
    def rounds(self) -> int:
        """n."""
        return self.exact.rounds

    def stated(self, participation: Participation) -> Sensitivity:
        """See `RunRelease.stated`."""
        exact = self.exact.stated(participation)
        return Sensitivity(
            float(self._moved(np.array(exact.value))),
            "upper_bound",
            f"{exact.case}; rounding of stored noise added",
        )

    def leading(self, rounds: int) -> RoundedRelease:
        """See `RunRelease.leading`."""
        return RoundedRelease(self.exact.leading(rounds), self.inflation, self.planned)

    def of_equal_length(
        self, rows: NDArray[np.integer], released_rounds: int | Branches | None = None
    ) -> NDArray[np.float64]:
        """See `RunRelease.of_equal_length`."""
        ends = released_rounds.ends if isinstance(released_rounds, Branches) else 1
        return self._moved(self.exact.of_equal_length(rows, released_rounds), ends)

    def _moved(self, values: NDArray[np.float64], continuations: int = 1) -> NDArray[np.float64]:
        rounding = math.sqrt(continuations) * (1 - 1 / self.inflation) * self.planned
        moved = values / self.inflation + rounding
        return np.where(values > 0, moved, 0.0)
