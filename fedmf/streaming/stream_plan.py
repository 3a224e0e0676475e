"""What a private stream was asked for, and the mechanism that follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from fedmf.accounting import certified_sigma
from fedmf.factorization import (
    Factorization,
    Mechanism,
    Sensitivity,
    UserRange,
    accepted_parameters,
    build,
    factorization_from_dict,
    optional_parameters,
)
from fedmf.moments import (
    BlockEnergies,
    DiagonalMoment,
    FullMatrix,
    MomentMechanism,
    MomentStream,
    SecondMoment,
    cs,
    ime,
    jme,
    pp,
)
from fedmf.noise import NoiseKey
from fedmf.participation import Participation
from fedmf.streaming.rows import Layout
from fedmf.workload import ToeplitzWorkload, parse_workload

__all__ = ["DEFAULT_MECHANISM", "METHODS", "Settings", "StreamPlan", "plan_stream"]

METHODS: Final = ("jme", "ime", "cs", "pp")
DEFAULT_MECHANISM: Final = "banded-toeplitz"
_DEFAULT_BANDS: Final = 32


@dataclass(frozen=True)
class Settings:
    """What the operator asked for, as far as it shapes noise and releases.

    Args:
        norm_bound: ζ.
        epsilon: ε.
        delta: δ.
        rounds: n; None for the number of rows of the input.
        user_column: name of the column of user ids; None: every row is another user.
        max_participations: k; None for 1.
        min_separation: b; None for n.
        workloads: A₁ and A₂ by name, or one for both.
        method: "jme", "ime", "cs" or "pp".
        mechanisms: names of C₁ and C₂, or one for both.
        bands: p, for mechanisms that take it.
        params: other parameters of mechanisms.
        second: "full", "diagonal", "energy" or the sizes of blocks, "2,3".
        weight: λ of jme, share α of ime, scale τ of cs; None for the default.
        adjacency: "zero-out" or "replace-one".
        columns: names of the numbers; None for all.
        every: R; steps R, 2R, … and n are released.
        seed: for a public key; None for one from the operating system.

    Raises:
        ValueError: a value out of its range.
    """

    norm_bound: float
    epsilon: float
    delta: float
    rounds: int | None = None
    user_column: str | None = None
    max_participations: int | None = None
    min_separation: int | None = None
    workloads: tuple[str, ...] = ("average",)
    method: str = "jme"
    mechanisms: tuple[str, ...] = (DEFAULT_MECHANISM,)
    bands: int | None = None
    params: Mapping[str, float] = dataclasses.field(default_factory=dict)
    second: str = "full"
    weight: float | None = None
    adjacency: str = "zero-out"
    columns: tuple[str, ...] | None = None
    every: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}.")
        for what, given in (("workload", self.workloads), ("mechanism", self.mechanisms)):
            if not 1 <= len(given) <= 2:
                raise ValueError(
                    f"{what} must be given once, or twice for the two moments; got {len(given)}."
                )
        if len(self.mechanisms) == 2 and self.method in ("cs", "pp"):
            raise ValueError(f"mechanism must be one for method {self.method}; got two.")
        if self.weight is not None and self.method == "pp":
            raise ValueError("weight must be left out for method pp, which has no second noise.")
        if self.every < 1:
            raise ValueError(f"R (every) must be at least 1; got {self.every}.")
        if self.rounds is not None and self.rounds < 1:
            raise ValueError(f"n (rounds) must be at least 1; got {self.rounds}.")
        if self.min_separation is not None and self.user_column is None and self.max_participations is None:
            raise ValueError("b (min_separation) needs k (max_participations) or a user column; got neither.")

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()} | {
            "params": dict(self.params)
        }


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """Everything that is fixed before the first row.

    Args:
        settings: what was asked for.
        layout: of the rows.
        mechanism: C₁, C₂ and the noise levels.
        params: the parameters of C₁ and of C₂.
        workloads: A₁ and A₂.
        second_moment: which one.
    """

    settings: Settings
    layout: Layout
    mechanism: MomentMechanism
    params: tuple[dict[str, float | int], ...]
    workloads: tuple[ToeplitzWorkload, ToeplitzWorkload]
    second_moment: SecondMoment

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

    def stream(self, key: NoiseKey) -> MomentStream:
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
        made = self.mechanism
        shared = made.second is made.first
        return {
            "settings": self.settings.to_dict(),
            "layout": dataclasses.asdict(self.layout),
            "participation": dataclasses.asdict(made.participation),
            "params": list(self.params),
            "mechanism": {
                "name": made.name,
                "first": made.first.to_dict(),
                "second": None if made.second is None or shared else made.second.to_dict(),
                "shared": shared,
                "first_std": made.first_std,
                "second_std": made.second_std,
                "noise_multiplier": made.noise_multiplier,
                "sensitivity": dataclasses.asdict(made.sensitivity),
                "weight": made.weight,
                "users": dataclasses.asdict(made.users),
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote."""
        asked, laid = dict(values["settings"]), dict(values["layout"])
        for name in ("workloads", "mechanisms", "columns"):
            asked[name] = None if asked[name] is None else tuple(asked[name])
        settings, layout = Settings(**asked), Layout(**{**laid, "columns": tuple(laid["columns"])})
        participation, kept = Participation(**values["participation"]), dict(values["mechanism"])
        first = factorization_from_dict(kept.pop("first"))
        second, shared = kept.pop("second"), kept.pop("shared")
        made = MomentMechanism(
            **{
                **kept,
                "first": first,
                "second": first if shared else None if second is None else factorization_from_dict(second),
                "participation": participation,
                "users": UserRange(**kept["users"]),
                "sensitivity": Sensitivity(**kept["sensitivity"]),
            }
        )
        works = _workloads(settings, participation.rounds)
        second_moment = second_moment_of(settings.second, layout.dimension)
        return cls(settings, layout, made, tuple(values["params"]), works, second_moment)


def plan_stream(settings: Settings, layout: Layout, rounds: int) -> StreamPlan:
    """Build the matrices and calibrate the noise.

    Args:
        settings: what was asked for.
        layout: of the rows.
        rounds: n.

    Raises:
        ValueError: something asked for is impossible; the message says what.
    """
    k = 1 if settings.max_participations is None else settings.max_participations
    b = rounds if settings.min_separation is None else settings.min_separation
    if k > 1 and settings.min_separation is None:
        raise ValueError(f"b (min_separation) must be given with k (max_participations) = {k}; got none.")
    participation = Participation(rounds, k, min(b, rounds) if k == 1 else b)
    works = _workloads(settings, rounds)
    second_moment = second_moment_of(settings.second, layout.dimension)
    users = UserRange(settings.norm_bound, second_moment.sensitivity_dimension, settings.adjacency)  # type: ignore[arg-type]
    sigma = certified_sigma(settings.epsilon, settings.delta)
    built = _build(settings, participation, works)
    C_1, C_2 = built[0].factorization, built[-1].factorization
    made = _mechanism(settings, C_1, C_2, participation, users, sigma)
    params = tuple(dict(mechanism.params) for mechanism in built)
    return StreamPlan(settings, layout, made, params, works, second_moment)


def second_moment_of(text: str, dimension: int) -> SecondMoment:
    """The second moment of a command-line name.

    >>> second_moment_of("2,3", 5).size
    2
    """
    simple = {"full": FullMatrix, "diagonal": DiagonalMoment, "energy": lambda d: BlockEnergies([d])}
    if text in simple:
        return simple[text](dimension)
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or sum(sizes) != dimension:
        raise ValueError(
            f"second (moment) must be full, diagonal, energy or block sizes that sum to d = {dimension}, "
            f"such as 2,3; got {text!r}."
        )
    return BlockEnergies(sizes)


def _workloads(settings: Settings, rounds: int) -> tuple[ToeplitzWorkload, ToeplitzWorkload]:
    first = parse_workload(settings.workloads[0], rounds)
    same = settings.workloads[-1] == settings.workloads[0]
    return first, first if same else parse_workload(settings.workloads[-1], rounds)


def _build(
    settings: Settings, participation: Participation, works: Sequence[ToeplitzWorkload]
) -> list[Mechanism]:
    """C₁ and C₂, or one of them if they are the same."""
    names = settings.mechanisms
    wide = min(_DEFAULT_BANDS, participation.min_separation)
    given = {**({} if settings.bands is None else {"bands": settings.bands}), **settings.params}
    takers = [(*accepted_parameters(name), *optional_parameters(name)) for name in names]
    for symbol, value in given.items():
        if not any(symbol in taken for taken in takers):
            raise ValueError(f"{symbol} (parameter) is none of {' or '.join(names)}; got {symbol}={value}.")
    pairs = [(names[0], works[0])]
    if settings.method not in ("cs", "pp") and (names[-1] != names[0] or works[1] is not works[0]):
        pairs.append((names[-1], works[1]))
    built = []
    for name, work in pairs:
        taken = (*accepted_parameters(name), *optional_parameters(name))
        own = {symbol: value for symbol, value in given.items() if symbol in taken}
        if name == DEFAULT_MECHANISM and "bands" not in own:
            own["bands"] = wide
        built.append(build(name, participation, work, params=own))
    return built


def _mechanism(
    settings: Settings,
    C_1: Factorization,
    C_2: Factorization,
    participation: Participation,
    users: UserRange,
    sigma: float,
) -> MomentMechanism:
    weight = settings.weight
    match settings.method:
        case "jme":
            return jme(C_1, C_2, participation, users, sigma, weight)
        case "ime":
            return ime(C_1, C_2, participation, users, sigma, 0.5 if weight is None else weight)
        case "cs":
            scale = users.norm_bound**-2 if weight is None else weight
            return cs(C_1, participation, users, sigma, scale)
        case _:
            return pp(C_1, participation, users, sigma)
