"""Statistics that are released with the sums of updates, under the same ε."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from fedmf.clipping.user_statistics import UserScalar

#: Makes up for the rounding of a square root and a quotient, in the safe direction.
_UPWARDS: Final = 1.0 + 2.0**-50


class ReleasedStatistic(ABC):
    """The noisy mean of a bounded integer of each user, released under the same ε as the model.

    Update and statistics of a user enter the release as one vector (a·x/ζ, b₁·s₁/c₁, …), with bᵢ²
    the shares of the statistics and a² what they leave of 1. Its norm is at most 1, so ε is the
    same as for the sums alone, and they pay by noise that is 1/a times as large
    (docs/theory/accounting.md).

    The state of a statistic is a JSON-able dict, a function of what was released; floats survive
    JSON bit for bit. So is the clip norm that it may set.

    Attributes:
        name: by which runs, statements and streams of noise know it.
        budget_share: b², its share of μ².
    """

    name: ClassVar[str]
    budget_share: float

    @abstractmethod
    def summed(self) -> UserScalar:
        """The integer that is summed over users, with its bound c."""

    @abstractmethod
    def begin(self, clip_norm: float) -> Mapping[str, Any]:
        """The state before round 0, with clip norm ζ_0."""

    @abstractmethod
    def after(self, t: int, mean: float, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state after round t.

        Args:
            t: 0-based round.
            mean: the released sum divided by m, the planned cohort size.
            state: before the round.
        """

    def clip_norm(self, state: Mapping[str, Any]) -> float | None:
        """ζ of the next round; None where the statistic does not set it."""
        del state
        return None

    @property
    def factor(self) -> float:
        """1/b, rounded up: noise of a statistic of bound 1 per noise of x/ζ with all of μ²."""
        return _UPWARDS / math.sqrt(self.budget_share)


def update_factor(statistics: Sequence[ReleasedStatistic]) -> float:
    """1/a, by which the noise of updates is larger than with all of μ² for them alone, rounded
    up.
    """
    left = _left(statistics)
    return _UPWARDS / math.sqrt(left) if left < 1 else 1.0


def _left(statistics: Sequence[ReleasedStatistic]) -> Fraction:
    """a² = 1 − Σ b², exactly: of a difference of float64 numbers little may be left."""
    return 1 - sum((Fraction(statistic.budget_share) for statistic in statistics), Fraction(0))


def check_statistics(
    statistics: Sequence[ReleasedStatistic], amplified: bool, paired: bool
) -> None:
    """Reject statistics that leave nothing to updates, or that no theorem covers.

    Args:
        statistics: of a run.
        amplified: whether its noise is calibrated for secret cohorts.
        paired: whether its optimizer needs a second moment.

    Raises:
        ValueError: there is such a thing.
    """
    names = [statistic.name for statistic in statistics]
    if len(set(names)) < len(names):
        raise ValueError(
            f"statistics (of a run) must have different names; got {', '.join(names)}."
        )
    if _left(statistics) <= 0:
        shares = ", ".join(f"{each.name} {each.budget_share!r}" for each in statistics)
        raise ValueError(
            f"budget_share (b², of all statistics together) must be below 1; got {shares}."
        )
    against = {"an amplified run": amplified, "an optimizer that needs a second moment": paired}
    for other, present in against.items():
        if names and present:
            raise ValueError(
                f"statistic {names[0]!r} must be left out with {other}: no theorem covers the two."
            )
