"""A statistic that a run releases with its models, as a value of its configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fedmf.release.statistics import ReleasedStatistic
from fedmf.values import Field, Value


@dataclass(frozen=True)
class Statistic(Value, ReleasedStatistic, ABC):
    """A statistic that is released with the model under the same ε, with its reports.

    Raises:
        ValueError: a budget share out of its range.
    """

    budget_share: Annotated[float, Field("share of μ² for this release", "b²", gt=0, lt=1)] = field(
        default=0.02, kw_only=True
    )

    @abstractmethod
    def metrics(self, state: Mapping[str, Any], noise_std: float) -> Mapping[str, float | None]:
        """The last released figures, by the names in `columns`; None before the first release.

        Args:
            state: the state after the last round.
            noise_std: standard deviation of the noise of the last mean.
        """

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Its columns of the metrics table in order; they are as public as the models."""

    @property
    @abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of a privacy statement, in addition to those of every run."""

    @property
    @abstractmethod
    def description(self) -> str:
        """One line for statements."""
