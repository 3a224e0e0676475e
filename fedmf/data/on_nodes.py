"""Rows that stay on the nodes of a deployment: each has a file of its own users, the server none of
them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from fedmf.data.cells import places, read_user_list
from fedmf.data.dataset import InMemoryDataset, TestOwner
from fedmf.data.dataset_options import PublicInput
from fedmf.data.partitions import Partition, partition_by_owner
from fedmf.data.schema import Schema
from fedmf.data.table import Table
from fedmf.values import Field


@dataclass(frozen=True)
class OnNodes(Table):
    """Rows with a class, in files that stay on the nodes of a deployment; each node has its own
    users.

    The server reads the user list and, if there is one, the test file. It never opens ``path``:
    there a node finds its users' rows, unless its node config says ``data-path``. A node says that
    it serves all users who have rows there; with ``data-user-list`` in its node config, a file like
    ``user_list``, only those on it. A schema, ``PATH#DIGEST``, is read on the server and on every
    node, there where ``data-schema`` in its node config says; the digest shows that it is the same
    one.
    """

    kind: ClassVar[str] = "on-nodes"
    partition: Literal["by-user"] = "by-user"
    test_split: Literal["auto"] = "auto"
    test_path: Annotated[
        str, Field("file with the central test part, on the server; no users on the user list")
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_columns or self.text_column:
            raise ValueError(
                "label_columns and text_column must be omitted on nodes: rows have a class."
            )

    @property
    def holds_out_users(self) -> bool:
        """No users are held out."""
        return False

    @property
    def test_owner(self) -> TestOwner:
        """The central test part is no user's."""
        return "nobody"

    @cached_property
    def declared(self) -> Schema | None:
        """See `Table.declared`; the same on the server and on all nodes.

        Raises:
            ValueError: it is another one.
        """
        schema = super().declared
        path, _, digest = self.schema.partition("#")
        if schema is not None and schema.digest != digest:
            raise ValueError(
                f"schema must end in #{schema.digest}, the digest of {path}; got"
                f" {digest or 'none'}. It ensures that all nodes use the same schema."
            )
        return schema

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`: what a server knows."""
        x = torch.zeros(0, *self.shape)
        y = torch.zeros(0, dtype=torch.int64)
        people = self.listed_users(False)
        test = (x, y)
        if self.test_path:
            tests = dataclasses.replace(self, path=self.test_path)
            rows = tests.read(tests.batches((self.user_column,)))
            if not rows.readable.any():
                raise ValueError(
                    f"test_path must hold a readable row; got none in {self.test_path}."
                )
            kept = np.flatnonzero(rows.readable)
            test = rows.features[kept], rows.labels[kept]
        return InMemoryDataset(
            features=x,
            labels=y,
            owned=Partition(np.arange(0), np.zeros(len(people) + 1, dtype=np.int64)),
            user_ids=people,
            test_features=test[0],
            test_labels=test[1],
            classes=len(self.classes),
            has_examples=False,
        )

    def here(self, path: str = "", user_list: str = "", schema: str = "") -> InMemoryDataset:
        """The users who own rows on the node on which this is called: all are trained, nothing is
        held out.

        Args:
            path: where the rows are, if not where all nodes have them.
            user_list: who may be served from here; empty for everybody with rows.
            schema: where the schema is, if not where all nodes have it.

        Raises:
            ValueError: the rows cannot be read.
        """
        named = (
            f"{schema}#{self.schema.partition('#')[2]}" if schema and self.schema else self.schema
        )
        node = dataclasses.replace(self, path=path or self.path, schema=named)
        rows = node.read(node.batches())
        if user_list:
            allowed = read_user_list(Path(user_list).expanduser(), self.user_column)
        else:
            allowed = tuple(sorted(filter(None, rows.users.unique().to_pylist())))
        owner = places(rows.users, allowed)
        here = np.unique(owner[owner >= 0])
        return InMemoryDataset(
            features=rows.features,
            labels=rows.labels,
            owned=partition_by_owner(owner, here).keeping(rows.readable),
            user_ids=tuple(allowed[place] for place in here),
            test_features=rows.features[:0],
            test_labels=rows.labels[:0],
            classes=len(self.classes),
        )

    def user_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.user_inputs`."""
        *known, _ = super().user_inputs()
        sizes = "not known to the server", "a user's size decides its own update only"
        return (*known, PublicInput("sizes of users", *sizes))

    @property
    def test_part(self) -> tuple[str, str]:
        """See `DatasetOptions.test_part`."""
        words = "rows of a file, which must be no user's" if self.test_path else "none"
        return words, "file test_path on the server"
