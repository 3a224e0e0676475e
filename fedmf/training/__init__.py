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
from fedmf.training.energies import fixed_point_energies
from fedmf.training.local import LocalTrainer
from fedmf.training.model import FlatModel
from fedmf.training.pair_sum import ClippedSums, FixedPointPair
from fedmf.training.plan import LocalSGD
from fedmf.training.task import Task, cross_entropy

__all__ = [
    "ClippedSums",
    "FederatedDataset",
    "FixedPointPair",
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
    "fixed_point_energies",
    "mlp",
    "prototypes",
]
