"""A number that each client reports, such as an accuracy: its private mean over the users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from fedmf.runs.statistics.statistic import Statistic
from fedmf.values import Field

if TYPE_CHECKING:
    from fedmf.clipping.user_statistics import ReportedNumber

#: A user's number is an integer of at most this size, which stands for the bound.
_UNITS: Final = 1 << 20
#: Of the column with the standard deviation of the noise.
_STD: Final = "_std"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def reported_name(metric: str) -> str:
    """The name of a metric among sums and columns, where a task's metrics have other names."""
    return f"client_{metric}"


@dataclass(frozen=True)
class ClientMetric(Statistic):
    """The mean of a number s_u that each user of a round reports, with noise.

    Round t releases

        q_t = (Σ_u round(2²⁰·s_u/c)·c/2²⁰ + noise)/m

    with s_u cut to [−c, c] and m the planned users of a round: absent users, and those without a
    finite number, count as 0. The user's update x and s enter the release as one vector
    (a·x/ζ_t, b·s/c) with a² + b² = 1, so ε is the same as without the metric:
    docs/theory/accounting.md.

    In a Flower app the number is in a metric record of the user's reply: of its training, or of its
    evaluation of the model that it then trains. In a simulation it is the loss
    or a metric of the task on the user's held-out examples (``client.held-out``), of the model that
    the user receives.

    Raises:
        ValueError: a name that cannot be a column, or a value out of its range.

    >>> ClientMetric("accuracy").columns
    ('client_accuracy', 'client_accuracy_std')
    """

    kind: ClassVar[str] = "client-metric"

    metric: Annotated[
        str, Field("name of the metric: loss, or one of the task's; in Flower apps, a reply's")
    ] = "accuracy"
    bound: Annotated[
        float,
        Field("largest absolute value that counts; others are cut", "c", gt=0, le=2.0**100),
    ] = 1.0
    reply: Annotated[
        Literal["train", "evaluate"],
        Field("in Flower apps: the reply that has it; evaluate asks the cohort for one as well"),
    ] = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _NAME.fullmatch(self.metric) or self.metric.endswith(_STD):
            raise ValueError(
                "metric (name) must be at most 64 letters, digits, _ and -, begin with a letter,"
                f" and not end in {_STD}; got {self.metric!r:.80}."
            )
        object.__setattr__(self, "name", reported_name(self.metric))

    def summed(self) -> ReportedNumber:
        """The numbers of users."""
        from fedmf.clipping.user_statistics import ReportedNumber  # readers load no framework

        return ReportedNumber(self.name, _UNITS, self.bound)

    def begin(self, clip_norm: float) -> dict[str, float]:
        """Nothing was released."""
        del clip_norm
        return {}

    def after(self, t: int, mean: float, state: Mapping[str, Any]) -> dict[str, float]:
        """The mean of round t."""
        del t, state
        return {"mean": self._number(mean)}

    def metrics(self, state: Mapping[str, Any], noise_std: float) -> dict[str, float | None]:
        """The mean of the last round and the standard deviation of its noise."""
        if not state:
            return dict.fromkeys(self.columns)
        return {self.name: state["mean"], self.name + _STD: self._number(noise_std)}

    def _number(self, units: float) -> float:
        """Convert units of the summed integers to the metric."""
        return units / _UNITS * self.bound

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the mean and of the standard deviation of its noise."""
        return (self.name, self.name + _STD)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """One assumption: a number is a function of one user's data."""
        return (
            f"the {self.metric} that {{a}} reports depends only on that {{one}}'s own data and on"
            " released models",
        )

    @property
    def description(self) -> str:
        """One line for statements."""
        return (
            f"noisy mean over the planned {{many}} of a round, each cut to ±{self.bound:g}, for"
            f" {100 * self.budget_share:g} % of mu^2; who reports nothing counts as 0; column"
            f" {self.name + _STD} is the standard deviation of the noise"
        )
