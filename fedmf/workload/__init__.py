"""Workloads: the lower-triangular matrix A whose rows are the released queries."""

from fedmf.workload.parse import parse_workload
from fedmf.workload.schedule import SCHEDULES, LearningRateSchedule
from fedmf.workload.server_iterates import iterates, nesterov, with_schedule
from fedmf.workload.toeplitz import ToeplitzWorkload, average, exponential, momentum, prefix, weighted, window

__all__ = [
    "SCHEDULES",
    "LearningRateSchedule",
    "ToeplitzWorkload",
    "average",
    "exponential",
    "iterates",
    "momentum",
    "nesterov",
    "parse_workload",
    "prefix",
    "weighted",
    "window",
    "with_schedule",
]
