"""Federated datasets: who holds which examples."""

from typing import Final

from fedmf.data.dataset import FederatedDataset, NumberedUsers, RosterDataset
from fedmf.data.diabetes import Diabetes
from fedmf.data.digit_images import Digits
from fedmf.data.memory import DecodedRows, InMemoryDataset
from fedmf.data.options import PARTITIONS, DatasetOptions, PublicInput, SpreadOptions
from fedmf.data.partitions import (
    Partition,
    partition_by_dirichlet_sizes,
    partition_by_label,
    partition_by_power_law,
    partition_by_shards,
    partition_evenly,
)
from fedmf.data.rows import (
    Hub,
    OnNodes,
    RowOptions,
    Table,
    TableColumns,
    TableRows,
    cell_blocks,
    read_table,
    written,
)
from fedmf.data.schema import Encoding, Schema, check_rows, draft_schema, read_schema
from fedmf.data.structure import (
    ExampleStructure,
    Features,
    NamedStructures,
    TensorStructure,
    device_of,
    each,
    joined,
    named,
    row_count,
    split_rows,
    structure_of,
)
from fedmf.data.summary import PartitionSummary, summarise
from fedmf.data.synthetic import Synthetic, SyntheticDataset
from fedmf.data.tokens import next_tokens
from fedmf.data.user_ids import canonical_id, require_canonical, texts_of_ids
from fedmf.values import by_kind

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "DatasetOptions",
    "DecodedRows",
    "Diabetes",
    "Digits",
    "Encoding",
    "ExampleStructure",
    "Features",
    "FederatedDataset",
    "Hub",
    "InMemoryDataset",
    "NamedStructures",
    "NumberedUsers",
    "OnNodes",
    "Partition",
    "PartitionSummary",
    "PublicInput",
    "RosterDataset",
    "RowOptions",
    "Schema",
    "SpreadOptions",
    "Synthetic",
    "SyntheticDataset",
    "Table",
    "TableColumns",
    "TableRows",
    "TensorStructure",
    "canonical_id",
    "cell_blocks",
    "check_rows",
    "device_of",
    "draft_schema",
    "each",
    "joined",
    "named",
    "next_tokens",
    "partition_by_dirichlet_sizes",
    "partition_by_label",
    "partition_by_power_law",
    "partition_by_shards",
    "partition_evenly",
    "read_schema",
    "read_table",
    "require_canonical",
    "row_count",
    "split_rows",
    "structure_of",
    "summarise",
    "texts_of_ids",
    "written",
]

#: What `[data]` may be, by kind.
DATASETS: Final[dict[str, type[DatasetOptions]]] = by_kind(Digits, Synthetic, Diabetes, Table, Hub, OnNodes)
