"""Who takes part when, as a value: rounds, planned cohort size, contract, and how cohorts are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from fedmf.cohorts.fixed import (
    AvailableSchedule,
    CohortSchedule,
    CyclicSchedule,
    RandomSchedule,
    cyclic_participation,
)
from fedmf.cohorts.sampled import BallsInBins, CyclicPoisson, MinSeparationSampling, SampledSchedule
from fedmf.participation import LARGEST_HORIZON, Participation
from fedmf.values import Field, Value, by_kind


@dataclass(frozen=True)
class Cohorts(Value):
    """Who takes part when.

    Raises:
        ValueError: a value is not a positive integer.
    """

    rounds: Annotated[
        int, Field("number of rounds; noise is calibrated for exactly these", "n", ge=1, le=LARGEST_HORIZON)
    ] = 240
    users_per_round: Annotated[
        int, Field("planned users per round; sums are divided by this number", "m", ge=1)
    ] = 36
    min_separation: Annotated[
        int | None, Field("least distance between two rounds of a user; derived if not set", "b", ge=1)
    ] = None
    max_participations: Annotated[
        int | None, Field("most rounds of a user; derived if not set", "k", ge=1)
    ] = None

    #: What draws the cohorts, and whether it does by a secret seed.
    schedule_class: ClassVar[type[CohortSchedule]]
    secret: ClassVar[bool] = False
    #: Whether users take turns, so that none joins more often than others.
    in_turns: ClassVar[bool] = False

    def participation(self, users: int, bands: int | None = None) -> Participation:
        """The (n, k, b) participation, with unset values derived.

        Args:
            users: N.
            bands: p of the mechanism, if it was fixed: the least b for which a banded C is amplified.

        Raises:
            ValueError: m > N, or (n, k, b) that do not fit together.
        """
        cyclic = cyclic_participation(users, self.users_per_round, self.rounds)
        b = self.min_separation or self._separation(users // self.users_per_round, bands)
        k = Participation.as_many_as_fit(self.rounds, b).max_participations
        if self.in_turns:
            k = min(k, cyclic.max_participations)
        return Participation(self.rounds, self.max_participations or k, b)

    def _separation(self, turns: int, bands: int | None) -> int:
        """b where none is given: by default the tightest that a cyclic order keeps."""
        return min(turns, self.rounds)

    def schedule(
        self, users: int, contract: Participation, seed: int = 0, secret_seed: int = 0
    ) -> CohortSchedule:
        """What draws the cohorts of a run.

        Args:
            users: N.
            contract: (n, k, b), as `participation` gives it.
            seed: public; it protects nothing, and sampled cohorts do not use it.
            secret_seed: of the run's key; only sampled cohorts use it.

        Raises:
            ValueError: cohorts of that size cannot keep the contract.
        """
        drawn_by = secret_seed if self.secret else seed
        return self.schedule_class(users, self.users_per_round, contract, drawn_by)


@dataclass(frozen=True)
class CyclicCohorts(Cohorts):
    """Round and round through one random order of the users, m at a time."""

    kind: ClassVar[str] = "cyclic"
    schedule_class: ClassVar[type[CohortSchedule]] = CyclicSchedule
    in_turns: ClassVar[bool] = True


@dataclass(frozen=True)
class RandomCohorts(Cohorts):
    """Every round draws m users from those that are eligible; no amplification is claimed for it."""

    kind: ClassVar[str] = "random"
    schedule_class: ClassVar[type[CohortSchedule]] = RandomSchedule


@dataclass(frozen=True)
class AvailableCohorts(Cohorts):
    """Every round draws m users from those that are connected and that the contract admits.

    Fewer join where fewer are left. A simulation takes every user for connected. If b is unset it is half of
    what a cyclic order keeps, so that half of the users may be away.
    """

    kind: ClassVar[str] = "available"
    schedule_class: ClassVar[type[CohortSchedule]] = AvailableSchedule

    def _separation(self, turns: int, bands: int | None) -> int:
        return max(1, turns // 2)


@dataclass(frozen=True)
class SampledCohorts(Cohorts):
    """Cohorts of random size from the run's secret key: amplification may be claimed for them."""

    schedule_class: ClassVar[type[SampledSchedule]]
    secret: ClassVar[bool] = True

    def probability(self, users: int, contract: Participation) -> float:
        """q, with which a user joins when it may. It does not depend on the seed."""
        return self.schedule_class(users, self.users_per_round, contract, seed=0).probability


@dataclass(frozen=True)
class _SpacedCohorts(SampledCohorts):
    """Sampling that needs room for chance: b is that of the bands, or half of what a cyclic order keeps."""

    def _separation(self, turns: int, bands: int | None) -> int:
        return bands or max(1, turns // 2)


@dataclass(frozen=True)
class CyclicPoissonCohorts(_SpacedCohorts):
    """b groups of users take turns; in its turn each member joins with probability m·b/N."""

    kind: ClassVar[str] = "cyclic-poisson"
    schedule_class: ClassVar[type[SampledSchedule]] = CyclicPoisson


@dataclass(frozen=True)
class BallsInBinsCohorts(SampledCohorts):
    """Each user draws one of b = ⌊N/m⌋ bins, once, and joins the rounds of its bin."""

    kind: ClassVar[str] = "balls-in-bins"
    schedule_class: ClassVar[type[SampledSchedule]] = BallsInBins

    def _separation(self, turns: int, bands: int | None) -> int:
        return turns


@dataclass(frozen=True)
class MinSeparatedCohorts(_SpacedCohorts):
    """b-min-sep sampling: a user joins with probability q when it may, and then rests for b − 1 rounds."""

    kind: ClassVar[str] = "b-min-sep"
    schedule_class: ClassVar[type[SampledSchedule]] = MinSeparationSampling


COHORTS: Final = by_kind(
    CyclicCohorts,
    RandomCohorts,
    CyclicPoissonCohorts,
    BallsInBinsCohorts,
    MinSeparatedCohorts,
    AvailableCohorts,
)
