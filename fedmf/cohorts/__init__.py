"""Cohorts: the users of every round, as a pure function of a seed."""

from typing import Final

from fedmf.cohorts.fixed import (
    AvailableCohorts,
    Cohorts,
    CohortSchedule,
    CyclicCohorts,
    cyclic_participation,
)
from fedmf.cohorts.sampled import (
    BallsInBinsCohorts,
    CyclicPoissonCohorts,
    MinSeparatedCohorts,
    SampledCohorts,
)
from fedmf.values import by_kind

__all__ = [
    "COHORTS",
    "AvailableCohorts",
    "BallsInBinsCohorts",
    "CohortSchedule",
    "Cohorts",
    "CyclicCohorts",
    "CyclicPoissonCohorts",
    "MinSeparatedCohorts",
    "SampledCohorts",
    "cyclic_participation",
]

#: What `[cohorts]` may be, by kind.
COHORTS: Final = by_kind(
    CyclicCohorts,
    CyclicPoissonCohorts,
    BallsInBinsCohorts,
    MinSeparatedCohorts,
    AvailableCohorts,
)
