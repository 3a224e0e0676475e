"""Server learning-rate schedules: public functions of the round, so they cost no privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class LearningRateSchedule:
    """η_t over n rounds: an optional linear warm-up, then constant, or decayed to zero at the horizon.

    Args:
        kind: "constant", "linear" or "cosine".
        peak: η > 0, the largest learning rate.
        rounds: n, the horizon.
        warmup: number of rounds w in which η_t = η·(t+1)/(w+1).

    >>> LearningRateSchedule("linear", peak=1.0, rounds=4)(2)
    0.5
    """

    kind: str
    peak: float
    rounds: int
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScheduleKind):
            kinds = ", ".join(get_args(ScheduleKind))
            raise ValueError(f"schedule (of the learning rate) must be one of {kinds}; got {self.kind!r}.")
        if not (math.isfinite(self.peak) and self.peak > 0):
            raise ValueError(f"η (learning rate) must be positive and finite; got {self.peak}.")
        if not 0 <= self.warmup < self.rounds:
            raise ValueError(f"w (warm-up rounds) must lie in 0..{self.rounds - 1}; got {self.warmup}.")

    def __call__(self, t: int) -> float:
        """η_t for the 0-based round t.

        Raises:
            IndexError: t lies outside the horizon, where a decayed rate would turn negative.
        """
        if not 0 <= t < self.rounds:
            raise IndexError(f"t (round) must lie in 0..{self.rounds - 1}; got {t}.")
        if t < self.warmup:
            return self.peak * (t + 1) / (self.warmup + 1)
        progress = (t - self.warmup) / (self.rounds - self.warmup)
        if self.kind == "linear":
            return self.peak * (1.0 - progress)
        if self.kind == "cosine":
            return self.peak * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.peak
