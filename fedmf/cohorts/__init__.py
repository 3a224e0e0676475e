"""Cohorts: which users are asked in which round, as a pure function of a seed."""

from fedmf.cohorts.cohort import CohortSchedule
from fedmf.cohorts.fixed import CyclicSchedule, RandomSchedule, cyclic_participation
from fedmf.cohorts.kinds import (
    COHORTS,
    BallsInBinsCohorts,
    Cohorts,
    CyclicCohorts,
    CyclicPoissonCohorts,
    MinSeparatedCohorts,
    RandomCohorts,
    SampledCohorts,
)
from fedmf.cohorts.sampled import BallsInBins, CyclicPoisson, MinSeparationSampling, SampledSchedule

__all__ = [
    "COHORTS",
    "BallsInBins",
    "BallsInBinsCohorts",
    "CohortSchedule",
    "Cohorts",
    "CyclicCohorts",
    "CyclicPoisson",
    "CyclicPoissonCohorts",
    "CyclicSchedule",
    "MinSeparatedCohorts",
    "MinSeparationSampling",
    "RandomCohorts",
    "RandomSchedule",
    "SampledCohorts",
    "SampledSchedule",
    "cyclic_participation",
]
