"""Local training of cohorts, datasets and partitions."""

from fedmf.training.clipping import FixedPointSum, clip, clip_to_fixed_point
from fedmf.training.data import FederatedDataset, InMemoryDataset, digits
from fedmf.training.local import LocalTrainer
from fedmf.training.model import FlatModel, mlp
from fedmf.training.plan import LocalSGD
from fedmf.training.task import Task, cross_entropy

__all__ = [
    "FederatedDataset",
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
    "mlp",
]
