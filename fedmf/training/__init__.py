"""Local training of cohorts, datasets and partitions."""

from fedmf.training.clipping import FixedPointSum, clip, clip_to_fixed_point
from fedmf.training.data import FederatedDataset, InMemoryDataset, digits
from fedmf.training.energies import fixed_point_energies
from fedmf.training.local import LocalSGD, LocalTrainer
from fedmf.training.model import FlatModel, mlp
from fedmf.training.pair_sum import ClippedSums, FixedPointPair
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
    "Task",
    "clip",
    "clip_to_fixed_point",
    "cross_entropy",
    "digits",
    "fixed_point_energies",
    "mlp",
]
