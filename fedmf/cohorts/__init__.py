"""Cohorts: which users are asked in which round, as a pure function of a seed."""

from fedmf.cohorts.check_in import (
    CheckIns,
    CheckInSchedule,
    DeviceRule,
    DiurnalModel,
    Forecast,
    Participations,
    forecast,
    read_check_ins,
)
from fedmf.cohorts.devices import COHORTS, CheckInCohorts
from fedmf.cohorts.fixed import CohortSchedule, CyclicSchedule, RandomSchedule, cyclic_participation
from fedmf.cohorts.kinds import (
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
    "CheckInCohorts",
    "CheckInSchedule",
    "CheckIns",
    "CohortSchedule",
    "Cohorts",
    "CyclicCohorts",
    "CyclicPoisson",
    "CyclicPoissonCohorts",
    "CyclicSchedule",
    "DeviceRule",
    "DiurnalModel",
    "Forecast",
    "MinSeparatedCohorts",
    "MinSeparationSampling",
    "Participations",
    "RandomCohorts",
    "RandomSchedule",
    "SampledCohorts",
    "SampledSchedule",
    "cyclic_participation",
    "forecast",
    "read_check_ins",
]
