"""Rules for the clip norm: one for the whole run, or one that follows a quantile of users' norms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fedmf.accounting import at_least
from fedmf.parts.part import LivePart, Part, Setting, Stage, check_share
from fedmf.values import by_kind, check_whole

if TYPE_CHECKING:
    from fedmf.training import Statistic

_COLUMN: Final = "clip_norm"


@dataclass(frozen=True)
class Clipping(Part):
    """How ζ_t, the clip norm of round t, comes about; ζ_0 is that of the privacy asked for."""

    name: ClassVar[str] = "clipping"


@dataclass(frozen=True)
class FixedClipping(Clipping):
    """ζ_t = ζ_0."""

    kind: ClassVar[str] = "fixed"

    def facts(self, metrics: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """The rule; no norm was noted."""
        del metrics
        return {**self.to_dict(), "clip_norms": {}}


@dataclass(frozen=True)
class QuantileClipping(Clipping):
    """ζ_t follows a quantile of the norms of users' updates, by released noisy counts of who is within.

    With q̂ the mean of the noisy shares released in the B rounds of a block, the next block has

        ζ' = ζ·exp(−η(q̂ − γ)),

    within 2⁻²⁰ζ_0 … 2²⁰ζ_0. A user's clipped update x and sign s enter the release as one vector
    (a·x/ζ_t, b·s) with a² + b² = 1, so ε is that of a fixed clip norm: docs/theory/accounting.md.

    Args:
        quantile: γ in (0, 1), the share of users whose updates are to be within the clip norm.
        learning_rate: η > 0, of ln ζ, for each update of it.
        rounds_per_update: B ≥ 1; ζ is constant for so many rounds.
        share: b² in (0, 1), the share of μ² that goes to the signs.
        unit_steps: whether the server sees mean updates in units of ζ_t. Its learning rate is then the length
            of a step, whatever ζ does, and so is the noise of a round, which cancels over rounds as with a
            fixed clip norm.

    Raises:
        ValueError: a value out of its range.
    """

    kind: ClassVar[str] = "quantile"

    quantile: float = 0.5
    learning_rate: float = 0.5
    rounds_per_update: int = 5
    share: float = 0.02
    unit_steps: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ValueError(f"γ (quantile) must lie strictly between 0 and 1; got {self.quantile!r}.")
        check_share(self.share)
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"η (learning_rate of the clip norm) must be positive and finite; got {self.learning_rate!r}."
            )
        check_whole("B (rounds_per_update)", self.rounds_per_update)

    @property
    def mu_share(self) -> float:
        """See `Part.mu_share`."""
        return self.share

    def check(self, setting: Setting) -> None:
        """See `Part.check`.

        Raises:
            ValueError: secret cohorts, or a second moment.
        """
        if setting.amplified:
            raise ValueError(
                f"clipping must be 'fixed' for an amplified run; got {self.kind!r}. No theorem here covers a "
                "clip norm that follows releases while cohorts are secret: leave amplified out."
            )
        if setting.paired:
            raise ValueError(
                f"clipping must be 'fixed' for an optimizer that needs a second moment; got {self.kind!r}. "
                "No theorem covers features of updates whose clip norm moves."
            )

    def statistics(self) -> tuple[Statistic, ...]:
        """See `Part.statistics`."""
        from fedmf.training import SIGNS  # readers of records load no framework

        return (SIGNS,)

    def open(self, stage: Stage) -> LivePart:
        """See `Part.open`."""
        from fedmf.parts.clip_norm.release import QuantileRelease

        return QuantileRelease(self.name, self, self.own_factor, stage)

    def unit(self, clip_norm: float) -> float:
        """See `Part.unit`."""
        return clip_norm if self.unit_steps else 1.0

    @property
    def moves_clip_norm(self) -> bool:
        """See `Part.moves_clip_norm`."""
        return True

    @property
    def columns(self) -> tuple[str, ...]:
        """ζ of the next round's updates."""
        return (_COLUMN,)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """See `Part.assumptions`."""
        return (
            "the clip norm of a round was computed from released figures alone: epsilon is that of a fixed "
            "clip norm, whatever the clip norm did, and what it did may be public as the models are",
        )

    def facts(self, metrics: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """The rule, and ζ by rounds released as far as it was noted."""
        norms = {str(t): float(row[_COLUMN]) for t, row in metrics.items() if _COLUMN in row}
        return {**self.to_dict(), "clip_norms": norms}

    @classmethod
    def remarks(cls, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Part.remarks`."""
        norms, course = list(facts.get("clip_norms", {}).values()), ""
        if norms:
            course = f", {at_least(norms[-1])} at last, {at_least(min(norms))} to {at_least(max(norms))}"
        return {
            "clip norm": f" at first{course}: follows the noisy {facts['quantile']:g}-quantile of norms, for "
            f"{100 * facts['share']:g} % of mu^2; epsilon does not depend on what it did",
            "noise": ", at the first clip norm; it goes with the clip norm",
        }

    @classmethod
    def in_short(cls, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Part.in_short`."""
        del facts
        return {"clip norm": " at first"}


CLIPPINGS: Final = by_kind(FixedClipping, QuantileClipping)
