"""Health as a run chooses it and records keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fedmf.parts.part import LivePart, Part, Setting, Stage, check_share, own_factor, refuse_beside
from fedmf.values import check_whole

if TYPE_CHECKING:
    from fedmf.training import Statistic

#: Of its share of μ²: whether anything arrives comes first.
ARRIVALS: Final = 0.75
COLUMNS: Final = ("health_contributions", "health_contributions_error", "health_clipped")


@dataclass(frozen=True)
class Health(Part):
    """Releases how many contributions are not zero, and what share of them is clipped, with noise.

    A run whose clients all fail, or send nothing, looks like any other: its models are noise. These two
    counts tell, under the same ε: docs/health.md.

    Args:
        share: b² in (0, 1), the share of μ² that goes to both counts, three quarters of it to the first.
        rounds_per_release: B ≥ 1; figures are means over blocks of so many rounds.

    Raises:
        ValueError: a value out of its range.
    """

    kind: ClassVar[str] = "counts"
    name: ClassVar[str] = "health"

    share: float = 0.01
    rounds_per_release: int = 5

    def __post_init__(self) -> None:
        check_share(self.share)
        check_whole("B (rounds_per_release)", self.rounds_per_release)

    @property
    def mu_share(self) -> float:
        """See `Part.mu_share`."""
        return self.share

    @property
    def factors(self) -> tuple[float, float]:
        """1/b of the count of contributions and of that of signs."""
        return own_factor(ARRIVALS * self.share), own_factor((1 - ARRIVALS) * self.share)

    def check(self, setting: Setting) -> None:
        """See `Part.check`.

        Raises:
            ValueError: secret cohorts, cohorts that come as they can, a second moment, or rounded noise.
        """
        against = {
            "an amplified run": setting.amplified,
            "cohorts that come as they can, of which no number is planned": not setting.known_beforehand,
            "an optimizer that needs a second moment": setting.paired,
            "noise that is stored rounded": setting.stored_as != "float64",
        }
        refuse_beside("health", against)

    def statistics(self) -> tuple[Statistic, ...]:
        """See `Part.statistics`."""
        from fedmf.training import PRESENT, SIGNS  # readers of records load no framework

        return (PRESENT, SIGNS)

    def open(self, stage: Stage) -> LivePart:
        """See `Part.open`."""
        from fedmf.parts.health.release import HealthRelease

        return HealthRelease(self.name, COLUMNS, self.factors, self.rounds_per_release, stage)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the last block: mean number a round, its error, share clipped."""
        return COLUMNS

    @property
    def assumptions(self) -> tuple[str, ...]:
        """See `Part.assumptions`."""
        return (
            "counts of contributions that are not zero, and of clipped ones, were released with noise: "
            "they are as public as the models",
        )

    @classmethod
    def lines(cls, facts: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """See `Part.lines`."""
        return [
            (
                "health",
                "contributions that are not zero, and share clipped, means of every "
                f"{facts['rounds_per_release']} rounds, for {100 * facts['share']:g} % of mu^2",
            )
        ]
