"""Federated data sets, each with its users and their examples, and schemas of tables."""

from typing import Final

from fedmf.data.cells import canonical_id
from fedmf.data.dataset import Dataset, InMemoryDataset
from fedmf.data.dataset_options import DatasetOptions, PublicInput
from fedmf.data.hub import Hub
from fedmf.data.images import Digits, Idx
from fedmf.data.on_nodes import OnNodes
from fedmf.data.schema import Schema
from fedmf.data.schema_file import read_schema
from fedmf.data.synthetic import Synthetic
from fedmf.data.table import Table
from fedmf.values import by_kind

__all__ = [
    "DATASETS",
    "Dataset",
    "Digits",
    "Hub",
    "Idx",
    "InMemoryDataset",
    "OnNodes",
    "PublicInput",
    "Schema",
    "Synthetic",
    "Table",
    "canonical_id",
    "read_schema",
]

#: Classes of the table `[data]`, by kind.
DATASETS: Final[dict[str, type[DatasetOptions]]] = by_kind(
    Digits, Synthetic, Table, Hub, OnNodes, Idx
)
