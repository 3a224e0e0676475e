"""The mechanism that follows from what a private stream was asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from fedmf.accounting import certified_sigma
from fedmf.factorization import (
    Factorization,
    Mechanism,
    UserRange,
    accepted_parameters,
    build,
    factorization_from_dict,
    optional_parameters,
)
from fedmf.moments import (
    METHODS,
    MomentMechanism,
    MomentStream,
    SecondMoment,
    mechanism_from_dict,
    second_moment_named,
)
from fedmf.noise import KeySchedule, NoiseKey
from fedmf.participation import Participation
from fedmf.streaming.rows import Layout
from fedmf.streaming.settings import DEFAULT_MECHANISM, Settings
from fedmf.version import SOFTWARE
from fedmf.workload import ToeplitzWorkload, parse_workload

__all__ = ["StreamPlan", "check_plan", "plan_stream"]

_DEFAULT_BANDS: Final = 32
#: Relative, of every number that is computed again.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """Everything that is fixed before the first row.

    Args:
        settings: what was asked for.
        layout: of the rows.
        mechanism: C₁, C₂ and the noise levels.
        strategies: what C₁ and C₂ are called; one name where they are the same.
        params: their parameters.
        workloads: A₁ and A₂.
        second_moment: which one.
        software: name and version of what the stream was begun with.
    """

    settings: Settings
    layout: Layout
    mechanism: MomentMechanism
    strategies: tuple[str, ...]
    params: tuple[dict[str, float | int], ...]
    workloads: tuple[ToeplitzWorkload, ToeplitzWorkload]
    second_moment: SecondMoment
    software: str = SOFTWARE

    @property
    def rounds(self) -> int:
        """n."""
        return self.mechanism.rounds

    @property
    def averages(self) -> bool:
        """Whether both moments are running averages, so that they give mean and covariance."""
        return all(work.name == "average" for work in self.workloads)

    @property
    def width(self) -> int:
        """Numbers of a release: d and those of the packed second moment."""
        return self.layout.dimension + self.second_moment.size

    def stream(self, key: NoiseKey | KeySchedule) -> MomentStream:
        """A fresh stream of this plan."""
        return MomentStream(self.mechanism, self.second_moment, *self.workloads, key=key)

    def records_after(self, step: int) -> int:
        """How many releases there are up to a step."""
        return step // self.settings.every + int(step == self.rounds and step % self.settings.every != 0)

    def step_of(self, record: int) -> int:
        """The step of a release, counted from 0."""
        return min((record + 1) * self.settings.every, self.rounds)

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

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote."""
        settings = Settings.from_dict(description["settings"])
        mechanism = mechanism_from_dict(description["mechanism"])
        layout = Layout(**{**description["layout"], "columns": tuple(description["layout"]["columns"])})
        return cls(
            settings,
            layout,
            mechanism,
            tuple(description["strategies"]),
            tuple(description["params"]),
            _workloads(settings, mechanism.rounds),
            second_moment_named(settings.second, layout.dimension),
            description["software"],
        )


def check_plan(plan: StreamPlan) -> None:
    """Compute again what follows from settings and coefficients, and compare.

    Raises:
        ValueError: a recorded figure differs, by more than a relative 1e-9, from the one that follows; both
            are named.
    """
    made, settings = plan.mechanism, plan.settings
    strategies = [made.first, *([] if made.second in (None, made.first) else [made.second])]
    rounds = made.participation.rounds if settings.rounds is None else settings.rounds
    dimension = plan.second_moment.sensitivity_dimension
    users = UserRange(settings.norm_bound, dimension, settings.adjacency)  # type: ignore[arg-type]
    sigma = certified_sigma(settings.epsilon, settings.delta)
    participation = _participation(settings, rounds)
    again = METHODS[settings.method].mechanism(strategies, participation, users, sigma, settings.weight)
    for name in (
        "participation",
        "users",
        "noise_multiplier",
        "first_std",
        "second_std",
        "weight",
        "debiased",
    ):
        _compare(name, getattr(made, name), getattr(again, name))
    _compare("method", made.method.name, settings.method)
    _compare("columns", settings.columns or plan.layout.columns, plan.layout.columns)
    for name in ("value", "kind", "case"):
        _compare(
            f"{name} of the sensitivity", getattr(made.sensitivity, name), getattr(again.sensitivity, name)
        )


def _compare(name: str, recorded: object, recomputed: object) -> None:
    if isinstance(recorded, float) and isinstance(recomputed, float):
        agree = math.isclose(recorded, recomputed, rel_tol=_TOLERANCE)
    else:
        agree = recorded == recomputed
    if not agree:
        raise ValueError(
            f"{name} of the stream's plan is {recorded!r}; from the rest of the plan follows {recomputed!r}. "
            "The record was altered: restore it from a copy."
        )


def _participation(settings: Settings, rounds: int) -> Participation:
    k = 1 if settings.max_participations is None else settings.max_participations
    b = rounds if settings.min_separation is None else settings.min_separation
    if k > 1 and settings.min_separation is None:
        raise ValueError(f"b (min_separation) must be given with k (max_participations) = {k}; got none.")
    return Participation(rounds, k, min(b, rounds) if k == 1 else b)


def plan_stream(settings: Settings, layout: Layout, rounds: int) -> StreamPlan:
    """Build the matrices and calibrate the noise.

    Args:
        settings: what was asked for.
        layout: of the rows.
        rounds: n.

    Raises:
        ValueError: something asked for is impossible; the message says what.
    """
    participation = _participation(settings, rounds)
    works = _workloads(settings, rounds)
    second_moment = second_moment_named(settings.second, layout.dimension)
    users = UserRange(settings.norm_bound, second_moment.sensitivity_dimension, settings.adjacency)  # type: ignore[arg-type]
    sigma = certified_sigma(settings.epsilon, settings.delta)
    built = _build(settings, participation, works)
    strategies = [mechanism.factorization for mechanism in built]
    method = METHODS[settings.method]
    return StreamPlan(
        settings,
        layout,
        method.mechanism(strategies, participation, users, sigma, settings.weight),
        tuple(mechanism.name for mechanism in built),
        tuple(dict(mechanism.params) for mechanism in built),
        works,
        second_moment,
    )


def _workloads(settings: Settings, rounds: int) -> tuple[ToeplitzWorkload, ToeplitzWorkload]:
    first = parse_workload(settings.workloads[0], rounds)
    same = settings.workloads[-1] == settings.workloads[0]
    return first, first if same else parse_workload(settings.workloads[-1], rounds)


def _build(
    settings: Settings, participation: Participation, works: Sequence[ToeplitzWorkload]
) -> list[Mechanism]:
    """C₁ and C₂, or one of them if they are the same."""
    choices = settings.mechanisms
    wide = min(_DEFAULT_BANDS, participation.min_separation)
    asked = {**({} if settings.bands is None else {"bands": settings.bands}), **settings.params}
    for symbol, value in asked.items():
        if not any(symbol in _taken(choice) for choice in choices):
            known = " or ".join(_name(choice) for choice in choices)
            raise ValueError(f"{symbol} (parameter) is none of {known}; got {symbol}={value}.")
    pairs = [(choices[0], works[0])]
    # A given matrix is the same whatever it is for; one of a name is optimised for its workload.
    same = choices[-1] == choices[0] and (works[1] is works[0] or not isinstance(choices[0], str))
    if METHODS[settings.method].matrices == 2 and not same:
        pairs.append((choices[-1], works[1]))
    built = []
    for choice, work in pairs:
        if not isinstance(choice, str):
            built.append(_given(choice, participation.rounds))
            continue
        params = {symbol: value for symbol, value in asked.items() if symbol in _taken(choice)}
        if choice == DEFAULT_MECHANISM and "bands" not in params:
            params["bands"] = wide
        built.append(build(choice, participation, work, params=params))
    return built


def _given(factorization: Factorization, rounds: int) -> Mechanism:
    """A factorization that came as an object, as it will be read back from its coefficients."""
    if factorization.rounds != rounds:
        raise ValueError(
            f"C (mechanism) must have n = {rounds} rounds, those of the stream; got {factorization.rounds}."
        )
    return Mechanism(_name(factorization), {}, factorization_from_dict(factorization.to_dict()))


def _name(choice: str | Factorization) -> str:
    return choice if isinstance(choice, str) else f"given {choice.to_dict()['type']}"


def _taken(choice: str | Factorization) -> list[str]:
    """The parameters that a mechanism takes."""
    if not isinstance(choice, str):
        return []
    return [*accepted_parameters(choice), *optional_parameters(choice)]
