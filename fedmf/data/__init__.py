"""Federated data sets: who holds which examples."""

from typing import Final

from fedmf.data.cells import canonical_id, ids, numbers, require_canonical, texts
from fedmf.data.dataset import Dataset, InMemoryDataset, NumberedUsers
from fedmf.data.hub import Hub
from fedmf.data.images import Digits, Idx
from fedmf.data.on_nodes import OnNodes
from fedmf.data.options import PARTITIONS, DatasetOptions, PublicInput
from fedmf.data.schema import Encoding, Schema
from fedmf.data.schema_file import check_rows, draft_schema, read_schema
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
from fedmf.data.synthetic import Synthetic
from fedmf.data.table import Table
from fedmf.data.table_reader import InputError, open_table
from fedmf.data.tokens import next_tokens
from fedmf.values import by_kind

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "DatasetOptions",
    "Digits",
    "Encoding",
    "ExampleStructure",
    "Features",
    "Hub",
    "Idx",
    "InMemoryDataset",
    "InputError",
    "NamedStructures",
    "NumberedUsers",
    "OnNodes",
    "PublicInput",
    "Schema",
    "Synthetic",
    "Table",
    "TensorStructure",
    "canonical_id",
    "check_rows",
    "device_of",
    "draft_schema",
    "each",
    "ids",
    "joined",
    "named",
    "next_tokens",
    "numbers",
    "open_table",
    "read_schema",
    "require_canonical",
    "row_count",
    "split_rows",
    "structure_of",
    "texts",
]

#: What `[data]` may be, by kind.
DATASETS: Final[dict[str, type[DatasetOptions]]] = by_kind(Digits, Synthetic, Table, Hub, OnNodes, Idx)
