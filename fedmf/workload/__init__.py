"""Workloads: the lower-triangular matrix A whose rows are the released queries."""

from fedmf.workload.parse import parse_workload
from fedmf.workload.schedule import LearningRateSchedule, ScheduleKind
from fedmf.workload.server_iterates import decaying, iterates, nesterov, with_schedule
from fedmf.workload.toeplitz import ToeplitzWorkload, average, exponential, momentum, prefix, weighted, window

__all__ = [
    "LearningRateSchedule",
    "ScheduleKind",
    "ToeplitzWorkload",
    "average",
    "decaying",
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
