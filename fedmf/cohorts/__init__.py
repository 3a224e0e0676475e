"""Cohorts: which users are asked in which round, as a pure function of a seed."""

from fedmf.cohorts.available import AvailableSchedule
from fedmf.cohorts.fixed import CohortSchedule, CyclicSchedule, RandomSchedule, cyclic_participation
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
from fedmf.cohorts.sampled import BallsInBins, CyclicPoisson, MinSeparationSampling, SampledSchedule

__all__ = [
    "COHORTS",
    "AvailableCohorts",
    "AvailableSchedule",
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
