"""Server optimizers before model and horizon are known: options, or an object of the user's own.

A run holds a `ChosenOptimizer`. Its plan asks for the workloads, and its session builds the rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fedmf.mechanisms.workload import LearningRateSchedule, ScheduleKind, ToeplitzWorkload, prefix
from fedmf.optim.own_rule import OwnRule
from fedmf.optim.server_optimizer import Move
from fedmf.release.round_release import ServerOptimizer
from fedmf.values import Field, Value


class ChosenOptimizer(ABC):
    """A server optimizer before it is built: the workloads it needs, and how to build it."""

    @abstractmethod
    def build(self, shapes: Sequence[Sequence[int]], rounds: int) -> ServerOptimizer:
        """The update rule for a model and a horizon.

        Args:
            shapes: of the model's tensors in the order of the flat vector; blocks of second moments
                follow them.
            rounds: n, the horizon of the schedule.

        Raises:
            ValueError: the options do not suit them.
        """

    def workload(self, rounds: int) -> ToeplitzWorkload:
        """A₁, by which the noise of each round enters the models; prefix sums by default."""
        return prefix(rounds)

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        """A₂, by which second moments are added up over rounds; prefix sums by default."""
        return prefix(rounds)


@dataclass(frozen=True)
class OptimizerOptions(Value, ChosenOptimizer):
    """A server optimizer with its options.

    Raises:
        ValueError: a value is out of range.
    """

    learning_rate: Annotated[
        float, Field("server learning rate η, the maximum of the schedule", "η")
    ] = 0.1
    schedule: Annotated[
        ScheduleKind, Field("constant, or linear or cosine decay to zero at the last round")
    ] = "constant"
    warmup: Annotated[
        int, Field("number of rounds in which the learning rate increases to η", "w", ge=0)
    ] = 0
    weight_decay: Annotated[float, Field("decoupled weight decay w ≤ 1/η", "w")] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        # Rules check their own ranges, so build one for a model with a single parameter.
        self.build([(1,)], self.warmup + 1)

    def rates(self, rounds: int) -> LearningRateSchedule:
        """η_t over n rounds.

        Raises:
            ValueError: the warm-up does not end before the horizon.
        """
        return LearningRateSchedule(self.schedule, self.learning_rate, rounds, self.warmup)

    def move(self, rounds: int) -> Move:
        """The step from a direction to the next parameters."""
        return Move(self.rates(rounds), self.weight_decay)


@dataclass(frozen=True, eq=False)
class OwnOptimizer(ChosenOptimizer):
    """An update rule that is complete already.

    Args:
        rule: any object with the methods of `ServerOptimizer`. Its methods ``workload(rounds)``
            and ``second_workload(rounds)``, if any, return its own A₁ and A₂.
    """

    rule: ServerOptimizer

    def build(self, shapes: Sequence[Sequence[int]], rounds: int) -> ServerOptimizer:
        """The rule, applied to copies of its arguments."""
        return OwnRule(self.rule)

    def workload(self, rounds: int) -> ToeplitzWorkload:
        """The rule's own A₁, or prefix sums."""
        return getattr(self.rule, "workload", super().workload)(rounds)

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        """The rule's own A₂, or prefix sums."""
        return getattr(self.rule, "second_workload", super().second_workload)(rounds)


def chosen(optimizer: ChosenOptimizer | ServerOptimizer) -> ChosenOptimizer:
    """Return options as they are, and wrap an update rule of the user's own in `OwnOptimizer`."""
    if isinstance(optimizer, ChosenOptimizer):
        return optimizer
    return OwnOptimizer(optimizer)


def check_decay(label: str, decay: float) -> None:
    """Reject a decay outside [0, 1).

    Raises:
        ValueError: the decay is outside.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"{label} must lie in [0, 1); got {decay}.")
