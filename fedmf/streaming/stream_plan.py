"""The plan before the first row of a private stream: blocks of rows, matrices, noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import LedgerError
from fedmf.ledger.released_integers import part
from fedmf.matrices.arrays import Vector
from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.factorization import BuiltMechanism, Factorization, factorization_from_dict
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.sensitivity import Sensitivity, sensitivity_of
from fedmf.mechanisms.closed_forms import identity
from fedmf.mechanisms.objective import RMSE, Objective, query_variances
from fedmf.mechanisms.registry import accepted_parameters, build, optional_parameters
from fedmf.mechanisms.workload import ToeplitzWorkload, parse_workload
from fedmf.moments import (
    MomentMechanism,
    RunningMoments,
    SecondMoment,
    second_moment_named,
    weight_for,
)
from fedmf.moments.methods import mechanism_from_dict
from fedmf.participation import Participation, most_participations
from fedmf.release.plan import certified_multiplier
from fedmf.release.row_plan import step_contract
from fedmf.streaming.settings import AUTO, Settings
from fedmf.streaming.stream_rows import Layout
from fedmf.version import SOFTWARE

#: Most bands of a banded Toeplitz matrix if their number is not given.
_MOST_BANDS = 64
#: Most releases for which such a matrix is tried next to BLT.
_FEW = 4096
#: Buffers of BLT.
_BUFFERS = 3
#: Most releases for all of which BLT is optimized.
_MANY = 16_384
#: Powers of n/_MANY by which the slowest decay is stretched for more releases.
_STRETCHES: Final = (0.0, 0.5, 0.75, 1.0)
#: Number of weights in an objective.
_WEIGHTS: Final = 64
#: Relative tolerance for recorded numbers that are computed again.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """Everything that is fixed before the first row.

    Args:
        settings: of the stream.
        layout: of the rows.
        rounds: n, the most rows that count.
        strategies: the names of C₁ and C₂; one name where they are the same.
        params: their parameters.
        mechanism: C₁, C₂, the noise levels and the units of integers, with a round for each
            release; its noise multiplier is c·σ.
        software: name and version of the software that started the stream.
    """

    settings: Settings
    layout: Layout
    rounds: int
    strategies: tuple[str, ...]
    params: tuple[dict[str, float | int], ...]
    mechanism: MomentMechanism
    software: str = SOFTWARE

    @classmethod
    def of(cls, settings: Settings, layout: Layout, rounds: int) -> Self:
        """Build the matrices and calibrate the noise.

        Args:
            settings: of the stream.
            layout: of the rows.
            rounds: n.

        Raises:
            ValueError: a setting is impossible; the message says which.
        """
        steps, rows = step_contract(
            Participation(rounds, *settings.contract(rounds)), settings.rows_of_release
        )
        works = _workloads(settings, steps.rounds)
        built = _strategies(settings, steps, works)
        matrices = [one.factorization for one in built]
        sigma = certified_multiplier(settings.epsilon, settings.delta)
        moment = second_moment_named(settings.second_moment, layout.dimension)
        weight = settings.weight
        if isinstance(weight, str):
            weight = _weight_for(weight, settings, moment, matrices, steps, works, rows * sigma)
        users = _users(settings, moment)
        made = settings.moment_method.mechanism(matrices, steps, users, rows * sigma, weight)
        made = made.of_integers(moment)
        names = tuple(one.name for one in built)
        params = tuple(dict(one.params) for one in built)
        return cls(settings, layout, rounds, names, params, made)

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote, and compute the noise again from settings and coefficients.

        Raises:
            LedgerError: a recorded figure differs, by more than a relative 1e-9, from the one that
                follows.
        """
        layout: dict[str, Any] = {}
        for name, value in description["layout"].items():
            layout[name] = tuple(value) if isinstance(value, list) else value
        fields = dict(description)
        fields["settings"] = Settings.from_dict(fields["settings"])
        fields["layout"] = Layout(**layout)
        fields["strategies"] = tuple(fields["strategies"])
        fields["params"] = tuple(fields["params"])
        fields["mechanism"] = mechanism_from_dict(fields["mechanism"])
        plan = cls(**fields)
        plan._check()
        return plan

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict with every digit of the noise levels and coefficients."""
        return {
            "settings": self.settings.to_dict(),
            "layout": asdict(self.layout),
            "rounds": self.rounds,
            "strategies": list(self.strategies),
            "params": list(self.params),
            "mechanism": self.mechanism.to_dict(),
            "software": self.software,
        }

    def public(self) -> dict[str, Any]:
        """Describe the released integers, and how means and covariances follow from them."""
        rows = self.mechanism.rows(self.second_moment)
        names = ("first moment", "second moment")
        rounding = rows.rounding
        parts = []
        for i, C in enumerate(rows.factorizations):
            noise = rounding.parts[i]
            parts.append(part(names[i], C, rows.sizes[i], 1, noise.bits, noise))
        units = None
        if self.settings.encoding is not None:
            units = self.settings.encoding.units.tolist()
        return {
            "kind": "stream",
            "parts": parts,
            "vector_norm": self.settings.vector_norm,
            "clip_norm": self.settings.clip_norm,
            "count_weight": self.settings.count_weight,
            "workloads": list(self.settings.workloads),
            "second_moment": self.settings.second_moment,
            "dimension": self.layout.dimension,
            "units": units,
        }

    def _check(self) -> None:
        made = self.mechanism
        sigma = certified_multiplier(self.settings.epsilon, self.settings.delta)
        steps, rows = step_contract(self.participation, self.every)
        matrices = [made.first, *([] if made.second in (None, made.first) else [made.second])]
        again = self.settings.moment_method.mechanism(
            matrices, steps, _users(self.settings, self.second_moment), rows * sigma, made.weight
        ).of_integers(self.second_moment)
        recorded = made.to_dict()
        follows = again.to_dict()
        for name in (
            "participation",
            "users",
            "noise_multiplier",
            "first_std",
            "second_std",
            "sensitivity",
            "rounding",
        ):
            if not _agree(recorded[name], follows[name]):
                raise LedgerError(
                    f"{name} of the stream's plan is {recorded[name]!r}, but must be"
                    f" {follows[name]!r} with the rest of the plan. The record was altered: restore"
                    " it from a copy."
                )

    @cached_property
    def participation(self) -> Participation:
        """(n, k, b) of every user's rows."""
        return Participation(self.rounds, *self.settings.contract(self.rounds))

    @property
    def every(self) -> int:
        """R, the rows of a release; 1 in a stream of periods."""
        return self.settings.rows_of_release

    @property
    def releases(self) -> int:
        """N, the largest number of releases."""
        return self.mechanism.rounds

    @cached_property
    def rows_of_user(self) -> int:
        """c, the largest number of rows of a user in one release."""
        return step_contract(self.participation, self.every)[1]

    @cached_property
    def second_moment(self) -> SecondMoment:
        """The second moment that is released."""
        return second_moment_named(self.settings.second_moment, self.layout.dimension)

    @cached_property
    def workloads(self) -> tuple[ToeplitzWorkload, ToeplitzWorkload]:
        """A₁ and A₂, over releases."""
        return _workloads(self.settings, self.releases)

    @cached_property
    def width(self) -> int:
        """The number of numbers in a release: d and the packed second moment."""
        return self.layout.dimension + self.second_moment.size

    @cached_property
    def noise_multiplier(self) -> float:
        """σ; a user who does all that (n, k, b) allows has μ = 1/σ."""
        return self.mechanism.noise_multiplier / self.rows_of_user

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """c·s of C₁ and C₂ together."""
        rows = self.rows_of_user
        s = self.mechanism.sensitivity
        if rows == 1:
            return s
        whole = self.participation.max_participations % rows == 0
        kind = s.kind if whole else "upper_bound"
        return replace(
            s, value=rows * s.value, kind=kind, case=f"{s.case}; {rows} rows per user and release"
        )

    @cached_property
    def past_noise_size(self) -> int:
        """The number of numbers of past noise that the next release needs."""
        first = self.mechanism.first.streaming_inverse()
        size = first.memory_vectors * self.layout.dimension
        if self.mechanism.second is not None:
            second = self.mechanism.second.streaming_inverse()
            size += second.memory_vectors * self.second_moment.size
        return size

    def multiplier_under(self, count: int, separation: int | None) -> float:
        """σ towards users with at most so many rows, no two less than that many steps apart."""
        recorded = Participation(self.rounds, count, separation or self.rounds)
        steps, rows = step_contract(recorded, self.every)
        sigma = self.mechanism.multiplier_under(steps) / rows
        return max(self.noise_multiplier, sigma) if math.isfinite(sigma) else self.noise_multiplier

    def estimates(self) -> RunningMoments:
        """The post-processing of noisy sums, at the start of the stream."""
        return RunningMoments(self.mechanism, self.second_moment, *self.workloads)

    def row_sums(self, moment: int, t: NDArray[np.int64]) -> Vector:
        """Sum of the weights of all rows in the release after t rows.

        Args:
            moment: 0 for the first, 1 for the second.
            t: numbers of rows.
        """
        work = self.workloads[moment]
        at = -(-t // self.every) - 1
        lacking = (at + 1) * self.every - t  # rows that the last step has less than R
        last = np.full(at.shape, work.coefficients[0])
        if work.row_weights is not None:
            last = last * work.row_weights[at]
        if work.column_weights is not None:
            last = last * work.column_weights[at]
        return self._sums[moment][at] * self.every - last * lacking

    def variances(self, moment: int, t: NDArray[np.int64]) -> Vector:
        """Variance of the noise in a coordinate of a moment, in the release after t rows.

        Args:
            moment: 0 for the first, 1 for the second if it has noise of its own.
            t: numbers of rows.
        """
        return self._variances[moment][-(-t // self.every) - 1]

    @cached_property
    def _sums(self) -> tuple[Vector, Vector]:
        first, second = self.workloads
        return _row_sums(first), _row_sums(second)

    @cached_property
    def _variances(self) -> tuple[Vector, ...]:
        made = self.mechanism
        first = made.first_std**2 * query_variances(made.first, self.workloads[0])
        if not made.method.second_noise:
            return (first,)
        C, std = made.second_noise
        return first, std**2 * query_variances(C, self.workloads[1])

    def one_shot_error(self, rows: int) -> float:
        """Standard error of each mean in a single release of that many rows or periods.

        It has the same ε and method. Each user has at most k of these rows, whenever; the noise is
        for one sum.
        """
        C = identity(1)
        once = Participation(1, 1, 1)
        sigma = min(rows, self.participation.max_participations) * self.noise_multiplier
        users = self.mechanism.users
        method = self.settings.moment_method
        made = method.mechanism([C], once, users, sigma, self.mechanism.weight)
        return made.of_integers(self.second_moment).first_std / rows


def _workloads(settings: Settings, steps: int) -> tuple[ToeplitzWorkload, ToeplitzWorkload]:
    """A₁ and A₂; one object if they are the same."""
    first = parse_workload(settings.workloads[0], steps)
    if settings.workloads[-1] == settings.workloads[0]:
        return first, first
    return first, parse_workload(settings.workloads[-1], steps)


def _row_sums(work: ToeplitzWorkload) -> Vector:
    """Sums of the rows of a workload."""
    if work.name == "average":  # 1/t added t times misses 1 in the last bit
        return np.ones(work.rounds)
    return work.row_sums()


def _users(settings: Settings, moment: SecondMoment) -> UserRange:
    return UserRange(
        settings.vector_norm,
        moment.sensitivity_dimension,
        settings.adjacency,  # type: ignore[arg-type]
    )


def _strategies(
    settings: Settings, steps: Participation, works: Sequence[ToeplitzWorkload]
) -> list[BuiltMechanism]:
    """C₁ and C₂, or one of them if they are the same, optimized for their workloads."""
    params: dict[str, float] = {}
    if settings.bands is not None:
        params["bands"] = settings.bands
    params |= settings.params
    choices = list(settings.mechanisms)
    if params:  # parameters without a name are those of the banded Toeplitz matrix
        choices = ["banded-toeplitz" if choice == AUTO else choice for choice in choices]
    for symbol, value in params.items():
        if not any(symbol in _parameters_of(choice) for choice in choices):
            known = " or ".join(_name_of(choice) for choice in choices)
            raise ValueError(f"{symbol} (parameter) is none of {known}; got {symbol}={value}.")
    first = _strategy(choices[0], params, settings, steps, works[0])
    # A given matrix is the same for every workload; a named one is optimized for its workload.
    same = choices[-1] == choices[0] and (works[1] is works[0] or not isinstance(choices[0], str))
    if settings.moment_method.matrices == 1 or same:
        return [first]
    return [first, _strategy(choices[-1], params, settings, steps, works[1])]


def _strategy(
    choice: str | Factorization,
    params: Mapping[str, float],
    settings: Settings,
    steps: Participation,
    work: ToeplitzWorkload,
) -> BuiltMechanism:
    """The matrix of one choice, with those of the parameters that it takes."""
    if not isinstance(choice, str):
        return _given(choice, steps.rounds)
    objective = _objective(settings, work)
    if choice == AUTO:
        return _best(steps, work, objective)
    accepted = _parameters_of(choice)
    own = {symbol: value for symbol, value in params.items() if symbol in accepted}
    return build(choice, steps, work, params=own, objective=objective)


def _objective(settings: Settings, work: ToeplitzWorkload) -> Objective:
    """The objective for a workload.

    A mean over t steps has the error τ·‖(A C⁻¹)_t‖ where a single release of them has one ∝ 1/t. So
    squared errors of running averages are weighed by t², and by t once more since later ones are
    read more.
    """
    if settings.objective is not None:
        return Objective.parse(settings.objective)
    if work.name != "average":
        return RMSE
    count = min(_WEIGHTS, work.rounds)
    return Objective("weights", tuple(((i + 0.5) / count) ** 3 for i in range(count)))


def _best(steps: Participation, work: ToeplitzWorkload, objective: Objective) -> BuiltMechanism:
    """The mechanism of least error among those with few vectors in memory.

    These are BLT and, for few releases, the banded Toeplitz matrix of at most b bands. The error is
    the one with the noise that the sensitivity requires.
    """
    n = steps.rounds
    candidates = list[BuiltMechanism]()
    if n <= _FEW:
        params = {"bands": min(steps.min_separation, n, _MOST_BANDS)}
        candidates.append(build("banded-toeplitz", steps, work, params=params, objective=objective))
    if _BUFFERS < n <= _MANY:
        params = {"buffers": _BUFFERS}
        candidates.append(build("blt", steps, work, params=params, objective=objective))
    elif n > _MANY:
        candidates += _stretched_blts(steps, work, objective)

    def error(candidate: BuiltMechanism) -> float:
        C = candidate.factorization
        squared_error = objective.squared_error(query_variances(C, work))
        return sensitivity_of(C, steps).value ** 2 * squared_error

    return min(candidates, key=error)


def _stretched_blts(
    steps: Participation, work: ToeplitzWorkload, objective: Objective
) -> list[BuiltMechanism]:
    """BLTs for many releases with the buffers of BLTs that are optimized for fewer releases.

    The latter have the separation of all releases, or as many participations; each is also tried
    with its slowest decay stretched to all releases.
    """
    stretch = steps.rounds / _MANY
    candidates = list[BuiltMechanism]()
    for apart in (min(steps.min_separation, _MANY), max(1, round(steps.min_separation / stretch))):
        most = min(steps.max_participations, most_participations(_MANY, apart))
        fewer = Participation(_MANY, most, apart)
        part = work.leading(_MANY)
        params = {"buffers": _BUFFERS}
        C = build("blt", fewer, part, params=params, objective=objective).factorization
        assert isinstance(C, BufferedToeplitz)
        for power in _STRETCHES:
            slow = 1 - (1 - C.decays) / stretch**power
            decays = np.where(C.decays == C.decays.max(), slow, C.decays)
            longer = BufferedToeplitz(decays, C.weights, steps.rounds)
            candidates.append(BuiltMechanism("blt", {"buffers": _BUFFERS}, longer))
    return candidates


def _given(factorization: Factorization, rounds: int) -> BuiltMechanism:
    """A factorization that was given as an object, as it is read back from its coefficients."""
    if factorization.rounds != rounds:
        raise ValueError(
            f"C (mechanism) must have n = {rounds} rounds, one per release; got"
            f" {factorization.rounds}."
        )
    recorded = factorization_from_dict(factorization.to_dict())
    return BuiltMechanism(_name_of(factorization), {}, recorded)


def _name_of(choice: str | Factorization) -> str:
    return choice if isinstance(choice, str) else f"given {choice.to_dict()['type']}"


def _parameters_of(choice: str | Factorization) -> list[str]:
    """The parameters that a mechanism takes; none for a given matrix."""
    if not isinstance(choice, str):
        return []
    return [*accepted_parameters(choice), *optional_parameters(choice)]


def _weight_for(
    aim: str,
    settings: Settings,
    moment: SecondMoment,
    strategies: Sequence[Factorization],
    steps: Participation,
    works: Sequence[ToeplitzWorkload],
    sigma: float,
) -> float:
    """λ for the purpose of the last release, the moments of rows with its workload's weights."""
    errors = []
    for C, work in zip((strategies[0], strategies[-1]), works, strict=True):
        rows = float(work.row_sums()[-1]) * settings.rows_of_release
        errors.append(float(query_variances(C, work)[-1]) / rows**2)
    first, second = errors
    users = _users(settings, moment)
    return weight_for(aim, strategies, steps, users, moment, (first, second), sigma)


def _agree(recorded: object, follows: object) -> bool:
    """Whether two descriptions are equal, up to rounding of their numbers."""
    if isinstance(recorded, Mapping) and isinstance(follows, Mapping):
        names = recorded.keys() | follows.keys()
        return all(_agree(recorded[name], follows[name]) for name in names)
    if isinstance(recorded, tuple) and isinstance(follows, tuple):
        return len(recorded) == len(follows) and all(map(_agree, recorded, follows))
    if isinstance(recorded, float) and isinstance(follows, float):
        return math.isclose(recorded, follows, rel_tol=_TOLERANCE)
    return recorded == follows
