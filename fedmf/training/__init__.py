"""Tasks, and local training of the users of a cohort.

A `Task` has data, model, loss and metrics; `preflight` tries it on made-up users. A `LocalTrainer`
trains users by `LocalSGD` and adds up their clipped updates.
"""

from fedmf.training.interference import interference
from fedmf.training.local import LocalTrainer
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.losses import cross_entropy
from fedmf.training.metrics import AUC, Metric
from fedmf.training.preflight import preflight
from fedmf.training.task import Task
from fedmf.training.task_kinds import (
    classification,
    multi_label,
    next_token,
    regression,
    tagging,
)
from fedmf.training.trainer import checked_sum, seconds_of_loading, seconds_of_training
from fedmf.training.user_failures import UserFailure, example_counts

__all__ = [
    "AUC",
    "LocalSGD",
    "LocalTrainer",
    "Metric",
    "Task",
    "UserFailure",
    "checked_sum",
    "classification",
    "cross_entropy",
    "example_counts",
    "interference",
    "multi_label",
    "next_token",
    "preflight",
    "regression",
    "seconds_of_loading",
    "seconds_of_training",
    "tagging",
]
