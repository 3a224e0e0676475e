"""Federated datasets: who holds which examples."""

from fedmf.data.dataset import FederatedDataset
from fedmf.data.digit_images import digits
from fedmf.data.hub import HubColumns, HubDataset, load_hub
from fedmf.data.memory import InMemoryDataset
from fedmf.data.partition_plan import PARTITIONS, PartitionPlan
from fedmf.data.partitions import (
    Partition,
    partition_by_dirichlet_sizes,
    partition_by_label,
    partition_by_power_law,
    partition_by_shards,
    partition_evenly,
)
from fedmf.data.prototype_images import prototypes
from fedmf.data.summary import PartitionSummary, summarise
from fedmf.data.synthetic import SyntheticDataset
from fedmf.data.table import HOLD_OUTS, table_dataset
from fedmf.data.table_file import Table, read_table
from fedmf.data.user_ids import NumberedUsers

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
