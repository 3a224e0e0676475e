"""What a clip norm did: a function of what was released."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

#: ζ_t stays within this factor of ζ_0.
_FARTHEST: Final = 2.0**20


class Following(Protocol):
    """How ζ follows a quantile: see `QuantileClipping`."""

    @property
    def quantile(self) -> float:
        """γ."""
        ...

    @property
    def learning_rate(self) -> float:
        """η."""
        ...

    @property
    def rounds_per_update(self) -> int:
        """B."""
        ...


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

    def after(self, t: int, estimate: float, rule: Following) -> NormCourse:
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
