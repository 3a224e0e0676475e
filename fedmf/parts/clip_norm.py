"""Rules for the clip norm: one for the whole run, or one that follows a quantile of users' norms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from fedmf.values import Value, by_kind, check_whole

#: ζ_t stays within this factor of ζ_0.
_FARTHEST: Final = 2.0**20


@dataclass(frozen=True)
class NormCourse:
    """ζ_0, …, ζ_t as far as the next rounds and a record need them: a function of what was released.

    Args:
        first: ζ_0.
        norm: ζ_t of the next round.
        estimates: sum of the noisy shares released since ζ last moved.
        rounds: how many they are.
        smallest: of all ζ so far.
        largest: likewise.
        variation: Σ|ζ_{t+1} − ζ_t|.
    """

    first: float
    norm: float
    estimates: float
    rounds: int
    smallest: float
    largest: float
    variation: float

    @classmethod
    def begun(cls, norm: float) -> Self:
        """Before round 0."""
        return cls(norm, norm, 0.0, 0, norm, norm, 0.0)

    def after(self, t: int, estimate: float, rule: QuantileClipping) -> NormCourse:
        """Once round t has released a noisy share of users that are within ζ_t.

        A block ends with every round t for which B divides t + 1.
        """
        total, rounds = self.estimates + estimate, self.rounds + 1
        if (t + 1) % rule.rounds_per_update:
            return dataclasses.replace(self, estimates=total, rounds=rounds)
        farthest = math.log(_FARTHEST)
        step = math.log(self.norm / self.first) - rule.learning_rate * (total / rounds - rule.quantile)
        norm = self.first * math.exp(min(max(step, -farthest), farthest))
        return NormCourse(
            self.first,
            norm,
            0.0,
            0,
            min(self.smallest, norm),
            max(self.largest, norm),
            self.variation + abs(norm - self.norm),
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(**values)


#: Makes up for the rounding of a square root and a quotient, in the safe direction.
_UPWARDS: Final = 1.0 + 2.0**-50


@dataclass(frozen=True)
class Clipping(Value):
    """How ζ_t, the clip norm of round t, comes about; ζ_0 is that of the privacy asked for."""

    #: Whether ζ_t follows what was released.
    adapts: ClassVar[bool] = False

    @property
    def update_factor(self) -> float:
        """1/a, by which the noise of updates is larger than with the budget for them alone."""
        return 1.0

    def unit(self, clip_norm: float) -> float:
        """In what unit the server sees the mean of updates clipped to this norm."""
        del clip_norm
        return 1.0

    def check_setting(self, amplified: bool, stored_as: str) -> None:
        """Refuse what no theorem covers: secret cohorts, noise that is rounded where it is stored."""


@dataclass(frozen=True)
class FixedClipping(Clipping):
    """ζ_t = ζ_0."""

    kind: ClassVar[str] = "fixed"


@dataclass(frozen=True)
class QuantileClipping(Clipping):
    """ζ_t follows a quantile of the norms of users' updates, by released noisy counts of who is within.

    With q̂ the mean of the noisy shares released in the B rounds of a block, the next block has

        ζ' = ζ·exp(−η(q̂ − γ)),

    within 2⁻²⁰ζ_0 … 2²⁰ζ_0. A user's clipped update x and sign s enter the release as one vector
    (a·x/ζ_t, b·s) with a² + b² = 1, so ε is that of a fixed clip norm: docs/adaptive-clipping.md.

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
    adapts: ClassVar[bool] = True

    quantile: float = 0.5
    learning_rate: float = 0.5
    rounds_per_update: int = 5
    share: float = 0.02
    unit_steps: bool = False

    def __post_init__(self) -> None:
        for symbol, value in (("γ (quantile)", self.quantile), ("b² (share)", self.share)):
            if not 0 < value < 1:
                raise ValueError(f"{symbol} must lie strictly between 0 and 1; got {value!r}.")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"η (learning_rate of the clip norm) must be positive and finite; got {self.learning_rate!r}."
            )
        check_whole("B (rounds_per_update)", self.rounds_per_update)

    def check_setting(self, amplified: bool, stored_as: str) -> None:
        """See `Clipping.check_setting`.

        Raises:
            ValueError: there is one of them.
        """
        if amplified:
            raise ValueError(
                f"clipping must be 'fixed' for an amplified run; got {self.kind!r}. No theorem here covers a "
                "clip norm that follows releases while cohorts are secret: leave amplified out."
            )
        if stored_as != "float64":
            raise ValueError(
                f"dtype (of stored noise) must be 'float64' where the clip norm adapts; got {stored_as!r}. "
                "No theorem covers rounded noise there."
            )

    def unit(self, clip_norm: float) -> float:
        """See `Clipping.unit`."""
        return clip_norm if self.unit_steps else 1.0

    @property
    def update_factor(self) -> float:
        """1/a = 1/√(1 − b²), rounded up."""
        return _UPWARDS / math.sqrt(1.0 - self.share)

    @property
    def sign_factor(self) -> float:
        """1/b, rounded up: the noise of a sum of signs per noise of x/ζ without them."""
        return _UPWARDS / math.sqrt(self.share)


CLIPPINGS: Final = by_kind(FixedClipping, QuantileClipping)
