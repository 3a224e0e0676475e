"""Rows that stay on the nodes of a deployment: each has a file of its own users, the server none of them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from fedmf.data.cells import read_user_list
from fedmf.data.dataset import Dataset, InMemoryDataset, TestOwner, UserListDataset
from fedmf.data.options import PublicInput
from fedmf.data.partitions import partition_by_owner
from fedmf.data.schema import Schema
from fedmf.data.structure import ExampleStructure, TensorStructure
from fedmf.data.table import Rows, Table, places
from fedmf.values import Field


@dataclass(frozen=True)
class OnNodes(Table):
    """Rows with a class each, in files that stay on the nodes of a deployment, each with its own users.

    The server reads the user list and, if there is one, the test file. It never opens ``path``: there a node
    finds its users' rows, unless its node config says ``data-path``. A node says that it serves whoever has
    rows there; with ``data-user-list`` in its node config, a file like ``user_list``, only those on it. A
    schema is read on the server and on every node, there where ``data-schema`` in its node config says.
    """

    kind: ClassVar[str] = "on-nodes"
    partition: Literal["by-user"] = "by-user"
    test_split: Literal["auto"] = "auto"
    schema_digest: Annotated[str, Field("digest that the schemas of all nodes must have")] = ""
    test_path: Annotated[
        str, Field("file with the central test part, on the server; of nobody on the user list")
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_columns or self.text_column:
            raise ValueError(
                f"label_columns and text_column must be left out with dataset {self.kind!r}, whose rows have "
                "a class."
            )
        for name in ("feature_columns", "class_names", "input_shape"):
            if not getattr(self, name) and not self.schema:
                raise ValueError(
                    f"{name} (of the data) must be declared with dataset {self.kind!r}; got none. No process "
                    "sees all rows."
                )
        if not self.user_list and type(self) is OnNodes:
            raise ValueError("user_list must name the file of all user ids with data on nodes; got none.")

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

    @cached_property
    def declared(self) -> Schema | None:
        """See `Table.declared`; the same on the server and on all nodes.

        Raises:
            ValueError: it is another one.
        """
        schema = super().declared
        if schema is not None and schema.digest != self.schema_digest:
            raise ValueError(
                f"schema_digest must be that of {self.schema}, {schema.digest}; got "
                f"{self.schema_digest or 'none'}. By it every node knows that it has the same schema."
            )
        return schema

    @cached_property
    def structure(self) -> ExampleStructure:
        """What one example looks like."""
        schema, names = self.declared, self.features_of()
        width = len(names) if schema is None else schema.encoding(names).dimension
        shape = self.input_shape or (width,)
        if schema is not None and math.prod(shape) != width:
            raise ValueError(
                f"input-shape must multiply to the {width} coordinates of the schema; got {shape}."
            )
        labels = TensorStructure((), torch.int64, len(self.known_classes))
        return ExampleStructure(TensorStructure(shape, torch.float32), labels)

    def load(self) -> Dataset:
        """See `DatasetOptions.load`: what a server knows."""
        people, test = self.listed_users(False), None
        if self.test_path:
            tests = dataclasses.replace(self, path=self.test_path, schema_digest=self.schema_digest)
            x, y, readable = tests.examples_of(tests.read(tests.batches((self.user_column,))))
            if not readable.any():
                raise ValueError(f"test_path must hold a readable row; got none in {self.test_path}.")
            test = x[readable], y[readable]
        return UserListDataset(people, self.structure, test)

    def examples_of(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Features in their shape, labels, and which rows can be read."""
        labels, _ = self.labelled(rows)
        features, shape = torch.from_numpy(np.concatenate(rows.features)), self.structure.features.shape
        if math.prod(shape) != features.shape[1]:
            raise ValueError(
                f"input-shape must multiply to the {features.shape[1]} entries of an example; got "
                f"{self.input_shape}."
            )
        readable = torch.isfinite(features).all(dim=1) & torch.from_numpy(labels >= 0)
        return features.reshape(-1, *shape), torch.from_numpy(labels), readable

    def here(self, path: str = "", user_list: str = "", schema: str = "") -> RowsOfNode:
        """The rows of the node on which this is called.

        Args:
            path: where they are, if not where all nodes have them.
            user_list: who may be served from here; empty for everybody with rows.
            schema: where the schema is, if not where all nodes have it.
        """
        said = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        said |= {"path": path or self.path, "user_list": user_list, "test_path": ""}
        return RowsOfNode(**{**said, "schema": self.schema and (schema or self.schema)})

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.public_inputs`."""
        changed = {
            "sizes of users": ("not known to the server", "a user's size decides its own update only"),
            "test part": (self.test_part, "file test_path on the server"),
        }
        return tuple(
            PublicInput(entry.name, *changed.get(entry.name, (entry.value, entry.source)))
            for entry in super().public_inputs()
        )

    @property
    def test_part(self) -> str:
        """See `Table.test_part`."""
        return "rows of a file, which must be no user's" if self.test_path else "none"


@dataclass(frozen=True)
class RowsOfNode(OnNodes):
    """The rows of one node (`OnNodes.here`): every user of its file is trained, and nothing is held out."""

    kind: ClassVar[str] = "of-this-node"

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`: the users who own rows here, in their order."""
        allowed = (
            read_user_list(Path(self.user_list).expanduser(), self.user_column) if self.user_list else ()
        )
        rows = self.read(self.batches())
        users, owner = places(rows.users, allowed, False)
        here = np.unique(owner[owner >= 0])
        features, labels, readable = self.examples_of(rows)
        return InMemoryDataset(
            features=features,
            labels=labels,
            owned=partition_by_owner(owner, here).keeping(readable.numpy()),
            user_ids=tuple(users[place] for place in here),
            test_features=self.structure.features.zeros(0),
            test_labels=self.structure.labels.zeros(0),
            classes=len(self.known_classes),
            test_owner=self.test_owner,
        )
