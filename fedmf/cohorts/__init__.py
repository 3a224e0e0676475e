"""Cohort schedules: which users are asked in which round, as a pure function of a seed."""

from fedmf.cohorts.catalogue import SCHEDULES, cohort_schedule, contract_of
from fedmf.cohorts.cohort import CohortSchedule
from fedmf.cohorts.fixed import CyclicSchedule, RandomSchedule, cyclic_participation
from fedmf.cohorts.sampled import BallsInBins, CyclicPoisson, MinSeparationSampling, SampledSchedule

__all__ = [
    "SCHEDULES",
    "BallsInBins",
    "CohortSchedule",
    "CyclicPoisson",
    "CyclicSchedule",
    "MinSeparationSampling",
    "RandomSchedule",
    "SampledSchedule",
    "cohort_schedule",
    "contract_of",
    "cyclic_participation",
]
