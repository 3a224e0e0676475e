"""A statistic that fedmf does not have, in one file: the mean norm of clipped updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from fedmf.clipping.user_statistics import UpdateScalar
from fedmf.runs.statistics import Statistic

UNIT: Final = 1 << 20


@dataclass(frozen=True)
class Norm(UpdateScalar):
    """⌊2²⁰·‖x‖/ζ⌋ of a clipped update x."""

    name: str = "norms"
    bound: int = UNIT

    def of(self, sign: int, norm: float) -> int:
        return math.floor(norm * UNIT)


@dataclass(frozen=True)
class MeanNorm(Statistic):
    """Releases (Σ_u ‖x_u‖/ζ + noise)/m of every round."""

    kind: ClassVar[str] = "mean"
    name = "mean_norms"
    columns: ClassVar[tuple[str, ...]] = ("mean_norm",)  # type: ignore[misc]
    assumptions: ClassVar[tuple[str, ...]] = (  # type: ignore[misc]
        "norms are those of clipped updates",
    )

    @property
    def description(self) -> str:
        return f"mean of every round, for {100 * self.budget_share:g} % of mu^2"

    def summed(self) -> Norm:
        return Norm()

    def begin(self, clip_norm: float) -> Mapping[str, Any]:
        return {"mean": 0.0}

    def after(self, t: int, mean: float, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"mean": mean / UNIT}

    def metrics(self, state: Mapping[str, Any], noise_std: float) -> Mapping[str, float]:
        return {"mean_norm": state["mean"]}
