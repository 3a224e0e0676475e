"""Cohorts: which users are asked in which round, as a pure function of a seed."""

from fedmf.cohorts.fixed import CohortSchedule, cyclic_participation
from fedmf.cohorts.kinds import (
    COHORTS,
    AvailableCohorts,
    BallsInBinsCohorts,
    Cohorts,
    CyclicCohorts,
    CyclicPoissonCohorts,
    MinSeparatedCohorts,
    RandomCohorts,
    SampledCohorts,
)

__all__ = [
    "COHORTS",
    "AvailableCohorts",
    "BallsInBinsCohorts",
    "CohortSchedule",
    "Cohorts",
    "CyclicCohorts",
    "CyclicPoissonCohorts",
    "MinSeparatedCohorts",
    "RandomCohorts",
    "SampledCohorts",
    "cyclic_participation",
]
