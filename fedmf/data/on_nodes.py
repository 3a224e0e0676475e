"""Rows that stay on the nodes of a deployment.

Each node has a file with the rows of its own users; the server has no user's rows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from fedmf.data.cells import places, read_user_list
from fedmf.data.dataset import InMemoryDataset, TestOwner
from fedmf.data.partitions import Partition, partition_by_owner
from fedmf.data.schema import Category, Schema
from fedmf.data.table import Table


@dataclass(frozen=True)
class OnNodes(Table):
    """Rows with a class, in files that stay on the nodes of a deployment.

    Each node has its own users. The server reads the user list and, if there is one, the test file.
    It never opens ``path``, where a node finds the rows of its users, unless its node config says
    ``data-path``. A node announces all users who have rows there; with ``data-user-list`` in its
    node config, a file like ``user_list``, only those on it. A schema, ``PATH#DIGEST``, is read on
    the server and on every node, which finds it at ``data-schema`` of its node config if given; the
    digest shows that all schemas are equal.
    """

    kind: ClassVar[str] = "on-nodes"
    takes_number_labels: ClassVar[bool] = False
    partition: Literal["by-user"] = "by-user"
    test_split: Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_column:
            raise ValueError("text_column must be omitted on nodes: rows have a class.")

    @property
    def holds_out_users(self) -> bool:
        """Always false: the test part is a file of its own."""
        return False

    @property
    def test_owner(self) -> TestOwner:
        """Always "nobody": the central test part belongs to no user."""
        return "nobody"

    @cached_property
    def declared(self) -> Schema | None:
        """The schema, which is equal on the server and on all nodes; None without one.

        Raises:
            ValueError: its digest differs, or the label is not a category.
        """
        schema = super().declared
        if schema is None:
            return None
        for name in self.label_column:
            schema.column(name, Category, "label_column")
        path, _, digest = self.schema.partition("#")
        if schema.digest != digest:
            raise ValueError(
                f"schema must end in #{schema.digest}, the digest of {path}; got"
                f" {digest or 'none'}. It ensures that all nodes use the same schema."
            )
        return schema

    def load(self) -> InMemoryDataset:
        """Return the data set as a server knows it: the users, and the test part if there is one.

        Raises:
            ValueError: the user list or the test file cannot be used.
        """
        x = torch.zeros(0, *self.shape)
        y = torch.zeros(0, dtype=torch.int64)
        people = self.listed_users(False)
        test_x = x
        test_y = y
        if self.test_path:
            tests = self.public_rows(people)
            chosen = self.chosen_tests(tests, people)
            test_x = tests.features[chosen]
            test_y = tests.labels[chosen]
        return InMemoryDataset(
            features=x,
            labels=y,
            owned=Partition(np.arange(0), np.zeros(len(people) + 1, dtype=np.int64)),
            user_ids=people,
            test_features=test_x,
            test_labels=test_y,
            classes=len(self.classes),
            has_examples=False,
        )

    def here(self, path: str = "", user_list: str = "", schema: str = "") -> InMemoryDataset:
        """Return the users with rows on this node; nothing is held out.

        Args:
            path: path of the rows, if it differs from that of other nodes.
            user_list: file with the ids that may be served from here; empty for all with rows.
            schema: path of the schema, if it differs from that of other nodes.

        Raises:
            ValueError: the rows cannot be read.
        """
        declared = self.schema
        if schema and self.schema:
            digest = self.schema.partition("#")[2]
            declared = f"{schema}#{digest}"
        node = dataclasses.replace(self, path=path or self.path, schema=declared)
        rows = node.read(node.batches())
        if user_list:
            allowed = read_user_list(Path(user_list).expanduser(), self.user_column)
        else:
            allowed = sorted(rows.users.unique().drop_null().to_pylist())
        owner = places(rows.users, allowed)
        present = np.unique(owner[owner >= 0])
        return InMemoryDataset(
            features=rows.features,
            labels=rows.labels,
            owned=partition_by_owner(owner, present).keeping(rows.readable),
            user_ids=tuple(np.array(allowed, dtype=object)[present]),
            test_features=rows.features[:0],
            test_labels=rows.labels[:0],
            classes=len(self.classes),
        )

    @property
    def test_part(self) -> tuple[str, str]:
        if self.test_path:
            return super().test_part
        return "none", "no file test_path on the server"
