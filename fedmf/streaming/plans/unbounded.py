"""The plan of a stream without a horizon; docs/theory/unbounded-streams.md has the mathematics."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import certified_sigma
from fedmf.factorization import Factorization, Mechanism, Sensitivity, Toeplitz
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
from fedmf.streaming.plans.strategies import (
    build_strategies,
    compare_mechanisms,
    moment_mechanism,
    used_strategies,
)
from fedmf.streaming.rows import Layout
from fedmf.streaming.settings import Settings
from fedmf.typing import Vector
from fedmf.version import SOFTWARE
from fedmf.workload import ToeplitzWorkload, parse_workload, prefix

#: Horizons for which the one matrix of a workload that forgets is optimised; the first that is long enough.
_LENGTHS: Final = tuple(1 << power for power in range(12, 21, 2))
#: Characters that the description of a segment's mechanism may take; it lies in each commit.
_LONGEST: Final = 1 << 14
#: Bands of a matrix that goes on for ever.
_WIDEST: Final = 1 << 10
#: Weight of a row that was forgotten.
_FORGOTTEN: Final = 1e-9


def strategies_of_sums(settings: Settings, lifetime: Lifetime, rounds: int) -> list[Mechanism]:
    """C₁ and C₂ for a segment, optimised for its prefix sums."""
    bands = None if settings.bands is None else min(settings.bands, rounds)
    work = prefix(rounds)
    return build_strategies(dataclasses.replace(settings, bands=bands), lifetime.within(rounds), (work, work))


def check_description(settings: Settings, lifetime: Lifetime) -> None:
    """Refuse matrices with a number for each step: each segment's would be written with every commit."""
    for built in strategies_of_sums(settings, lifetime, _LENGTHS[0]):
        if len(json.dumps(built.factorization.to_dict())) > _LONGEST:
            raise ValueError(
                "C (mechanism) must be told by few numbers however many rounds it has, in a stream without a "
                f"horizon; got {built.name}. Use banded-toeplitz or blt."
            )


def steady_strategies(settings: Settings, lifetime: Lifetime) -> tuple[Steady, list[Mechanism]]:
    """One matrix for ever, optimised for the first horizon at which the workloads have long forgotten.

    Raises:
        ValueError: the matrix is not banded and Toeplitz, or no horizon is long enough.
    """
    needed = 2 * max(_memory(name) for name in settings.workloads)
    for length in (length for length in _LENGTHS if length >= needed):
        built = [_toeplitz(mechanism, settings) for mechanism in _design(settings, lifetime, length)]
        widest = max(mechanism.factorization.bands for mechanism in built)
        if widest > lifetime.min_separation and lifetime.max_participations * widest > length:
            continue
        reach = math.lcm(*(max(1, mechanism.factorization.bands - 1) for mechanism in built))
        cut = Steady(-(-length // reach) * reach, 0 if widest == 1 else reach)
        stretched = [_stretched(mechanism, cut.length) for mechanism in built]
        if all(_settled(stretched[-1 if i else 0], name) for i, name in enumerate(settings.workloads)):
            return cut, stretched
    raise ValueError(
        f"A (workload) must forget a row within {_LENGTHS[-1] // 2} steps, and k*p (rows of a user times "
        f"bands beyond b) must not exceed it, in a stream without a horizon; got {settings.workloads[0]}. "
        "Use average, or --rounds N."
    )


def _memory(workload: str) -> float:
    """Steps after which a row counts for less than can be told."""
    kind, _, value = parse_workload(workload, _LENGTHS[-1]).name.partition(":")
    return 2 * int(value) if kind == "window" else math.log(_FORGOTTEN) / math.log(float(value))


def _design(settings: Settings, lifetime: Lifetime, rounds: int) -> list[Mechanism]:
    first = parse_workload(settings.workloads[0], rounds)
    same = settings.workloads[-1] == settings.workloads[0]
    works = first, first if same else parse_workload(settings.workloads[-1], rounds)
    return build_strategies(settings, lifetime.within(rounds), works)


def _toeplitz(mechanism: Mechanism, settings: Settings) -> Mechanism:
    """The same, if its matrix can go on for ever."""
    C = mechanism.factorization
    if not isinstance(C, Toeplitz) or C.bands > _WIDEST:
        raise ValueError(
            f"C (mechanism) must be banded and Toeplitz, of at most {_WIDEST} bands, for "
            f"{settings.workloads[0]} in a stream without a horizon; got {mechanism.name}. "
            "Use banded-toeplitz."
        )
    return mechanism


def _stretched(mechanism: Mechanism, rounds: int) -> Mechanism:
    C = mechanism.factorization
    assert isinstance(C, Toeplitz)
    return dataclasses.replace(mechanism, factorization=Toeplitz(C.coefficients[: C.bands], rounds))


def _settled(mechanism: Mechanism, workload: str) -> bool:
    C = mechanism.factorization
    return SteadyErrors(C, 1.0, parse_workload(workload, C.rounds)).settled


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
        compare("columns", self.settings.coordinates or self.layout.columns, self.layout.columns)

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
