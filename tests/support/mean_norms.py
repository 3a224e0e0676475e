"""A released quantity that fedmf does not have, in one file: the mean norm of clipped updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from fedmf.noise import Domain
from fedmf.parts import LivePart, Part, Setting, Stage
from fedmf.parts.noised_sum import NoisedSum
from fedmf.training import FixedPointSum, Statistic

UNIT: Final = 1 << 20


@dataclass(frozen=True)
class Norm(Statistic):
    """⌊2²⁰·‖x‖/ζ⌋ of a clipped update x."""

    name: ClassVar[str] = "norms"
    most: ClassVar[int] = UNIT

    def of(self, sign: int, norm: float) -> int:
        return math.floor(norm * UNIT)


@dataclass(frozen=True)
class MeanNorm(Part):
    """Releases (Σ_u ‖x_u‖/ζ + noise)/m of every round.

    Args:
        of_all: b² in (0, 1), its share of μ².
    """

    kind: ClassVar[str] = "mean"
    name: ClassVar[str] = "mean_norms"

    of_all: float = 0.1

    @property
    def mu_share(self) -> float:
        return self.of_all

    def check(self, setting: Setting) -> None:
        if setting.amplified or setting.paired:
            raise ValueError("norms must be left out where no theorem covers them.")

    def statistics(self) -> tuple[Statistic, ...]:
        return (Norm(),)

    def open(self, stage: Stage) -> LivePart:
        return Release(self, stage)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("mean_norm",)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("norms are those of clipped updates",)

    @classmethod
    def lines(cls, facts: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        return [("norms", f"mean of every round, for {100 * facts['of_all']:g} % of mu^2")]


class Release(LivePart):
    """Its noise, and the last mean."""

    def __init__(self, part: MeanNorm, stage: Stage) -> None:
        self.name, self._size, self.state = part.name, stage.size, {"mean": 0.0}
        self._sum = NoisedSum(Norm(), stage, part.own_factor, Domain.of_part(part.name))

    def after(self, t: int, total: FixedPointSum) -> Mapping[str, Any]:
        (norms,) = self._sum.released(t, total)
        return {"mean": norms / (self._size * UNIT)}

    def state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {**state, "noise": self._sum.noise.state_dict()}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        self._sum.load_state(saved["noise"])
        self.state = {"mean": saved["mean"]}

    def noted(self) -> Mapping[str, float]:
        return {"mean_norm": self.state["mean"]}
