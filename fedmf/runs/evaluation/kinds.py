"""How released models are judged on users' own examples, as a value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from fedmf.cohorts import CyclicCohorts
from fedmf.factorization import NamedMechanism
from fedmf.parts import EvaluationPlan
from fedmf.values import Value, by_kind, check_whole

if TYPE_CHECKING:
    from fedmf.training import Task


Ranges = Mapping[str, tuple[float, float]]


def private_columns(name: str) -> tuple[str, str]:
    """The columns of a private estimate and of the standard deviation of its noise.

    >>> private_columns("accuracy")
    ('accuracy_private', 'accuracy_private_std')
    """
    return f"{name}_private", f"{name}_private_std"


@dataclass(frozen=True)
class Evaluation(Value):
    """On what released models are evaluated, beside the central test part."""

    def ranges(self, task: Task) -> Ranges:
        """The public range of each number that users say of a model with noise, by name; none without."""
        del task
        return {}


@dataclass(frozen=True)
class CentralEvaluation(Evaluation):
    """On the central test part alone."""

    kind: ClassVar[str] = "off"


@dataclass(frozen=True)
class NotPrivateEvaluation(Evaluation):
    """On the examples of each evaluated round's users as well, without noise: not private."""

    kind: ClassVar[str] = "not-private"


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

    def judges(self, plan: EvaluationPlan, users: int, e: int) -> list[int]:
        """Whom evaluation e of a plan asks, users by index."""
        schedule = self.cohorts(plan.count, users).schedule(users, plan.participation, secret_seed=0)
        return [int(user) for user in schedule.cohort(e)]


EVALUATIONS: Final = by_kind(CentralEvaluation, NotPrivateEvaluation, PrivateEvaluation)
