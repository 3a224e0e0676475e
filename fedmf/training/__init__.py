"""Local training of cohorts, datasets and partitions."""

from fedmf.training.architectures import build_model, cnn, mlp
from fedmf.training.clipping import FixedPointSum, clip, clip_to_fixed_point
from fedmf.training.data import (
    FederatedDataset,
    InMemoryDataset,
    Partition,
    PartitionPlan,
    SyntheticDataset,
    digits,
    prototypes,
)
from fedmf.training.local import LocalTrainer
from fedmf.training.model import FlatModel
from fedmf.training.plan import LocalSGD
from fedmf.training.task import Task, cross_entropy

__all__ = [
    "FederatedDataset",
    "FixedPointSum",
    "FlatModel",
    "InMemoryDataset",
    "LocalSGD",
    "LocalTrainer",
    "Partition",
    "PartitionPlan",
    "SyntheticDataset",
    "Task",
    "build_model",
    "clip",
    "clip_to_fixed_point",
    "cnn",
    "cross_entropy",
    "digits",
    "mlp",
    "prototypes",
]
