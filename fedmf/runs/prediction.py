"""Predictions of a released model for new rows, with the columns and units of its run.

The released model, the recorded configuration and the public schema are read, and nothing private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as arrow
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.hub import Hub
from fedmf.data.on_nodes import OnNodes
from fedmf.data.row_counts import counted
from fedmf.data.schema import Category, Encoded
from fedmf.data.table import Table
from fedmf.errors import ConfigError
from fedmf.models import FlatModel
from fedmf.runs.directory import SCHEMA, read_header
from fedmf.runs.released_model import ReleasedModel
from fedmf.runs.tasks import NAMED_TASKS, Classification, MultiLabel, NamedTask, Regression, task_of

#: Data with declared columns.
_TABLES: Final = (Table, OnNodes, Hub)
_PREDICTABLE: Final = (Classification, Regression, MultiLabel)
#: The largest number of classes with a column of probabilities each.
_MOST_CLASSES: Final = 1000


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions for the rows of a table.

    Args:
        table: a row for each row of the input, in its order; null where that cannot be read.
        missing: how many rows have no prediction.
        left_out: the same by reason.
    """

    table: arrow.Table
    missing: int
    left_out: dict[str, int]


def predict(path: str | Path, rows: str | Path) -> arrow.Table:
    """The predictions of a run's last released model for new rows.

    Args:
        path: the run directory; its data are of kind "table", "on-nodes" or "hub".
        rows: CSV, JSON lines or Parquet, or a folder of such files, with the feature columns; for
            "hub" a folder of images or in Hugging Face's format. Columns are encoded as in the run,
            and no others are read.

    Returns:
        A table with ``row`` (from 1) and, for classes, ``prediction`` and a ``probability_`` column
        for each class; for numbers, predictions in the units of the label columns; for labels of 0
        and 1, both for each label. Null in a row with a feature that cannot be read.

    Raises:
        ConfigError: it is not a run directory, no round was released yet, or the run has other
            data.
        ValueError: the rows cannot be read.
    """
    if not isinstance(rows, str | Path):
        raise TypeError(
            f"rows must be the path of a file or folder; got {type(rows).__name__}. A data frame"
            " has to_csv and to_parquet."
        )
    return Predictor.of(Path(path)).of_file(Path(rows)).table


@dataclass(frozen=True, eq=False)
class Predictor:
    """A released model with the encoding of its inputs and outputs.

    Args:
        source: task, data and model of the run by name.
        data: the columns of its table.
        model: its last released model.
    """

    source: NamedTask
    data: Table
    model: ReleasedModel

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read it from a run directory.

        Raises:
            ConfigError: it is not a run directory, no round was released yet, or the run has other
                data.
        """
        recorded = read_header(path).run["task"]
        source = None
        if recorded.get("kind") in NAMED_TASKS:
            source = task_of(recorded, None)
        if not isinstance(source, _PREDICTABLE) or type(source.data) not in _TABLES:
            raise ConfigError(
                "predict needs a run with labels and data.kind table, on-nodes or hub; this run has"
                " others. Load the model into your own module instead:"
                " module.load_state_dict(fedmf.load_model(RUN_DIR))."
            )
        data = source.data
        assert isinstance(data, Table)
        if data.schema:
            digest = data.schema.partition("#")[1:]
            data = replace(data, schema=str(path / SCHEMA) + "".join(digest))
        return cls(source, data, ReleasedModel.of(path))

    def of_file(self, rows: Path) -> Predictions:
        """Predict for the rows of a file, or of a folder of files.

        Raises:
            ValueError: the rows cannot be read.
        """
        dataset, encoded = self.data.of_new_rows(rows)
        module = self.source.module(dataset, self.source.model)
        module.load_state_dict(self.model.tensors)
        task = self.source.task(dataset, module)
        outputs = task.outputs(FlatModel(module).initial(), dataset.test_features)
        columns: dict[str, Any] = {"row": arrow.array(np.arange(1, len(outputs) + 1))}
        for name, values in self._columns(outputs.to(torch.float64)).items():
            columns[name] = arrow.array(values, mask=~encoded.readable)
        everything = np.ones(len(outputs), dtype=bool)
        missing = int((~encoded.readable).sum())
        return Predictions(arrow.table(columns), missing, counted(encoded.faults, everything))

    def _columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        if isinstance(self.source, Classification):
            return _of_classes(outputs, self.data.classes)
        columns: dict[str, NDArray[Any]] = {}
        names = self.data.label_column
        for name, values in zip(names, outputs.reshape(len(outputs), -1).T, strict=True):
            ending = f"_{name}" if len(names) > 1 else ""
            if isinstance(self.source, MultiLabel):
                columns[f"prediction{ending}"] = self._answers(name, values > 0)
                columns[f"probability{ending}"] = values.sigmoid().numpy()
            else:
                columns[f"prediction{ending}"] = self._in_units(name, values.numpy())
        return columns

    def _answers(self, name: str, is_second: Tensor) -> NDArray[Any]:
        """0 and 1, or the values of a category."""
        column = None
        if self.data.declared is not None:
            column = self.data.declared.columns[name]
        if isinstance(column, Category):
            return np.array(column.categories, dtype=object)[is_second.long().numpy()]
        return is_second.long().numpy()

    def _in_units(self, name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers in the units of the label column rather than of its encoding."""
        if self.data.declared is None:
            return values
        column = self.data.declared.column(name, Encoded, "label_column")
        center, scale, *_ = column.units
        return center + scale * values


def _of_classes(outputs: Tensor, classes: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The most probable class and the probability of each."""
    columns = {"prediction": np.array(classes, dtype=object)[outputs.argmax(dim=1).numpy()]}
    if len(classes) <= _MOST_CLASSES:
        for name, values in zip(classes, outputs.softmax(dim=1).T, strict=True):
            columns[f"probability_{name}"] = values.numpy()
    return columns
