"""Federated datasets: who holds which examples."""

from fedmf.training.data.base import FederatedDataset
from fedmf.training.data.digits import digits
from fedmf.training.data.hub import HubColumns, HubDataset, load_hub
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
from fedmf.training.data.summary import PartitionSummary, summarise
from fedmf.training.data.synthetic import SyntheticDataset
from fedmf.training.data.table import HOLD_OUTS, table_dataset
from fedmf.training.data.table_file import Table, read_table
from fedmf.training.data.user_ids import NumberedUsers

__all__ = [
    "HOLD_OUTS",
    "PARTITIONS",
    "FederatedDataset",
    "HubColumns",
    "HubDataset",
    "InMemoryDataset",
    "NumberedUsers",
    "Partition",
    "PartitionPlan",
    "PartitionSummary",
    "SyntheticDataset",
    "Table",
    "digits",
    "load_hub",
    "partition_by_dirichlet_sizes",
    "partition_by_label",
    "partition_by_power_law",
    "partition_by_shards",
    "partition_evenly",
    "prototypes",
    "read_table",
    "summarise",
    "table_dataset",
]
