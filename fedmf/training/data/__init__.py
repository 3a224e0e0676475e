"""Federated datasets: who holds which examples."""

from fedmf.training.data.base import FederatedDataset
from fedmf.training.data.digits import digits
from fedmf.training.data.memory import InMemoryDataset
from fedmf.training.data.partitions import Partition, partition_by_label, partition_evenly
from fedmf.training.data.user_ids import NumberedUsers

__all__ = [
    "FederatedDataset",
    "InMemoryDataset",
    "NumberedUsers",
    "Partition",
    "digits",
    "partition_by_label",
    "partition_evenly",
]
