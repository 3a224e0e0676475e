"""When a run may end before its horizon: rules on metrics that are public or were released with noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedmf.errors import ConfigError
from fedmf.runs.observing.observer import is_public
from fedmf.values import check_whole

if TYPE_CHECKING:
    from fedmf.runs.session import Session


class StopRule(Protocol):
    """Decides on the values of one column of the metrics table, and on nothing else.

    A rule with an attribute ``higher_is_better`` that is not None says itself which values are better: it
    must where only clients know the task, as those of a Flower app.

    Attributes:
        metric: the column.
    """

    @property
    def metric(self) -> str:
        """The column."""
        ...

    def reason(self, values: Sequence[float], higher_is_better: bool) -> str | None:
        """Why to stop after these values, oldest first, NaN where there is none; None to go on."""
        ...


@dataclass(frozen=True)
class TargetReached:
    """Stop as soon as a metric is as good as asked for.

    Args:
        metric: a column of the metrics table, such as "accuracy" or "loss_private".
        target: the value that is good enough.
        higher_is_better: whether a larger value is a better model; None: as the run's task says.

    Raises:
        ValueError: a target that is not finite.

    >>> TargetReached("accuracy", 0.9).reason([0.5, 0.91], higher_is_better=True)
    'accuracy 0.91 reached 0.9'
    """

    metric: str
    target: float
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.target):
            raise ValueError(f"target (of {self.metric}) must be finite; got {self.target!r}.")

    def reason(self, values: Sequence[float], higher_is_better: bool) -> str | None:
        """See `StopRule`."""
        value = values[-1] if values else math.nan
        reached = value >= self.target if higher_is_better else value <= self.target
        return f"{self.metric} {value:.4g} reached {self.target:g}" if reached else None


@dataclass(frozen=True)
class NoProgress:
    """Stop once a metric has not become better for so many evaluations in a row.

    Args:
        metric: a column of the metrics table, such as "loss" or "accuracy_private".
        evaluations: how many, at least 1.
        gain: by how much a value must be better than the best before it, at least 0.
        higher_is_better: whether a larger value is a better model; None: as the run's task says.

    Raises:
        ValueError: a value out of its range.

    >>> rule = NoProgress("loss", evaluations=2)
    >>> rule.reason([1.0, 0.9, 0.95], False), rule.reason([1.0, 0.9, 0.95, 0.9], False)
    (None, 'loss was not below 0.9 in 2 evaluations')
    """

    metric: str = "loss"
    evaluations: int = 10
    gain: float = 0.0
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        check_whole("evaluations (without progress)", self.evaluations)
        if not 0 <= self.gain < math.inf:
            raise ValueError(
                f"gain (that counts as progress) must be finite and at least 0; got {self.gain!r}."
            )

    def reason(self, values: Sequence[float], higher_is_better: bool) -> str | None:
        """See `StopRule`."""
        sign, best, since = -1.0 if higher_is_better else 1.0, math.inf, 0
        for value in values:
            better = sign * value < best - self.gain
            best, since = (sign * value, 0) if better else (best, since + 1)
        if since < self.evaluations:
            return None
        side = "above" if higher_is_better else "below"
        return f"{self.metric} was not {side} {sign * best:.4g} in {self.evaluations} evaluations"


def check_rule(rule: StopRule, session: Session) -> None:
    """Refuse a rule on something that the run does not record, or that is private.

    When a run ends is seen by everybody. A rule on released values is a function of the release, so the
    release of all n rounds covers it (docs/python.md#stopping-early); a rule on anything else of users would
    be a release that no ε counts.

    Raises:
        ConfigError: the rule may not be used with this run.
    """
    run = session.run
    columns = [name for name in session.columns if name != "epsilon"]
    allowed = [name for name in columns if is_public(name) or not run.is_private]
    if rule.metric in allowed:
        if higher_is_better(rule, session) is None:
            raise ConfigError(
                f"higher_is_better (of the early stop on {rule.metric}) must be True or False where only "
                "clients know what a metric is; got None."
            )
        return
    choices = ", ".join(allowed) or "none, for the run has no public metric"
    if {rule.metric, f"{rule.metric}_not_private"} & {*columns}:
        raise ConfigError(
            f"metric (of an early stop) must be public or released with noise; got {rule.metric!r}, which is "
            f"computed from users' examples: when the run ends would tell of them. Choose from: {choices}."
        )
    raise ConfigError(f"metric (of an early stop) must be one of: {choices}; got {rule.metric!r}.")


def reason_to_stop(rule: StopRule, session: Session) -> str | None:
    """Why a run should end where it stands: a function of the recorded column alone, whoever computes it."""
    rows = [row for _, row in sorted(session.metrics.items())]
    values = [float(row[rule.metric]) for row in rows if row.get(rule.metric) is not None]
    return rule.reason(values, bool(higher_is_better(rule, session)))


def higher_is_better(rule: StopRule, session: Session) -> bool | None:
    """Whether a larger value is a better model: as the rule says, else the task; None: neither does."""
    said = getattr(rule, "higher_is_better", None)
    if said is not None or not session.has_task:
        return said
    base = rule.metric.removesuffix("_not_private").removesuffix("_private").removeprefix("federated_")
    higher = {metric.name: metric.higher_is_better for metric in session.task.metrics}
    return higher.get(rule.metric, higher.get(base, False))
