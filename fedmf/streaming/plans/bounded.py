"""The plan of a stream with a horizon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import certified_sigma
from fedmf.factorization import Sensitivity, query_variances
from fedmf.moments import (
    MomentMechanism,
    MomentStream,
    mechanism_from_dict,
    second_moment_named,
)
from fedmf.noise import KeySchedule, NoiseKey
from fedmf.participation import Participation
from fedmf.streaming.plans.plan import StreamPlan, compare, plan_fields
from fedmf.streaming.plans.strategies import (
    asked_weight,
    build_strategies,
    compare_mechanisms,
    moment_mechanism,
    used_strategies,
)
from fedmf.streaming.rows import Layout
from fedmf.streaming.settings import Settings
from fedmf.typing import Vector
from fedmf.version import SOFTWARE
from fedmf.workload import ToeplitzWorkload, parse_workload


@dataclass(frozen=True, eq=False)
class BoundedPlan(StreamPlan):
    """One mechanism for n steps.

    Args:
        made: C₁, C₂ and the noise levels.
        workloads: A₁ and A₂.
    """

    made: MomentMechanism
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
            made=moment_mechanism(settings, second_moment, strategies, participation, sigma, weight),
            workloads=works,
        )

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote."""
        shared = plan_fields(description)
        settings, mechanism = shared["settings"], mechanism_from_dict(description["mechanism"])
        second_moment = second_moment_named(settings.second, shared["layout"].dimension)
        works = _workloads(settings, mechanism.rounds)
        return cls(**shared, second_moment=second_moment, made=mechanism, workloads=works)

    def to_dict(self) -> dict[str, Any]:
        """See `StreamPlan.to_dict`."""
        return {**self._shared(), "mechanism": self.mechanism.to_dict()}

    @property
    def mechanism(self) -> MomentMechanism:
        """See `StreamPlan.mechanism`."""
        return self.made

    @property
    def participation(self) -> Participation:
        """See `StreamPlan.participation`."""
        return self.made.participation

    @property
    def noise_multiplier(self) -> float:
        """See `StreamPlan.noise_multiplier`."""
        return self.mechanism.noise_multiplier

    @property
    def sensitivity(self) -> Sensitivity:
        """s of C₁ and C₂ together."""
        return self.mechanism.sensitivity

    @property
    def workload_names(self) -> tuple[str, str]:
        """See `StreamPlan.workload_names`."""
        first, second = self.workloads
        return first.name, second.name

    def segments_after(self, step: int) -> int:
        """See `StreamPlan.segments_after`."""
        return 1

    def multiplier_under(self, count: int, separation: int | None) -> float:
        """See `StreamPlan.multiplier_under`."""
        recorded = Participation(self.rounds, count, separation or self.rounds)
        sigma = self.mechanism.multiplier_under(recorded)
        return max(self.noise_multiplier, sigma) if math.isfinite(sigma) else self.noise_multiplier

    def stream(self, key: NoiseKey | KeySchedule) -> MomentStream:
        """See `StreamPlan.stream`."""
        return MomentStream(self.mechanism, self.second_moment, *self.workloads, key=key)

    def row_sums(self, moment: int, steps: NDArray[np.int64]) -> Vector:
        """See `StreamPlan.row_sums`."""
        return self._sums[moment][steps - 1]

    def variances(self, moment: int, steps: NDArray[np.int64]) -> Vector:
        """See `StreamPlan.variances`."""
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
        """See `StreamPlan.check`."""
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
