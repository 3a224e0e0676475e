"""How released models are judged on users' own examples, as a value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fedmf.accounting import DifferentialPrivacy, Privacy, certified_sigma
from fedmf.cohorts import CyclicCohorts
from fedmf.errors import ConfigError
from fedmf.factorization import NamedMechanism, stated_sensitivity
from fedmf.parts import EvaluationPlan, OwnStream, evaluation_count, shared_multipliers
from fedmf.values import Value, by_kind, check_whole
from fedmf.workload import parse_workload

if TYPE_CHECKING:
    from fedmf.statements import Plan
    from fedmf.training import Task


Ranges = Mapping[str, tuple[float, float]]
#: (name, recorded, recomputed)
Figure = tuple[str, Any, Any]


def not_private(metric: str) -> str:
    """The column that says what it is: a metric of users' own examples, without noise.

    >>> not_private("accuracy")
    'federated_accuracy_not_private'
    """
    return f"federated_{metric}_not_private"


def private_columns(name: str) -> tuple[str, str]:
    """The columns of a private estimate and of the standard deviation of its noise.

    >>> private_columns("accuracy")
    ('accuracy_private', 'accuracy_private_std')
    """
    return f"{name}_private", f"{name}_private_std"


@dataclass(frozen=True)
class Evaluation(Value):
    """On what released models are evaluated, beside the central test part."""

    #: Whether it shows figures of users' own examples as they are.
    without_noise: ClassVar[bool] = False
    #: What it releases beside the rounds, by name.
    streams: ClassVar[tuple[str, ...]] = ()

    def columns(self, name: str) -> tuple[str, ...]:
        """What it adds to the metrics table for the loss or a metric: the figure, and what its error is."""
        del name
        return ()

    def ranges(self, task: Task) -> Ranges:
        """The public range of each number that users say of a model with noise, by name; none without."""
        del task
        return {}

    def check_task(self, task: Task) -> None:
        """Refuse a task whose users cannot be evaluated on.

        Raises:
            ConfigError: the server does not know what it needs of their examples.
        """

    def check_beside(self, privacy: Privacy, rounds: int, users: int) -> None:
        """Refuse a run beside which no theorem covers it, or which it does not fit.

        Args:
            privacy: of the run.
            rounds: n.
            users: N.

        Raises:
            ValueError: such a run.
        """

    def planned(
        self, privacy: Privacy, training: float, rounds: int, users: int, ranges: Ranges
    ) -> tuple[float, tuple[OwnStream, ...]]:
        """σ of training beside it, and what it releases, which have the run's (ε, δ) together.

        Args:
            privacy: of the run.
            training: σ of training alone.
            rounds: n.
            users: N.
            ranges: of what users say, by name.

        Raises:
            ValueError: a mechanism or workload that cannot be built for so many evaluations, or too many
                users.
        """
        del privacy, rounds, users, ranges
        return training, ()

    def figures(self, plan: Plan, ranges: list[Any] | None) -> Iterator[Figure]:
        """What follows from it and the run's (ε, δ), beside what a plan has.

        Args:
            plan: as it was recorded, with streams of the names that this has.
            ranges: of what users say, where they are known without the task's code.
        """
        del ranges
        if not isinstance(plan.privacy, DifferentialPrivacy):
            yield "noise_multiplier", plan.noise_multiplier, 0.0
        elif plan.amplification is None:
            sigma = certified_sigma(plan.privacy.epsilon, plan.privacy.delta)
            yield "noise_multiplier", plan.noise_multiplier, sigma

    def judges(self, plan: EvaluationPlan, users: int, e: int) -> list[int]:
        """Whom private evaluation e of a plan asks, users by index."""
        del plan, users, e
        return []


@dataclass(frozen=True)
class CentralEvaluation(Evaluation):
    """On the central test part alone."""

    kind: ClassVar[str] = "off"


@dataclass(frozen=True)
class NotPrivateEvaluation(Evaluation):
    """On the examples of each evaluated round's users as well, without noise: not private."""

    kind: ClassVar[str] = "not-private"
    without_noise: ClassVar[bool] = True

    def columns(self, name: str) -> tuple[str, ...]:
        """See `Evaluation.columns`."""
        return (not_private(name),)

    def check_task(self, task: Task) -> None:
        """See `Evaluation.check_task`: answers weigh by numbers of examples."""
        if not task.dataset.has_examples:
            raise ConfigError(
                "evaluation must be 'off' or 'private' where users' examples are on their nodes; got "
                "'not-private', which weighs answers by numbers of examples that the server does not know."
            )


@dataclass(frozen=True)
class PrivateEvaluation(Evaluation):
    """On users' own examples as well, with noise, under one ε with training.

    Args:
        share: of the squared μ of the run's (ε, δ), in (0, 1); training has the rest.
        every: rounds between private evaluations; the last round has one too.
        size: users asked in each; all if unset.
        loss_bound: L > 0; a user's mean loss is clamped to [0, L]. Metrics have ranges of their own.
        mechanism: name of the strategy matrix of the noise.
        workload: which curve is shown: "window:1", each evaluation alone; "exponential:0.8", a smoothed one.
        seed: public seed of the order in which users are asked.

    Raises:
        ValueError: a value out of its range, or an unknown mechanism or workload.
    """

    kind: ClassVar[str] = "private"
    streams: ClassVar[tuple[str, ...]] = (EvaluationPlan.name,)

    share: float = 0.1
    every: int = 10
    size: int | None = None
    loss_bound: float = 5.0
    mechanism: str = "identity"
    workload: str = "window:1"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share (of mu^2) must lie strictly between 0 and 1; got {self.share!r}.")
        check_whole("every (rounds between private evaluations)", self.every)
        if self.size is not None:
            check_whole("m_e (size of private evaluations)", self.size)
        if not 0 < self.loss_bound < math.inf:
            raise ValueError(f"L (loss_bound) must be positive and finite; got {self.loss_bound!r}.")
        check_whole("seed (of the order of users in evaluations)", self.seed, 0, 2**63 - 1)
        _ = self.choice  # refuses an unknown name

    @property
    def choice(self) -> NamedMechanism:
        """The strategy matrix before its horizon is known."""
        return NamedMechanism(self.mechanism)

    def columns(self, name: str) -> tuple[str, ...]:
        """See `Evaluation.columns`."""
        return private_columns(name)

    def ranges(self, task: Task) -> Ranges:
        """See `Evaluation.ranges`: of the loss, and of each metric of the task."""
        from fedmf.training import judgement_ranges

        return judgement_ranges(task, self.loss_bound)

    def cohorts(self, evaluations: int, users: int) -> CyclicCohorts:
        """Who is asked in which evaluation.

        Raises:
            ValueError: more users a time than there are.
        """
        size = users if self.size is None else self.size
        if size > users:
            raise ValueError(f"m_e (size of private evaluations) must be at most N={users}; got {size}.")
        return CyclicCohorts(rounds=evaluations, size=size, seed=self.seed)

    def check_beside(self, privacy: Privacy, rounds: int, users: int) -> None:
        """See `Evaluation.check_beside`."""
        if not isinstance(privacy, DifferentialPrivacy):
            raise ValueError(
                "evaluation must not be 'private' in a run without noise: it has a share of the run's "
                "epsilon. Use 'not-private' or 'off'."
            )
        if privacy.amplified:
            raise ValueError(
                "evaluation must not be 'private' in an amplified run: no theorem covers sums whose secret "
                "cohorts another release shares. Use 'off', or privacy.amplified = false."
            )
        count = evaluation_count(rounds, self.every)
        cohorts = self.cohorts(count, users)
        cohorts.schedule(users, cohorts.participation(users), secret_seed=0)  # only to check it
        parse_workload(self.workload, count)

    def planned(
        self, privacy: Privacy, training: float, rounds: int, users: int, ranges: Ranges
    ) -> tuple[float, tuple[OwnStream, ...]]:
        """See `Evaluation.planned`."""
        assert isinstance(privacy, DifferentialPrivacy)  # `check_beside`
        count = evaluation_count(rounds, self.every)
        cohorts = self.cohorts(count, users)
        contract = cohorts.participation(users)
        training, evaluation = shared_multipliers(privacy.epsilon, privacy.delta, self.share)
        mechanism = self.choice.build(contract, parse_workload(self.workload, count))
        plan = EvaluationPlan(
            rounds=rounds,
            every=self.every,
            size=cohorts.size,
            participation=contract,
            mechanism=mechanism,
            workload=self.workload,
            sensitivity=stated_sensitivity(mechanism.factorization, contract),
            noise_multiplier=evaluation,
            share=self.share,
            ranges=tuple((name, float(low), float(high)) for name, (low, high) in ranges.items()),
        )
        return training, (plan,)

    def figures(self, plan: Plan, ranges: list[Any] | None) -> Iterator[Figure]:
        """See `Evaluation.figures`."""
        made, privacy = EvaluationPlan.among(plan.own_streams), plan.privacy
        assert made is not None
        assert isinstance(privacy, DifferentialPrivacy)  # `Plan` has no evaluation without noise
        cohorts = self.cohorts(evaluation_count(plan.participation.rounds, self.every), plan.users)
        sigma, sigma_e = shared_multipliers(privacy.epsilon, privacy.delta, self.share)
        yield "noise_multiplier", plan.noise_multiplier, sigma
        yield "noise_multiplier of evaluations", made.noise_multiplier, sigma_e
        yield "participation of evaluations", made.participation, cohorts.participation(plan.users)
        yield "size of evaluations", made.size, cohorts.size
        for name in ("every", "workload", "share"):
            yield f"{name} of evaluations", getattr(made, name), getattr(self, name)
        said = [list(entry) for entry in made.ranges]
        if ranges is None:  # a task whose metrics only its code knows
            yield "range of the loss in evaluations", said[0], ["loss", 0.0, float(self.loss_bound)]
        else:
            yield "ranges of evaluations", said, ranges
        recomputed = stated_sensitivity(made.mechanism.factorization, made.participation)
        yield "sensitivity of evaluations", made.sensitivity, recomputed

    def judges(self, plan: EvaluationPlan, users: int, e: int) -> list[int]:
        """See `Evaluation.judges`."""
        schedule = self.cohorts(plan.count, users).schedule(users, plan.participation, secret_seed=0)
        return [int(user) for user in schedule.cohort(e)]


EVALUATIONS: Final = by_kind(CentralEvaluation, NotPrivateEvaluation, PrivateEvaluation)
