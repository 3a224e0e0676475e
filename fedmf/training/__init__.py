"""Tasks, and local training of cohorts."""

from fedmf.training.barrier import UserFailure, example_counts
from fedmf.training.clipping import (
    FRACTION_BITS,
    SIGNS,
    ClippedSums,
    FixedPointSum,
    ReusedVectors,
    Statistic,
    clip_to_fixed_point,
    copied_vector,
    fixed_point_energies,
)
from fedmf.training.independence import dependence
from fedmf.training.kinds import classification, multi_label, next_token, regression, tagging
from fedmf.training.local import LocalTrainer
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.losses import cross_entropy
from fedmf.training.metrics import AUC, Metric
from fedmf.training.preflight import preflight
from fedmf.training.task import Task
from fedmf.training.trainer import checked_sum, seconds_of_training

__all__ = [
    "AUC",
    "FRACTION_BITS",
    "SIGNS",
    "ClippedSums",
    "FixedPointSum",
    "LocalSGD",
    "LocalTrainer",
    "Metric",
    "ReusedVectors",
    "Statistic",
    "Task",
    "UserFailure",
    "checked_sum",
    "classification",
    "clip_to_fixed_point",
    "copied_vector",
    "cross_entropy",
    "dependence",
    "example_counts",
    "fixed_point_energies",
    "multi_label",
    "next_token",
    "preflight",
    "regression",
    "seconds_of_training",
    "tagging",
]
