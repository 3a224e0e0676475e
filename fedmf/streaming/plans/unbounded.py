"""The plan of a stream without a horizon; docs/unbounded-streams.md has the mathematics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import certified_sigma
from fedmf.factorization import Factorization, Sensitivity
from fedmf.moments import (
    ENDLESS,
    Growing,
    GrowingErrors,
    Lifetime,
    MomentMechanism,
    ReleaseErrors,
    RunningWorkload,
    SecondMoment,
    SegmentMechanisms,
    Segments,
    Steady,
    SteadyErrors,
    UnboundedStream,
    mechanism_from_dict,
    second_moment_named,
)
from fedmf.noise import KeySchedule, NoiseKey
from fedmf.participation import Participation
from fedmf.streaming.plans.plan import StreamPlan, compare, plan_fields
from fedmf.streaming.plans.segment_strategies import (
    check_description,
    steady_strategies,
    strategies_of_sums,
)
from fedmf.streaming.plans.strategies import (
    compare_mechanisms,
    moment_mechanism,
    used_strategies,
)
from fedmf.streaming.rows import Layout
from fedmf.streaming.settings import Settings
from fedmf.typing import Vector
from fedmf.version import SOFTWARE
from fedmf.workload import ToeplitzWorkload, parse_workload, prefix

#: L, steps of the first segment, and how much longer each is than the one before.
FIRST: Final = 256
GROWTH: Final = 8
_SUMS, _FORGETFUL = ("prefix", "average"), ("exponential", "window")
#: Steps that tell a recursion from a list of coefficients.
_ENOUGH: Final = 8
_CASE: Final = "each row costs at most mu^2/k, whatever segments a user's rows fall into"


@dataclass(frozen=True, eq=False)
class UnboundedPlan(StreamPlan):
    """Segments of time, a mechanism for each, and a share of the budget for each row of a user.

    Args:
        lifetime: k, b and σ.
        segments: the cut.
        first: the mechanism of the first segment.
    """

    lifetime: Lifetime
    segments: Segments
    first: MomentMechanism
    mechanisms: SegmentMechanisms = field(init=False)

    def __post_init__(self) -> None:
        design = self._design if isinstance(self.segments, Growing) else None
        made = SegmentMechanisms(self.first, design, self._check_segment)
        object.__setattr__(self, "mechanisms", made)
        object.__setattr__(self, "_errors", {})

    @classmethod
    def of(cls, settings: Settings, layout: Layout) -> Self:
        """Build the matrices of the first segment and calibrate its noise.

        Raises:
            ValueError: something asked for is impossible; the message says what.
        """
        lifetime = _lifetime(settings)
        second_moment = second_moment_named(settings.second, layout.dimension)
        kinds = [name.split(":")[0] for name in settings.workloads]
        if all(kind in _SUMS for kind in kinds):
            segments: Segments = Growing(FIRST, GROWTH)
            built = strategies_of_sums(settings, lifetime, segments.steps(0))
            check_description(settings, lifetime)
        elif all(kind in _FORGETFUL for kind in kinds):
            segments, built = steady_strategies(settings, lifetime)
        else:
            raise ValueError(
                f"A (workload) must be {' or '.join(_SUMS)}, or {' or '.join(_FORGETFUL)}, both of one kind, "
                f"in a stream without a horizon; got {', '.join(settings.workloads)}. Give --rounds N."
            )
        strategies = [mechanism.factorization for mechanism in built]
        made = _calibrated(settings, second_moment, lifetime, strategies, segments.rounds(0))
        if isinstance(segments, Steady) and not made.method.second_noise:
            raise ValueError(
                f"method must give the second moment noise of its own for {settings.workloads[0]} without a "
                f"horizon; got {settings.method}."
            )
        return cls(
            settings=settings,
            layout=layout,
            strategies=tuple(mechanism.name for mechanism in built),
            params=tuple(dict(mechanism.params) for mechanism in built),
            second_moment=second_moment,
            software=SOFTWARE,
            lifetime=lifetime,
            segments=segments,
            first=made,
        )

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote."""
        shared, cut = plan_fields(description), dict(description["segments"])
        settings = shared["settings"]
        return cls(
            **shared,
            second_moment=second_moment_named(settings.second, shared["layout"].dimension),
            lifetime=_lifetime(settings),
            segments={"growing": Growing, "steady": Steady}[cut.pop("kind")](**cut),
            first=mechanism_from_dict(description["mechanism"]),
        )

    def to_dict(self) -> dict[str, Any]:
        """See `StreamPlan.to_dict`; later mechanisms are part of the stream's state."""
        cut = {"kind": type(self.segments).__name__.lower(), **dataclasses.asdict(self.segments)}  # type: ignore[call-overload]
        return {**self._shared(), "segments": cut, "mechanism": self.first.to_dict()}

    @property
    def participation(self) -> Participation:
        """See `StreamPlan.participation`."""
        return self.lifetime.participation

    @property
    def mechanism(self) -> MomentMechanism:
        """That of the last segment that was reached."""
        return list(self.mechanisms)[-1]

    @property
    def noise_multiplier(self) -> float:
        """See `StreamPlan.noise_multiplier`."""
        return self.lifetime.noise_multiplier

    @property
    def sensitivity(self) -> Sensitivity:
        """1: levels of noise are relative to what a user can do in a whole life."""
        alone = self.lifetime.max_participations == 1
        return Sensitivity(1.0, self.first.sensitivity.kind if alone else "upper_bound", _CASE)

    @property
    def workload_names(self) -> tuple[str, str]:
        """See `StreamPlan.workload_names`."""
        return self.settings.workloads[0], self.settings.workloads[-1]

    def segments_after(self, step: int) -> int:
        """See `StreamPlan.segments_after`."""
        return 1 + self.segments.of_step(max(0, step - 1))

    def multiplier_under(self, count: int, separation: int | None) -> float:
        """See `StreamPlan.multiplier_under`; the separation does not matter."""
        return self.lifetime.multiplier_after(count)

    def stream(self, key: NoiseKey | KeySchedule) -> UnboundedStream:
        """See `StreamPlan.stream`."""
        sizes = self.layout.dimension, self.second_moment.size
        running = [
            RunningWorkload(_endless(name), size, rounds=ENDLESS)
            for name, size in zip(self.workload_names, sizes, strict=True)
        ]
        averaged = [name == "average" for name in self.workload_names]
        return UnboundedStream(
            self.segments,
            self.mechanisms,
            self.second_moment,
            (running[0], running[1]),
            (averaged[0], averaged[1]),
            key,
        )

    def row_sums(self, moment: int, steps: NDArray[np.int64]) -> Vector:
        """See `StreamPlan.row_sums`."""
        return self._of_moment(moment).row_sums(steps)

    def variances(self, moment: int, steps: NDArray[np.int64]) -> Vector:
        """See `StreamPlan.variances`."""
        return self._of_moment(moment).variances(steps)

    def _of_moment(self, moment: int) -> ReleaseErrors:
        errors: dict[int, ReleaseErrors] = getattr(self, "_errors")  # noqa: B009
        if moment not in errors:
            name = self.workload_names[moment]
            if isinstance(self.segments, Growing):
                errors[moment] = GrowingErrors(
                    self.segments, lambda j: _level(self.mechanisms.of(j), moment), name == "average"
                )
            else:
                C, std = _level(self.first, moment)
                errors[moment] = SteadyErrors(C, std, parse_workload(name, C.rounds))
        return errors[moment]

    def check(self) -> None:
        """See `StreamPlan.check`; mechanisms of later segments are checked when a state is loaded."""
        self._check_segment(0, self.first)
        compare("columns", self.settings.columns or self.layout.columns, self.layout.columns)

    def _design(self, segment: int) -> MomentMechanism:
        built = strategies_of_sums(self.settings, self.lifetime, self.segments.steps(segment))
        return self._calibrated(segment, [mechanism.factorization for mechanism in built])

    def _check_segment(self, segment: int, made: MomentMechanism) -> None:
        compare_mechanisms(self.settings, made, self._calibrated(segment, used_strategies(made)))

    def _calibrated(self, segment: int, strategies: Sequence[Factorization]) -> MomentMechanism:
        rounds = self.segments.rounds(segment)
        return _calibrated(self.settings, self.second_moment, self.lifetime, strategies, rounds)


def _calibrated(
    settings: Settings,
    second_moment: SecondMoment,
    lifetime: Lifetime,
    strategies: Sequence[Factorization],
    rounds: int,
) -> MomentMechanism:
    """The mechanism with these matrices whose rows cost what `Lifetime` says."""

    def make(participation: Participation, sigma: float) -> MomentMechanism:
        return moment_mechanism(settings, second_moment, strategies, participation, sigma)

    return lifetime.calibrated(make, lifetime.contract(rounds, max(C.bands for C in strategies)))


def _lifetime(settings: Settings) -> Lifetime:
    k, b = settings.contract(ENDLESS)
    return Lifetime(k, b, certified_sigma(settings.epsilon, settings.delta))


def _endless(name: str) -> ToeplitzWorkload:
    """The workload of a name over steps enough that its recursion is its own, and goes on for ever."""
    kind, _, value = name.partition(":")
    if kind in _SUMS:
        return prefix(_ENOUGH)
    return parse_workload(name, 2 * int(value) + _ENOUGH if kind == "window" else _ENOUGH)


def _level(made: MomentMechanism, moment: int) -> tuple[Factorization, float]:
    """C and τ of a moment."""
    return made.second_noise if moment else (made.first, made.first_std)
