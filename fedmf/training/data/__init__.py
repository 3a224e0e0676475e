"""Federated datasets: who holds which examples."""

from fedmf.training.data.base import FederatedDataset
from fedmf.training.data.digits import digits
from fedmf.training.data.memory import InMemoryDataset
from fedmf.training.data.partition_plan import PARTITIONS, PartitionPlan
from fedmf.training.data.partitions import (
    Partition,
    partition_by_dirichlet_sizes,
    partition_by_label,
    partition_by_power_law,
    partition_by_shards,
    partition_evenly,
)
from fedmf.training.data.prototypes import prototypes
from fedmf.training.data.synthetic import SyntheticDataset
from fedmf.training.data.user_ids import NumberedUsers

__all__ = [
    "PARTITIONS",
    "FederatedDataset",
    "InMemoryDataset",
    "NumberedUsers",
    "Partition",
    "PartitionPlan",
    "SyntheticDataset",
    "digits",
    "partition_by_dirichlet_sizes",
    "partition_by_label",
    "partition_by_power_law",
    "partition_by_shards",
    "partition_evenly",
    "prototypes",
]
