"""Rows that stay on the nodes of a deployment: each has a file of its own users, the server none of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from fedmf.data.dataset import FederatedDataset, RosterDataset, TestOwner
from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import PublicInput
from fedmf.data.partitions import partition_by_owner
from fedmf.data.rows.labelled_rows import SchemaRows
from fedmf.data.rows.row_options import read_roster
from fedmf.data.rows.table_rows import TableColumns, TableRows, read_table
from fedmf.data.schema import Schema
from fedmf.data.structure import ExampleStructure, TensorStructure
from fedmf.values import Field


@dataclass(frozen=True)
class OnNodes(SchemaRows):
    """Rows of CSV or Parquet files that stay on the nodes of a deployment; each has those of its own users.

    The server reads the roster and, if there is one, the test file. It never opens ``path``: there a node
    finds its users' rows, unless its node config says ``data-path``. A node says that it serves whoever has
    rows there; with ``data-roster`` in its node config, a file like ``roster``, only those on it. A data
    schema is read on the server and on every node, there where ``data-schema`` in its node config says.

    Args:
        path: of the rows, as nodes find it.
        roster: a file with the ids of all users of the run, on the server.
        schema_digest: of the schema, so that no node scales by another one; without it the run is
            refused with the digest to be given.
        test_path: a file with the central test part, on the server: the same columns but for the user's,
            rows of nobody who is on the roster. Empty: nothing is evaluated centrally.
    """

    kind: ClassVar[str] = "on-nodes"
    partition: Literal["natural"] = "natural"
    hold_out: Literal["auto"] = "auto"
    schema_digest: Annotated[str, Field("digest that all nodes' schemas must have")] = ""
    test_path: Annotated[str, Field("file with the central test part, on the server")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("feature_columns", "class_names", "input_shape"):
            if not getattr(self, name) and not self.schema:
                raise ValueError(
                    f"{name} (of the data) must be declared with dataset {self.kind!r}; got none. No process "
                    "sees all rows."
                )
        if not self.roster and type(self) is OnNodes:
            raise ValueError("roster must name the file with all user ids with dataset 'on-nodes'; got none.")

    @property
    def holds_out_users(self) -> bool:
        """Nobody is held out."""
        return False

    @property
    def test_owner(self) -> TestOwner:
        """The central test part is no user's."""
        return "nobody"

    def undeclared(self) -> tuple[str, ...]:
        """Nothing: what is public is always declared."""
        return ()

    def read_schema(self) -> Schema:
        """See `SchemaRows.read_schema`; the same on the server and on all nodes.

        Raises:
            ValueError: it is another one.
        """
        schema = super().read_schema()
        if schema.digest != self.schema_digest:
            raise ValueError(
                f"schema_digest must be that of {self.schema}, {schema.digest}; got "
                f"{self.schema_digest or 'none'}. By it every node knows that it has the same schema."
            )
        return schema

    def columns(self, user: str = "", users: tuple[str, ...] = ()) -> TableColumns:
        """What is read of a file.

        Args:
            user: its column of users; "" for rows that are no user's, which need not have it.
            users: who there may be.
        """
        label, width = self.label_column, math.prod(self.input_shape)
        if not self.schema:
            return TableColumns(label, self.feature_columns, user, self.classes, users, width)
        schema = self._known_schema
        names, optional = self.features_of(schema, (label,)), () if user else (self.user_column,)
        columns = TableColumns(label, names, user, users=users, schema=schema, optional=optional)
        self.check_categories(columns.classes)
        return columns

    @cached_property
    def _known_schema(self) -> Schema:
        return self.read_schema()

    @cached_property
    def structure(self) -> ExampleStructure:
        """What one example looks like."""
        columns, shape = self.columns(self.user_column), self.input_shape
        if columns.encoding:
            dimension = columns.encoding.dimension
            shape = shape or (dimension,)
            if math.prod(shape) != dimension:
                raise ValueError(
                    f"input-shape must multiply to the {dimension} coordinates of the schema; got {shape}."
                )
        labels = TensorStructure((), torch.int64, len(columns.classes))
        return ExampleStructure(TensorStructure(shape, torch.float32), labels)

    def examples_of(self, rows: TableRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Features in their shape, and labels."""
        shape, entries = self.structure.features.shape, rows.features.shape[1]
        if math.prod(shape) != entries:
            raise ValueError(
                f"input-shape must multiply to the {entries} entries of an example; got {self.input_shape}."
            )
        return torch.from_numpy(rows.features).reshape(-1, *shape), torch.from_numpy(rows.labels)

    def load(self) -> FederatedDataset:
        """See `DatasetOptions.load`: what a server knows."""
        test = None
        if self.test_path:
            rows = read_table(Path(self.test_path).expanduser(), self.columns())
            if not rows.readable.any():
                raise ValueError(f"test_path must hold a row that can be read; got none in {self.test_path}.")
            features, labels = self.examples_of(rows)
            readable = torch.from_numpy(rows.readable)
            test = features[readable], labels[readable]
        return RosterDataset(self.users_on_roster(False), self.structure, test, self.test_owner)

    def here(self, path: str = "", roster: str = "", schema: str = "") -> RowsOfNode:
        """The rows of the node on which this is called.

        Args:
            path: where they are, if not where all nodes have them.
            roster: who may be served from here; empty for everybody with rows.
            schema: where the schema is, if not where all nodes have it.
        """
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        said |= {"path": path or self.path, "roster": roster, "test_path": ""}
        return RowsOfNode(**{**said, "schema": self.schema and (schema or self.schema)})

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.public_inputs`."""
        changed = {
            "sizes of users": (
                "not known to the server",
                "a user's size decides its own update only",
            ),
            "test part": (self.test_part, "file test_path on the server"),
        }
        return tuple(
            PublicInput(entry.name, *changed[entry.name]) if entry.name in changed else entry
            for entry in super().public_inputs()
        )

    @property
    def test_part(self) -> str:
        """See `RowOptions.test_part`."""
        return "rows of a file, which must be no user's" if self.test_path else "none"


@dataclass(frozen=True)
class RowsOfNode(OnNodes):
    """The rows of one node: every user of its file is trained, and nothing is held out.

    Args:
        users: N, of the whole run.
        roster: the users that may be served from here; empty for all of the file.
    """

    kind: ClassVar[str] = "of-this-node"

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`: the users who own rows here, in their order."""
        allowed = read_roster(Path(self.roster).expanduser(), self.user_column) if self.roster else ()
        rows = read_table(Path(self.path).expanduser(), self.columns(self.user_column, allowed))
        here = np.unique(rows.owner[rows.owner >= 0])
        features, labels = self.examples_of(rows)
        return InMemoryDataset(
            features=features,
            labels=labels,
            owned=partition_by_owner(rows.owner, here).keeping(rows.readable),
            user_ids=tuple(rows.users[place] for place in here),
            test_features=self.structure.features.zeros(0),
            test_labels=self.structure.labels.zeros(0),
            classes=len(rows.classes),
            test_owner=self.test_owner,
        )
