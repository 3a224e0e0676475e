"""Federated datasets: who holds which examples."""

from typing import Final

from fedmf.data.contract import DataContract, Encoding, Kept, check_rows, draft_contract, read_contract
from fedmf.data.dataset import FederatedDataset, NumberedUsers, TestOwner
from fedmf.data.digit_images import Digits
from fedmf.data.elsewhere import RosterDataset
from fedmf.data.formats import Cifar10, DecodedRows, ImageFolder, Leaf, TokenRows
from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import PARTITIONS, DatasetOptions, SpreadOptions
from fedmf.data.partitions import (
    Partition,
    partition_by_dirichlet_sizes,
    partition_by_label,
    partition_by_power_law,
    partition_by_shards,
    partition_evenly,
)
from fedmf.data.prototype_images import Prototypes
from fedmf.data.public_input import PublicInput
from fedmf.data.rows import (
    Hub,
    HubDataset,
    HubText,
    NumberTable,
    OnNodes,
    RowOptions,
    RowsOfNode,
    Table,
    TableColumns,
    TableRows,
    Text,
    TextOptions,
    cell_blocks,
    read_table,
    written,
)
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
from fedmf.data.text import ByteVocabulary, CodeTokens, Vocabulary, next_tokens
from fedmf.values import by_kind

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "ByteVocabulary",
    "Cifar10",
    "CodeTokens",
    "DataContract",
    "DatasetOptions",
    "DecodedRows",
    "Digits",
    "Encoding",
    "ExampleStructure",
    "Features",
    "FederatedDataset",
    "Hub",
    "HubDataset",
    "HubText",
    "ImageFolder",
    "InMemoryDataset",
    "Kept",
    "Leaf",
    "NamedStructures",
    "NumberTable",
    "NumberedUsers",
    "OnNodes",
    "Partition",
    "PartitionSummary",
    "Prototypes",
    "PublicInput",
    "RosterDataset",
    "RowOptions",
    "RowsOfNode",
    "SpreadOptions",
    "Synthetic",
    "SyntheticDataset",
    "Table",
    "TableColumns",
    "TableRows",
    "TensorStructure",
    "TestOwner",
    "Text",
    "TextOptions",
    "TokenRows",
    "Vocabulary",
    "cell_blocks",
    "check_rows",
    "device_of",
    "draft_contract",
    "each",
    "joined",
    "named",
    "next_tokens",
    "partition_by_dirichlet_sizes",
    "partition_by_label",
    "partition_by_power_law",
    "partition_by_shards",
    "partition_evenly",
    "read_contract",
    "read_table",
    "row_count",
    "split_rows",
    "structure_of",
    "summarise",
    "written",
]

#: What `[data]` may be, by kind.
DATASETS: Final[dict[str, type[DatasetOptions]]] = by_kind(
    *(Digits, Synthetic, Prototypes, Table, NumberTable, Text, Hub, HubText, OnNodes, CodeTokens),
    *(ImageFolder, Cifar10, Leaf, TokenRows),
)
