"""Statistics that are released with the sums of updates, under the same ε.

A statistic such as an adaptive clip norm takes a share of the budget. `Plan` gives it noise, and
`PrivateServer` passes its released mean on to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fedmf.clipping.user_statistics import UserScalar

#: Makes up for the rounding of a square root and a quotient, in the safe direction.
_UPWARDS: Final = 1.0 + 2.0**-50


class ReleasedStatistic(ABC):
    """The noisy mean of a bounded integer of each user, released under the same ε as the model.

    Update and statistics of a user enter the release as one vector (a·x/ζ, b₁·s₁/c₁, …), with bᵢ²
    the shares of the statistics and a² = 1 − Σbᵢ². Its norm is at most 1, so ε is the same as for
    the sums alone, whose noise is 1/a times as large (docs/theory/accounting.md).

    The state of a statistic is a JSON-able dict and a function of releases, and so is the clip norm
    that it may set. Floats survive JSON bit for bit.

    Attributes:
        name: identifies it in runs, statements and streams of noise.
        budget_share: b², its share of μ².
    """

    name: str
    budget_share: float

    @abstractmethod
    def summed(self) -> UserScalar:
        """Return the scalar that is summed over users, with its bound c."""

    @abstractmethod
    def begin(self, clip_norm: float) -> Mapping[str, Any]:
        """Return the state before round 0, with clip norm ζ_0."""

    @abstractmethod
    def after(self, t: int, mean: float, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the state after round t.

        Args:
            t: round, from 0.
            mean: the released sum divided by m, the planned cohort size.
            state: before the round.
        """

    def clip_norm(self, state: Mapping[str, Any]) -> float | None:
        """Return ζ of the next round; None if the statistic does not set it."""
        del state
        return None

    @property
    def factor(self) -> float:
        """1/b, rounded up: noise of a statistic of bound 1 per noise of x/ζ with all of μ²."""
        return _UPWARDS / math.sqrt(self.budget_share)


def update_factor(statistics: Sequence[ReleasedStatistic]) -> float:
    """Return 1/a, rounded up: noise of updates per noise of updates with all of μ²."""
    share = _update_share(statistics)
    if share >= 1:
        return 1.0
    return _UPWARDS / math.sqrt(share)


def _update_share(statistics: Sequence[ReleasedStatistic]) -> Fraction:
    """Return a² = 1 − Σ b² exactly; a difference of float64 numbers might have few right digits."""
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
        ValueError: two have the same name, their shares sum to 1 or more, or there are statistics
            in an amplified or paired run.
    """
    names = [statistic.name for statistic in statistics]
    if len(set(names)) < len(names):
        raise ValueError(
            f"statistics (of a run) must have different names; got {', '.join(names)}."
        )
    if _update_share(statistics) <= 0:
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
