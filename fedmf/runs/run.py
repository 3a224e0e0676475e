"""A run as one value: everything that decides what it computes, validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import pydantic

from fedmf.cohorts import COHORTS, Cohorts, CohortSchedule, CyclicCohorts, SampledCohorts
from fedmf.errors import ConfigError
from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.choice import (
    GivenFactorization,
    MechanismChoice,
    NamedMechanism,
    mechanism_choice_from_dict,
)
from fedmf.mechanisms.objective import Objective
from fedmf.mechanisms.workload import ToeplitzWorkload, parse_workload
from fedmf.optim import (
    OPTIMIZERS,
    ChosenOptimizer,
    OwnOptimizer,
    ServerOptimizer,
    Sgd,
    chosen,
    fingerprint_of,
)
from fedmf.participation import Participation
from fedmf.release.statistics import check_statistics
from fedmf.runs.statistics import (
    ClientMetric,
    FixedClipping,
    QuantileClipping,
    Statistic,
    clipping_from,
    extra_releases_from,
)
from fedmf.runs.tasks import GIVEN, Classification, GivenTask, TaskSource, task_of, verified_object
from fedmf.statements.privacy import PRIVACY, NoPrivacy, Privacy, UserLevel
from fedmf.training import LocalSGD, Task
from fedmf.values import Field, Value, by_kind, checked, dotted, strict, value_of

_WEIGHT: Final = strict(Annotated[float, pydantic.Field(ge=0)])
#: Longest text, in characters, of a reported difference; longer values are only said to differ.
_LONGEST_DIFFERENCE: Final = 120


@dataclass(frozen=True)
class Execution(Value):
    """How a run is executed: messages, workers, time limits, evaluation and directory.

    Rounds with ``aggregate`` messages wait for all slices, so that one user's slow training cannot
    remove others from the sum: only rounds with a row per user end at ``round_timeout``.
    Before the first round ``connection_timeout`` applies until ``min_users`` are served, then
    ``handshake_timeout`` for the others; later answers are accepted during training.

    Raises:
        ValueError: a value out of its range.
    """

    kind: ClassVar[str] = "flower"
    #: Fields in which two processes of one run may differ: its place, and for whom and how long it
    #: waits.
    MAY_CHANGE: ClassVar[frozenset[str]] = frozenset(
        {
            "output_dir",
            "min_users",
            "min_reply_share",
            "round_timeout",
            "connection_timeout",
            "handshake_timeout",
        }
    )

    messages: Annotated[
        Literal["aggregate", "per-user", "one-user"],
        Field(
            "aggregate: a reply is the sum of clipped updates; per-user: one row per user, clipped"
            " again; one-user: like per-user, with one message per user"
        ),
    ] = "aggregate"
    workers: Annotated[int, Field("slices of a cohort in a simulation, or Ray actors", ge=1)] = 1
    worker_gpus: Annotated[float, Field("number of GPUs for each Ray actor", ge=0)] = 0.0
    round_timeout: Annotated[
        float,
        Field(
            "seconds to wait for the replies of a round, and as long again for those requested"
            " again; not with aggregate",
            gt=0,
        ),
    ] = 600.0
    connection_timeout: Annotated[
        float,
        Field(
            "seconds to wait until min-users are served before the first round, and until enough"
            " connected users may take part before each round of available cohorts",
            gt=0,
        ),
    ] = 600.0
    handshake_timeout: Annotated[
        float, Field("seconds to wait before the first round until nodes report their users", gt=0)
    ] = 60.0
    node_keys: Annotated[
        str,
        Field(
            "file with the public keys of nodes and the ids of their users, for authenticated nodes"
        ),
    ] = ""
    evaluate_every: Annotated[int, Field("rounds between evaluations on the test part", ge=1)] = 1
    checkpoint_every: Annotated[
        int,
        Field(
            "rounds between checkpoints, the work that kill -9 may lose; 0: as few as take at most"
            " 2 % of the time, at most 100",
            ge=0,
        ),
    ] = 0
    keep_releases: Annotated[
        bool,
        Field("keep all released integers, so that anyone can check the statement"),
    ] = False
    output_dir: Annotated[
        str, Field("run directory; must be absolute with flwr run, which resumes a run in it")
    ] = ""
    min_users: Annotated[
        int | None,
        Field(
            "users that nodes must serve before the first round; default: all of at most 20 users"
            " with a node each, half of others, users-per-round with available cohorts",
            ge=1,
        ),
    ] = None
    min_reply_share: Annotated[
        float | None,
        Field(
            "share of a cohort below which missing replies are requested again, and up to which"
            " available cohorts wait for connected users; default: 0.5, but 1 for at most 20 users"
            " with a node each unless cohorts are available",
            gt=0,
            le=1,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_releases and self.checkpoint_every > 1:
            raise ValueError(
                "checkpoint_every must be 1 with keep_releases, as the last release is kept with"
                f" the state; got {self.checkpoint_every}."
            )


@dataclass(frozen=True)
class MechanismConfig:
    """The strategy matrices of a run.

    Args:
        choice: C by name and parameters, or a factorization.
        workload: A₁ for which a named C is optimized; "auto" for that of the optimizer.
        objective: the error of the released queries that C minimizes: rmse, max, last or
            weights:w1,w2,… (`Objective`).
        second_moment_weight: w ≥ 0; above 0, the balance of both noises, and whether they share
            one matrix, minimize the predicted error with the second moment's weighted by w.

    Raises:
        ValueError: the choice is neither (a name alone, or a factorization alone), w is out of
            range, or the objective unknown.
    """

    choice: MechanismChoice = field(default_factory=lambda: NamedMechanism("banded-toeplitz"))
    workload: str = "prefix"
    objective: str = "rmse"
    second_moment_weight: float = 0.0

    def __post_init__(self) -> None:
        if not callable(getattr(self.choice, "build", None)):
            raise ValueError(
                "C (choice) must be NamedMechanism(name, params) or GivenFactorization(C); got"
                f" {type(self.choice).__name__}. The mechanism of a run may also be a name or a"
                " factorization."
            )
        Objective.parse(self.objective)
        checked(_WEIGHT, "w (second_moment_weight)", self.second_moment_weight)

    @property
    def goal(self) -> Objective:
        """The objective as a value."""
        return Objective.parse(self.objective)

    @property
    def bands(self) -> int | None:
        """p, if it is a parameter of a named mechanism."""
        if isinstance(self.choice, NamedMechanism) and "bands" in self.choice.params:
            return int(self.choice.params["bands"])
        return None

    def to_dict(self) -> dict[str, Any]:
        """The choice and how it is used, JSON-able."""
        return {
            "choice": self.choice.to_dict(),
            "workload": self.workload,
            "objective": self.objective,
            "second_moment_weight": self.second_moment_weight,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(**{**values, "choice": mechanism_choice_from_dict(values["choice"])})


def mechanism_config(
    given: MechanismConfig | MechanismChoice | Factorization | str,
) -> MechanismConfig:
    """Convert the forms of a mechanism: the whole value, a choice, a factorization, or a name."""
    if isinstance(given, MechanismConfig):
        return given
    if isinstance(given, str):
        return MechanismConfig(NamedMechanism(given))
    if isinstance(given, Factorization):
        return MechanismConfig(GivenFactorization(given))
    return MechanismConfig(given)


@dataclass(frozen=True, eq=False)
class Run:
    """The complete description of a private federated training run.

    You can create one from a configuration file, the command line, a Flower run config or Python.
    What a run records is derived from it.

    Args:
        task: data, model, loss and metrics: a `Task`, or a task by name.
        cohorts: the participants of each round.
        privacy: the guarantee, or `NoPrivacy`.
        mechanism: the strategy matrix: a name, a factorization, a name with parameters, or a
            `MechanismConfig` with its workloads.
        server: the server optimizer, which uses the private mean update: by name, or any object
            with ``init`` and ``step`` (`ServerOptimizer`); its state is part of every commit.
        client: local training.
        execution: messages, workers, limits.
        clipping: a fixed or an adaptive clip norm.
        extra_releases: further statistics that are released under the same ε.

    Raises:
        ConfigError: values that do not fit together.

    >>> run = Run(cohorts=CyclicCohorts(rounds=24), mechanism="bisr")
    >>> run.participation
    Participation(rounds=24, max_participations=3, min_separation=10)
    >>> Run.from_dict(run.to_dict()).difference(run) is None
    True
    """

    task: TaskSource | Task = field(default_factory=Classification)
    cohorts: Cohorts = field(default_factory=CyclicCohorts)
    privacy: Privacy = field(default_factory=UserLevel)
    mechanism: MechanismConfig | MechanismChoice | Factorization | str = "banded-toeplitz"
    server: ChosenOptimizer | ServerOptimizer = field(default_factory=Sgd)
    client: LocalSGD = field(default_factory=LocalSGD)
    execution: Execution = field(default_factory=Execution)
    clipping: FixedClipping | QuantileClipping = field(default_factory=FixedClipping)
    extra_releases: tuple[Statistic, ...] = ()

    def __post_init__(self) -> None:
        try:
            self._check()
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def _check(self) -> None:
        self._check_types()
        n = self.cohorts.rounds
        bands = self.mechanism_config.bands
        if bands is not None and bands > n:
            raise ValueError(f"bands (p) must be at most rounds n={n}; got {bands}.")
        if self.privacy.counts_sampling and not isinstance(self.cohorts, SampledCohorts):
            raise ValueError(
                f"cohorts must be sampled for an amplified run; got {self.cohorts.kind!r}."
                " Otherwise it would claim amplification without sampling."
            )
        check_statistics(self.statistics, self.privacy.counts_sampling, paired=False)
        self._check_held_out()
        self.schedule(secret_seed=0)  # only to check it
        self.optimizer_source.workload(n)  # only to check that its schedule fits the horizon
        for workload in (self.workload, self.second_workload):
            if workload.rounds != n:
                raise ValueError(f"A (workload) must have n={n} rounds; got {workload.rounds}.")

    def _check_types(self) -> None:
        """Reject arguments of another type, such as a number where a value belongs."""
        is_task = isinstance(self.task, Task) or hasattr(self.task, "build")
        is_rule = isinstance(self.server, ChosenOptimizer) or hasattr(self.server, "init")
        rules = {
            "task must be made by a function such as fedmf.classification": (is_task, self.task),
            "cohorts must be fedmf.CyclicCohorts or another class of cohorts": (
                isinstance(self.cohorts, Cohorts),
                self.cohorts,
            ),
            "privacy must be fedmf.UserLevel or fedmf.NoPrivacy": (
                isinstance(self.privacy, Privacy),
                self.privacy,
            ),
            "server must be an optimizer such as fedmf.Sgd, or have init and step": (
                is_rule,
                self.server,
            ),
            "client must be fedmf.LocalSGD": (isinstance(self.client, LocalSGD), self.client),
            "extra_releases must be a tuple or list": (
                isinstance(self.extra_releases, tuple | list),
                self.extra_releases,
            ),
        }
        for rule, (kept, given) in rules.items():
            if not kept:
                raise ValueError(f"{rule}; got {type(given).__name__}.")
        for each in self.extra_releases:
            if not isinstance(each, Statistic):
                raise ValueError(
                    f"extra_releases must hold values of fedmf.runs.Statistic; got {each!r}."
                )

    def _check_held_out(self) -> None:
        """Require examples on which users compute metrics, unless their own programs do."""
        own_program = "held_out" in self.task_source.ignored_keys.get("client", ())
        for each in self.extra_releases:
            if isinstance(each, ClientMetric) and not own_program and not self.client.held_out:
                raise ValueError(
                    "held_out (share of a user's examples) must be above 0 with the client metric"
                    f" {each.metric!r}, which is computed on them; got 0."
                )

    @cached_property
    def task_source(self) -> TaskSource:
        """The task by name, by function or as an object."""
        if isinstance(self.task, Task):
            return GivenTask(self.task)
        return self.task

    @cached_property
    def optimizer_source(self) -> ChosenOptimizer:
        """The optimizer before the model is known."""
        return chosen(self.server)

    @cached_property
    def mechanism_config(self) -> MechanismConfig:
        """The mechanism with its workloads."""
        return mechanism_config(self.mechanism)

    @cached_property
    def participation(self) -> Participation:
        """The (n, k, b) contract; bounds that the cohorts leave unset are derived."""
        return self.cohorts.participation(self.task_source.users, self.mechanism_config.bands)

    @cached_property
    def workload(self) -> ToeplitzWorkload:
        """A₁."""
        rounds = self.cohorts.rounds
        if self.mechanism_config.workload == "auto":
            return self.optimizer_source.workload(rounds)
        return parse_workload(self.mechanism_config.workload, rounds)

    @cached_property
    def second_workload(self) -> ToeplitzWorkload:
        """A₂."""
        return self.optimizer_source.second_workload(self.cohorts.rounds)

    def schedule(self, secret_seed: int) -> CohortSchedule:
        """The cohort of each round, drawn from the secret seed if it is sampled."""
        source = self.task_source
        return self.cohorts.schedule(source.users, self.participation, source.seed, secret_seed)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Statistics released with the model, including the clip norm if it is adaptive."""
        if isinstance(self.clipping, Statistic):
            return (self.clipping, *self.extra_releases)
        return self.extra_releases

    @property
    def given_objects(self) -> tuple[Task | None, ServerOptimizer | None]:
        """Task and optimizer, if they were given as objects; None for others."""
        task = None
        if isinstance(self.task, Task):
            task = self.task
        optimizer = None
        if isinstance(self.optimizer_source, OwnOptimizer):
            optimizer = self.optimizer_source.rule
        return task, optimizer

    @property
    def is_private(self) -> bool:
        """Whether noise is added."""
        return not isinstance(self.privacy, NoPrivacy)

    @property
    def users_in_a_call(self) -> int:
        """How many users a client is planned to train in one call, a public number."""
        if self.execution.messages == "one-user":
            return 1
        return self.cohorts.users_per_round

    def to_dict(self) -> dict[str, Any]:
        """Kind and fields of each value, JSON-able: enough to rebuild the run.

        Objects of the user's own are recorded by qualified name and fingerprint, factorizations by
        their coefficients.
        """
        return {
            "task": self.task_source.to_dict(),
            "cohorts": self.cohorts.to_dict(),
            "privacy": self.privacy.to_dict(),
            "mechanism": self.mechanism_config.to_dict(),
            "server": recorded_optimizer(self.optimizer_source),
            "client": self.client.to_dict(),
            "execution": self.execution.to_dict(),
            "clipping": self.clipping.to_dict(),
            "extra_releases": [each.to_dict() for each in self.extra_releases],
        }

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, Any],
        task: Task | None = None,
        optimizer: ServerOptimizer | None = None,
    ) -> Self:
        """Read what `to_dict` wrote.

        Args:
            values: a recorded run.
            task: the task, if it was given as an object.
            optimizer: likewise.

        Raises:
            ConfigError: an object of the user's own is missing or another one.
            ValueError: values of another version, or out of range.
        """
        return cls(
            task=task_of(values["task"], task),
            cohorts=value_of(COHORTS, values["cohorts"]),
            privacy=value_of(PRIVACY, values["privacy"]),
            mechanism=MechanismConfig.from_dict(values["mechanism"]),
            server=optimizer_of(values["server"], optimizer),
            client=value_of(by_kind(LocalSGD), values["client"]),
            execution=value_of(by_kind(Execution), values["execution"]),
            clipping=clipping_from(values),
            extra_releases=extra_releases_from(values),
        )

    def difference(self, other: Run) -> str | None:
        """One line with the first value that changes the result of a run; None without any."""
        return first_difference(self.to_dict(), other.to_dict())


def recorded_optimizer(optimizer: ChosenOptimizer) -> dict[str, Any]:
    """The record of an optimizer: its options, or name, attributes and fingerprint of an object."""
    if isinstance(optimizer, Value):
        return optimizer.to_dict()
    rule: Any = optimizer
    if isinstance(optimizer, OwnOptimizer):
        rule = optimizer.rule
    name, fingerprint = fingerprint_of(rule)
    options = dict[str, str]()
    state = rule.__getstate__()
    if isinstance(state, dict):
        for key, value in state.items():
            if isinstance(value, int | float | str):
                options[key] = repr(value)
    return {"kind": GIVEN, "name": name, "options": options, "fingerprint": fingerprint}


def optimizer_of(
    recorded: Mapping[str, Any], optimizer: ServerOptimizer | None
) -> ChosenOptimizer | ServerOptimizer:
    """Read what `recorded_optimizer` returned; an object must be given again."""
    if recorded.get("kind") != GIVEN:
        return value_of(OPTIMIZERS, recorded)

    def describe(given: ServerOptimizer) -> Mapping[str, Any]:
        return recorded_optimizer(chosen(given))

    return verified_object("optimizer", recorded, optimizer, describe)


def first_difference(recorded: Mapping[str, Any], run: Mapping[str, Any]) -> str | None:
    """`Run.difference` of two records of `Run.to_dict`; fingerprints are compared last."""
    before = dotted(recorded)
    after = dotted(run)
    names = sorted(before.keys() | after.keys())
    for name in sorted(names, key=lambda name: name.endswith("fingerprint")):
        old = before.get(name)
        new = after.get(name)
        if old == new or name.removeprefix("execution.") in Execution.MAY_CHANGE:
            continue
        values = f"is {old!r}, not {new!r}"
        if len(values) >= _LONGEST_DIFFERENCE:
            values = "differs"
        return f"its {name} {values}"
    return None
