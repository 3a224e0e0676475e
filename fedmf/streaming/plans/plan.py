"""What is fixed before the first row of a private stream; abstract."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization import Sensitivity
from fedmf.moments import MomentMechanism, MomentStream, SecondMoment, UnboundedStream
from fedmf.noise import KeySchedule, NoiseKey
from fedmf.participation import Participation
from fedmf.streaming.rows import Layout
from fedmf.streaming.settings import Settings
from fedmf.typing import Vector

#: Relative, of every number that is computed again.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, eq=False)
class StreamPlan(ABC):
    """Everything that is fixed before the first row; abstract.

    Args:
        settings: what was asked for.
        layout: of the rows.
        strategies: what C₁ and C₂ are called; one name where they are the same.
        params: their parameters.
        second_moment: which one.
        software: name and version of what the stream was begun with.
    """

    settings: Settings
    layout: Layout
    strategies: tuple[str, ...]
    params: tuple[dict[str, float | int], ...]
    second_moment: SecondMoment
    software: str

    @property
    @abstractmethod
    def participation(self) -> Participation:
        """(n, k, b) of every user."""

    @property
    @abstractmethod
    def mechanism(self) -> MomentMechanism:
        """C₁, C₂ and the noise levels; where they change, those in force."""

    @property
    @abstractmethod
    def noise_multiplier(self) -> float:
        """σ; a user who does all that (n, k, b) allows has μ = 1/σ."""

    @property
    @abstractmethod
    def sensitivity(self) -> Sensitivity:
        """What the noise multiplier is relative to."""

    @property
    @abstractmethod
    def workload_names(self) -> tuple[str, str]:
        """A₁ and A₂."""

    @abstractmethod
    def segments_after(self, step: int) -> int:
        """How many segments with noise of their own so many steps reach into; 1 with a horizon."""

    @abstractmethod
    def multiplier_under(self, count: int, separation: int | None) -> float:
        """σ towards users who took part at most so many times, no two less than that many steps apart."""

    @abstractmethod
    def stream(self, key: NoiseKey | KeySchedule) -> MomentStream | UnboundedStream:
        """A fresh stream of this plan."""

    @abstractmethod
    def row_sums(self, moment: int, steps: NDArray[np.int64]) -> Vector:
        """Σ_i [A]_{ti} for steps t, counted from 1; moment 0 is the first, 1 the second."""

    @abstractmethod
    def variances(self, moment: int, steps: NDArray[np.int64]) -> Vector:
        """Variance of the noise in one coordinate of a release of a moment with noise of its own."""

    @abstractmethod
    def check(self) -> None:
        """Compute again what follows from settings and coefficients, and compare.

        Raises:
            ValueError: a recorded figure differs, by more than a relative 1e-9, from the one that follows;
                both are named.
        """

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict with every digit of the noise levels and coefficients."""

    @cached_property
    def rounds(self) -> int:
        """n."""
        return self.participation.rounds

    @cached_property
    def width(self) -> int:
        """Numbers of a release: d and those of the packed second moment."""
        return self.layout.dimension + self.second_moment.size

    def step_of(self, record: int) -> int:
        """The step of a release, counted from 0."""
        return min((record + 1) * self.settings.every, self.rounds)

    def _shared(self) -> dict[str, Any]:
        return {
            "software": self.software,
            "settings": self.settings.to_dict(),
            "layout": dataclasses.asdict(self.layout),
            "strategies": list(self.strategies),
            "params": list(self.params),
        }


def plan_fields(description: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all plans share, but for the second moment, from what `to_dict` wrote."""
    layout = dict(description["layout"])
    layout |= {name: tuple(layout[name]) for name in ("columns", "labels")}
    return {
        "settings": Settings.from_dict(description["settings"]),
        "layout": Layout(**layout),
        "strategies": tuple(description["strategies"]),
        "params": tuple(description["params"]),
        "software": description["software"],
    }


def compare(name: str, recorded: object, recomputed: object) -> None:
    """Refuse a figure that does not follow.

    Raises:
        ValueError: they differ.
    """
    if isinstance(recorded, float) and isinstance(recomputed, float):
        agree = math.isclose(recorded, recomputed, rel_tol=_TOLERANCE)
    else:
        agree = recorded == recomputed
    if not agree:
        raise ValueError(
            f"{name} of the stream's plan is {recorded!r}; from the rest of the plan follows {recomputed!r}. "
            "The record was altered: restore it from a copy."
        )
