"""What is fixed before the first row of a private stream."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import certified_sigma
from fedmf.mechanisms.errors import query_variances
from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.mechanisms.workload import ToeplitzWorkload, parse_workload
from fedmf.moments import (
    MomentMechanism,
    MomentStream,
    SecondMoment,
    mechanism_from_dict,
    second_moment_named,
)
from fedmf.noise import KeySchedule, NoiseKey
from fedmf.participation import Participation
from fedmf.streaming.plans.strategies import (
    asked_weight,
    build_strategies,
    compare,
    compare_mechanisms,
    moment_mechanism,
    used_strategies,
)
from fedmf.streaming.rows import Layout
from fedmf.streaming.settings import Settings
from fedmf.typing import Vector
from fedmf.version import SOFTWARE


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """Everything that is fixed before the first row.

    Args:
        settings: what was asked for.
        layout: of the rows.
        strategies: what C₁ and C₂ are called; one name where they are the same.
        params: their parameters.
        second_moment: which one.
        software: name and version of what the stream was begun with.
        mechanism: C₁, C₂ and the noise levels.
        workloads: A₁ and A₂.
    """

    settings: Settings
    layout: Layout
    strategies: tuple[str, ...]
    params: tuple[dict[str, float | int], ...]
    second_moment: SecondMoment
    software: str
    mechanism: MomentMechanism
    workloads: tuple[ToeplitzWorkload, ToeplitzWorkload]

    @classmethod
    def of(cls, settings: Settings, layout: Layout, rounds: int) -> Self:
        """Build the matrices and calibrate the noise.

        Args:
            settings: what was asked for.
            layout: of the rows.
            rounds: n.

        Raises:
            ValueError: something asked for is impossible; the message says what.
        """
        participation, works = _participation(settings, rounds), _workloads(settings, rounds)
        second_moment = second_moment_named(settings.second, layout.dimension)
        sigma = certified_sigma(settings.epsilon, settings.delta)
        built = build_strategies(settings, participation, works)
        strategies = [mechanism.factorization for mechanism in built]
        weight = asked_weight(settings, second_moment, strategies, participation, works, sigma)
        return cls(
            settings=settings,
            layout=layout,
            strategies=tuple(mechanism.name for mechanism in built),
            params=tuple(dict(mechanism.params) for mechanism in built),
            second_moment=second_moment,
            software=SOFTWARE,
            mechanism=moment_mechanism(settings, second_moment, strategies, participation, sigma, weight),
            workloads=works,
        )

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote."""
        layout = dict(description["layout"])
        layout |= {name: tuple(layout[name]) for name in ("columns", "labels")}
        settings, mechanism = (
            Settings.from_dict(description["settings"]),
            mechanism_from_dict(description["mechanism"]),
        )
        return cls(
            settings=settings,
            layout=Layout(**layout),
            strategies=tuple(description["strategies"]),
            params=tuple(description["params"]),
            second_moment=second_moment_named(settings.second, layout["dimension"]),
            software=description["software"],
            mechanism=mechanism,
            workloads=_workloads(settings, mechanism.rounds),
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict with every digit of the noise levels and coefficients."""
        return {
            "software": self.software,
            "settings": self.settings.to_dict(),
            "layout": dataclasses.asdict(self.layout),
            "strategies": list(self.strategies),
            "params": list(self.params),
            "mechanism": self.mechanism.to_dict(),
        }

    @property
    def participation(self) -> Participation:
        """(n, k, b) of every user."""
        return self.mechanism.participation

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

    @property
    def noise_multiplier(self) -> float:
        """σ; a user who does all that (n, k, b) allows has μ = 1/σ."""
        return self.mechanism.noise_multiplier

    @property
    def sensitivity(self) -> Sensitivity:
        """s of C₁ and C₂ together."""
        return self.mechanism.sensitivity

    @property
    def workload_names(self) -> tuple[str, str]:
        """A₁ and A₂."""
        first, second = self.workloads
        return first.name, second.name

    def multiplier_under(self, count: int, separation: int | None) -> float:
        """σ towards users who took part at most so many times, no two less than that many steps apart."""
        recorded = Participation(self.rounds, count, separation or self.rounds)
        sigma = self.mechanism.multiplier_under(recorded)
        return max(self.noise_multiplier, sigma) if math.isfinite(sigma) else self.noise_multiplier

    def stream(self, key: NoiseKey | KeySchedule) -> MomentStream:
        """A fresh stream of this plan."""
        return MomentStream(self.mechanism, self.second_moment, *self.workloads, key=key)

    def row_sums(self, moment: int, steps: NDArray[np.int64]) -> Vector:
        """Σ_i [A]_{ti} for steps t, counted from 1; moment 0 is the first, 1 the second."""
        return self._sums[moment][steps - 1]

    def variances(self, moment: int, steps: NDArray[np.int64]) -> Vector:
        """Variance of the noise in one coordinate of a release of a moment with noise of its own."""
        return (self._second_variances if moment else self._first_variances)[steps - 1]

    @cached_property
    def _sums(self) -> tuple[Vector, ...]:
        # Rows of an average sum to one, which 1/t taken t times misses in the last bit.
        return tuple(
            np.ones(self.rounds) if work.name == "average" else work.row_sums() for work in self.workloads
        )

    @cached_property
    def _first_variances(self) -> Vector:
        return self.mechanism.first_std**2 * query_variances(self.mechanism.first, self.workloads[0])

    @cached_property
    def _second_variances(self) -> Vector:
        C, std = self.mechanism.second_noise
        return std**2 * query_variances(C, self.workloads[1])

    def check(self) -> None:
        """Compute again what follows from settings and coefficients, and compare.

        Raises:
            ValueError: a recorded figure differs, by more than a relative 1e-9, from the one that follows;
                both are named.
        """
        made, settings = self.mechanism, self.settings
        rounds = made.participation.rounds if settings.rounds is None else settings.rounds
        participation = _participation(settings, rounds)
        sigma = certified_sigma(settings.epsilon, settings.delta)
        # A weight that was searched for is taken as recorded: whatever it is, the noise must follow from it.
        again = moment_mechanism(
            settings, self.second_moment, used_strategies(made), participation, sigma, made.weight
        )
        compare_mechanisms(settings, made, again)
        compare("columns", settings.coordinates or self.layout.columns, self.layout.columns)


def _participation(settings: Settings, rounds: int) -> Participation:
    k, b = settings.contract(rounds)
    return Participation(rounds, k, min(b, rounds) if k == 1 else b)


def _workloads(settings: Settings, rounds: int) -> tuple[ToeplitzWorkload, ToeplitzWorkload]:
    first = parse_workload(settings.workloads[0], rounds)
    same = settings.workloads[-1] == settings.workloads[0]
    return first, first if same else parse_workload(settings.workloads[-1], rounds)
