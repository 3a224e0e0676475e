"""Local training of cohorts, datasets and partitions."""

from fedmf.training.clipping import (
    FRACTION_BITS,
    ClippedSums,
    FixedPointPair,
    FixedPointSum,
    clip,
    clip_to_fixed_point,
    fixed_point_energies,
)
from fedmf.training.evaluation import ExampleTotals, evaluate_users
from fedmf.training.local import LocalTrainer
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.task import Task, cross_entropy

__all__ = [
    "FRACTION_BITS",
    "ClippedSums",
    "ExampleTotals",
    "FixedPointPair",
    "FixedPointSum",
    "LocalSGD",
    "LocalTrainer",
    "Task",
    "clip",
    "clip_to_fixed_point",
    "cross_entropy",
    "evaluate_users",
    "fixed_point_energies",
]
