"""Rows that stay on the nodes of a deployment: each has a file of its own users, the server none of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from fedmf.data.contract import DataContract
from fedmf.data.dataset import FederatedDataset, TestOwner
from fedmf.data.elsewhere import RosterDataset
from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import Spread
from fedmf.data.public_input import PublicInput
from fedmf.data.rows.contract_options import ContractOptions
from fedmf.data.rows.declared_table import DeclaredColumns, read_declared
from fedmf.data.rows.labelled_rows import LabelledRows
from fedmf.data.rows.ownership import partition_by_owner, read_roster
from fedmf.data.rows.table_file import TableColumns, TableRows, read_table
from fedmf.data.structure import ExampleStructure, TensorStructure


@dataclass(frozen=True)
class _Declared(ContractOptions, LabelledRows):
    """Rows of whose users nothing is held out, and about which everything public is declared.

    Args:
        contract_digest: of the data contract, so that no node scales by another one; without it the run is
            refused with the digest to be given.
    """

    partition: Literal[Spread, "natural"] = "natural"
    contract_digest: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partition != "natural" or self.hold_out != "auto":
            raise ValueError(
                f"partition and hold_out must be 'natural' and 'auto' with dataset {self.kind!r}; got "
                f"{self.partition!r} and {self.hold_out!r}. A node's rows are its users', all of them."
            )
        for name in ("feature_columns", "class_names", "input_shape"):
            if not getattr(self, name) and not self.contract:
                raise ValueError(
                    f"{name} (of the data) must be declared with dataset {self.kind!r}; got none. No process "
                    "sees all rows."
                )

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

    def data_contract(self) -> DataContract:
        """See `ContractOptions.data_contract`; the same on the server and on all nodes.

        Raises:
            ValueError: it is another one.
        """
        contract = super().data_contract()
        if contract.digest != self.contract_digest:
            raise ValueError(
                f"contract_digest must be that of {self.contract}, {contract.digest}; got "
                f"{self.contract_digest or 'none'}. By it every node knows that it has the same contract."
            )
        return contract

    @cached_property
    def declared_columns(self) -> DeclaredColumns:
        """What the contract declares of labels and features; of every user."""
        contract = self.data_contract()
        features = self.features_of(contract, (self.label_column,))
        columns = DeclaredColumns(contract, features, self.label_column, self.user_column)
        self.check_words(columns.classes)
        return columns

    def rows_of(self, path: str, user: str, users: tuple[str, ...] = ()) -> TableRows:
        """The rows of a file, or of all files of a folder, in the declared columns."""
        place = Path(path).expanduser()
        if self.contract:
            # Rows that are no user's need not have the column of users.
            optional = () if user else (self.user_column,)
            columns = replace(self.declared_columns, user=user, users=users, optional=optional)
            return read_declared(place, columns)
        width = math.prod(self.input_shape)
        rows = read_table(
            place, TableColumns(self.label_column, self.feature_columns, user, self.classes, users, width)
        )
        if rows.features.shape[1] != width:
            raise ValueError(
                f"input-shape must multiply to the {rows.features.shape[1]} entries of an example; got "
                f"{self.input_shape}."
            )
        return rows

    @property
    def structure(self) -> ExampleStructure:
        """What one example looks like."""
        shape, classes = self.input_shape, self.classes
        if self.contract:
            columns = self.declared_columns
            dimension, classes = columns.encoding.dimension, columns.classes
            shape = shape or (dimension,)
            if math.prod(shape) != dimension:
                raise ValueError(
                    f"input-shape must multiply to the {dimension} coordinates of the contract; got {shape}."
                )
        labels = TensorStructure((), torch.int64, len(classes))
        return ExampleStructure(TensorStructure(shape, torch.float32), labels)


@dataclass(frozen=True)
class RowsOfNode(_Declared):
    """The rows of one node: every user of its file is trained, and nothing is held out.

    Args:
        users: N, of the whole run.
        roster: the users that may be served from here; empty for all of the file.
    """

    kind: ClassVar[str] = "of-this-node"

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`: the users who own rows here, in their order."""
        allowed = read_roster(Path(self.roster).expanduser(), self.user_column) if self.roster else ()
        rows = self.rows_of(self.path, self.user_column, allowed)
        here = np.unique(rows.owner[rows.owner >= 0])
        valid = (rows.labels >= 0) & np.isfinite(rows.features).all(axis=1)
        features, structure = torch.from_numpy(rows.features), self.structure
        return InMemoryDataset(
            features=features.reshape(len(features), *structure.features.shape),
            labels=torch.from_numpy(rows.labels),
            owned=partition_by_owner(rows.owner, here).keeping(valid),
            user_ids=tuple(rows.users[place] for place in here),
            test_features=structure.features.zeros(0),
            test_labels=structure.labels.zeros(0),
            classes=len(rows.classes),
            test_owner=self.test_owner,
        )


@dataclass(frozen=True)
class OnNodes(_Declared):
    """Rows of CSV or Parquet files that stay on the nodes of a deployment; each has those of its own users.

    The server reads the roster and, if there is one, the test file. It never opens ``path``: there a node
    finds its users' rows, unless its node config says ``data-path``. A node says that it serves whoever has
    rows there; with ``data-roster`` in its node config, a file like ``roster``, only those on it. A data
    contract is read on the server and on every node, there where ``data-contract`` in its node config says.

    Args:
        path: of the rows, as nodes find it.
        roster: a file with the ids of all users of the run, on the server.
        test_path: a file with the central test part, on the server: the same columns but for the user's,
            rows of nobody who is on the roster. Empty: nothing is evaluated centrally.
    """

    kind: ClassVar[str] = "on-nodes"
    test_path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.roster:
            raise ValueError("roster must name the file with all user ids with dataset 'on-nodes'; got none.")

    def load(self) -> FederatedDataset:
        """See `DatasetOptions.load`: what a server knows."""
        return RosterDataset(self.users_on_roster(False), self.structure, self._test(), self.test_owner)

    def here(self, path: str = "", roster: str = "", contract: str = "") -> RowsOfNode:
        """The rows of the node on which this is called.

        Args:
            path: where they are, if not where all nodes have them.
            roster: who may be served from here; empty for everybody with rows.
            contract: where the data contract is, if not where all nodes have it.
        """
        return RowsOfNode(
            users=self.users,
            path=path or self.path,
            roster=roster,
            feature_columns=self.feature_columns,
            label_column=self.label_column,
            user_column=self.user_column,
            class_names=self.class_names,
            input_shape=self.input_shape,
            contract=self.contract and (contract or self.contract),
            contract_digest=self.contract_digest,
        )

    def _test(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not self.test_path:
            return None
        rows = self.rows_of(self.test_path, "")
        valid = (rows.labels >= 0) & np.isfinite(rows.features).all(axis=1)
        if not valid.any():
            raise ValueError(f"test_path must hold a row that can be read; got none in {self.test_path}.")
        features = torch.from_numpy(rows.features[valid])
        return features.reshape(len(features), *self.structure.features.shape), torch.from_numpy(
            rows.labels[valid]
        )

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        if not self.contract:
            return super().example_inputs()
        return self.contract_inputs("classes", f"words of column {self.label_column}")

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
