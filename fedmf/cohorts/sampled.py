"""Random cohorts as the amplification theorems assume them, as values of a configuration.

Their laws and draws are in `fedmf.accounting.sampled_cohorts`, next to the accountants. The number
of users differs from round to round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmf.accounting.sampled_cohorts import (
    BallsInBinsSampler,
    CohortSampler,
    CyclicPoissonSampler,
    Draw,
    MinSeparatedSampler,
)
from fedmf.cohorts.fixed import Cohorts
from fedmf.participation import Participation


@dataclass(frozen=True)
class SampledCohorts(Cohorts):
    """Cohorts of random size from the run's secret key; abstract.

    Amplification may be claimed for them. The mean update is still divided by the planned size m.
    """

    secret: ClassVar[bool] = True

    #: The law.
    sampler: ClassVar[type[CohortSampler]]

    def _separation(self, turns: int, bands: int | None) -> int:
        """b of the bands, or half of a cyclic order's: room for chance."""
        return bands or max(1, turns // 2)

    def probability(self, users: int, contract: Participation) -> float:
        """q, the probability with which a user joins when it may.

        Args:
            users: U.
            contract: (n, k, b).

        Raises:
            ValueError: cohorts of that size cannot keep the contract.
        """
        return self.sampler(users, self.users_per_round, contract).probability

    def _check(self, users: int, contract: Participation) -> None:
        self.sampler(users, self.users_per_round, contract)

    def _draw(self, users: int, contract: Participation, seed: int) -> Draw:
        return self.sampler(users, self.users_per_round, contract).draw(seed)


@dataclass(frozen=True)
class CyclicPoissonCohorts(SampledCohorts):
    """b groups of users take turns; members join independently with probability m·b/U.

    >>> CyclicPoissonCohorts(40, 5).probability(100, Participation.as_many_as_fit(40, 4))
    0.2
    """

    kind: ClassVar[str] = CyclicPoissonSampler.name
    sampler: ClassVar[type[CohortSampler]] = CyclicPoissonSampler


@dataclass(frozen=True)
class BallsInBinsCohorts(SampledCohorts):
    """Each user draws one of b = ⌊U/m⌋ bins and joins the rounds bin, bin + b, bin + 2b, …

    >>> contract = Participation.as_many_as_fit(12, 4)
    >>> schedule = BallsInBinsCohorts(12, 25).schedule(100, contract, secret_seed=1)
    >>> bool((schedule.cohort(1) == schedule.cohort(9)).all())
    True
    """

    kind: ClassVar[str] = BallsInBinsSampler.name
    sampler: ClassVar[type[CohortSampler]] = BallsInBinsSampler

    def _separation(self, turns: int, bands: int | None) -> int:
        return turns


@dataclass(frozen=True)
class MinSeparatedCohorts(SampledCohorts):
    """b-min-sep sampling: eligible users join with probability q and rest for b − 1 rounds.

    >>> q = MinSeparatedCohorts(12, 10).probability(100, Participation.as_many_as_fit(12, 4))
    >>> round(q, 6)   # q = m/(U − m(b−1))
    0.142857
    """

    kind: ClassVar[str] = MinSeparatedSampler.name
    sampler: ClassVar[type[CohortSampler]] = MinSeparatedSampler
