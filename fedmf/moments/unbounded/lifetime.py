"""What a user may do and lose in the whole life of a stream, and noise for a part of it.

docs/theory/unbounded-streams.md proves what stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from fedmf.moments.mechanism import MomentMechanism, checked_multiplier
from fedmf.participation import Participation

#: More steps than any stream takes.
ENDLESS: Final = 1 << 62
#: Numbers of participations that are all looked at; beyond, each is this much more than the one before.
_EACH: Final = 64
_GROWTH: Final = 1.05


@dataclass(frozen=True)
class Lifetime:
    """At most k rows of a user, b or more steps apart, in all time, each with an equal share of the budget.

    Whoever gave m rows, in whatever segments, is protected with μ² ≤ (m/k)/σ².

    Args:
        max_participations: k ≥ 1.
        min_separation: b ≥ 1.
        noise_multiplier: σ > 0; μ = 1/σ is what k rows cost.

    Raises:
        ValueError: a value out of its range.

    >>> life = Lifetime(max_participations=4, min_separation=10, noise_multiplier=2.0)
    >>> life.within(25)
    Participation(rounds=25, max_participations=3, min_separation=10)
    >>> life.multiplier_after(1)
    4.0
    """

    max_participations: int
    min_separation: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        checked_multiplier(self.noise_multiplier)
        assert self.participation

    @property
    def participation(self) -> Participation:
        """(n, k, b) with an n that no stream reaches."""
        return Participation(ENDLESS, self.max_participations, self.min_separation)

    def within(self, rounds: int) -> Participation:
        """What a user can do in so many steps in a row."""
        apart = min(self.min_separation, rounds)
        fits = Participation.as_many_as_fit(rounds, apart)
        return Participation(rounds, min(self.max_participations, fits.max_participations), apart)

    def contract(self, rounds: int, bands: int) -> Participation:
        """By whom to measure a mechanism: a single row where columns b apart are orthogonal, else `within`.

        Args:
            rounds: n.
            bands: p of both matrices; p ≤ b makes them so.
        """
        return Participation(rounds, 1, rounds) if bands <= self.min_separation else self.within(rounds)

    def multiplier_after(self, count: int) -> float:
        """σ towards a user who gave so many rows, 1 ≤ m ≤ k: σ·√(k/m)."""
        return self.noise_multiplier * math.sqrt(self.max_participations / count)

    def calibrated(
        self, make: Callable[[Participation, float], MomentMechanism], contract: Participation
    ) -> MomentMechanism:
        """The mechanism of a segment, with the least noise for which each row costs at most its share.

        Args:
            make: of (n, k, b) and σ; all levels of noise must be proportional to σ.
            contract: as `contract` gave it for the segment.

        Guarantees:
            1/σ(m)² ≤ (m/k)/σ² for every m, where σ(m) is the mechanism's multiplier towards users who take
            part at most m times in the segment.
        """
        unit = make(contract, 1.0)
        return make(contract, self.noise_multiplier * self._inflation(unit))

    def _inflation(self, unit: MomentMechanism) -> float:
        """max_m √(k/m)/σ(m) of a mechanism with σ = 1; no number of rows is left out."""
        contract, largest = unit.participation, 0.0
        for before, most in _counts(contract.max_participations):
            under = Participation(contract.rounds, most, contract.min_separation)
            share = (before + 1) / self.max_participations
            largest = max(largest, 1 / (unit.multiplier_under(under) * math.sqrt(share)))
        return largest


def _counts(most: int) -> Iterator[tuple[int, int]]:
    """(i, j) so that every number up to `most` lies in one i < m ≤ j."""
    before = 0
    while before < most:
        after = before + 1 if before < _EACH else int(before * _GROWTH)
        after = min(most, after)
        yield before, after
        before = after
