"""Tasks by name: what is learnt of a data set by a model, or a function of a user's own."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from torch import nn

from fedmf.data import (
    DATASETS,
    DatasetOptions,
    Digits,
    FederatedDataset,
    PublicInput,
    Table,
)
from fedmf.errors import ConfigError
from fedmf.functions import check_function_name, function_of
from fedmf.models import MODELS, Architecture, Mlp
from fedmf.runs.given import GIVEN, TaskSource, declared_by_task, same_task
from fedmf.training import Task, classification, multi_label, next_token, regression, tagging
from fedmf.values import Field, Value, by_kind, value_of


@dataclass(frozen=True)
class NamedTask(ABC):
    """A data set, a model, and what is learnt of the one by the other: loss and metrics.

    Args:
        data: whose examples.
        model: which model.
    """

    kind: ClassVar[str]
    data: DatasetOptions
    model: Architecture

    @property
    def users(self) -> int:
        """N."""
        return self.data.users

    @property
    def unit(self) -> str:
        """What a user of the data stands for."""
        return self.data.unit

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """Those of the data, and the file that training starts from."""
        pretrained = self.pretrained()
        return self.data.public_inputs() + (() if pretrained is None else (pretrained,))

    def pretrained(self) -> PublicInput | None:
        """The file of the initial parameters by its digest, where one is named.

        Raises:
            ConfigError: it cannot be read.
        """
        if not self.model.initial:
            return None
        path = Path(self.model.initial).expanduser()
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(f"cannot read {path} (initial of the model): {error.strerror}.") from None
        return PublicInput("initial parameters", f"{path.name}, SHA-256 {digest}", "key initial of [model]")

    def undeclared(self) -> tuple[str, ...]:
        """Those of the data."""
        return self.data.undeclared()

    @abstractmethod
    def build(self) -> Task:
        """Load the data and build the model; a pure function of the value and the files it names.

        Raises:
            ValueError: the data cannot be read, or do not suit task, partition or model.
        """

    def module(self, dataset: FederatedDataset, outputs: int) -> nn.Module:
        """The model for examples of the data set, with so many outputs for an example or a position.

        Raises:
            ValueError: the data have nothing to learn of this kind, or the model cannot take them.
        """
        if outputs < 1:
            raise ValueError(
                f"[data] must suit task {self.kind!r}: {self.needs}; got data of kind {self.data.kind!r}, "
                "which have none."
            )
        shape = dataset.structure.features.shape
        return self.model.build(shape, outputs, dataset.vocabulary)

    #: What the data must have, in words.
    needs: ClassVar[str]
    #: See `TaskSource.unread`.
    unread: ClassVar[Mapping[str, Collection[str]]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Kind, data and model."""
        return {"kind": self.kind, "data": self.data.to_dict(), "model": self.model.to_dict()}


@dataclass(frozen=True)
class Classification(NamedTask):
    """Examples with one label each, and a model with an output for each class."""

    kind: ClassVar[str] = "classification"
    needs: ClassVar[str] = "class numbers as labels"
    data: DatasetOptions = field(default_factory=Digits)
    model: Architecture = field(default_factory=Mlp)

    def build(self) -> Task:
        """See `NamedTask.build`."""
        dataset = self.data.load()
        outputs = dataset.classes if dataset.test_labels.ndim == 1 else 0
        return classification(dataset, self.module(dataset, outputs))


@dataclass(frozen=True)
class NextToken(NamedTask):
    """Texts as tokens, and a model that predicts from each position the token that follows."""

    kind: ClassVar[str] = "next-token"
    needs: ClassVar[str] = "tokens as features"

    def build(self) -> Task:
        """See `NamedTask.build`."""
        dataset = self.data.load()
        return next_token(dataset, self.module(dataset, dataset.vocabulary), dataset.vocabulary)


@dataclass(frozen=True)
class Tagging(NamedTask):
    """Texts as tokens with a label each, and a model with an output for each class at each position."""

    kind: ClassVar[str] = "tagging"
    needs: ClassVar[str] = "a class number for each position as labels"

    def build(self) -> Task:
        """See `NamedTask.build`."""
        dataset = self.data.load()
        outputs = dataset.classes if dataset.test_labels.ndim > 1 else 0
        return tagging(dataset, self.module(dataset, outputs))


@dataclass(frozen=True)
class Regression(NamedTask):
    """Examples with numbers as labels, and a model with an output for each of them."""

    kind: ClassVar[str] = "regression"
    needs: ClassVar[str] = "real numbers as labels"

    def build(self) -> Task:
        """See `NamedTask.build`."""
        dataset = self.data.load()
        return regression(dataset, self.module(dataset, _numbers(dataset)))


@dataclass(frozen=True)
class MultiLabel(NamedTask):
    """Examples with several labels of 0 or 1, and a model with a logit for each of them."""

    kind: ClassVar[str] = "multi-label"
    needs: ClassVar[str] = "two or more columns of numbers 0 and 1 as labels"

    def build(self) -> Task:
        """See `NamedTask.build`."""
        if isinstance(self.data, Table):
            self.data.check_labels_of_0_or_1()
        dataset = self.data.load()
        labels = _numbers(dataset) if dataset.test_labels.ndim == 2 else 0
        if labels and not bool(((dataset.test_labels == 0) | (dataset.test_labels == 1)).all()):
            raise ValueError(f"labels of task {self.kind!r} must be 0 or 1; got others in the test part.")
        return multi_label(dataset, self.module(dataset, labels))


def _numbers(dataset: FederatedDataset) -> int:
    """How many numbers an example's label is; 0 where it is no real number."""
    labels = dataset.structure.labels
    return math.prod(labels.shape) if labels.dtype.is_floating_point else 0


_KINDS = (Classification, NextToken, Tagging, Regression, MultiLabel)
#: Tasks that [data] and [model] make, by kind; the first is the default.
NAMED_TASKS: Final[dict[str, type[NamedTask]]] = {task.kind: task for task in _KINDS}


@dataclass(frozen=True)
class FunctionTask(Value):
    """A task that a function of a user's own makes, wherever it is needed.

    Raises:
        ValueError: a function that is not named so, or no users.
    """

    kind: ClassVar[str] = "function"
    unread: ClassVar[Mapping[str, Collection[str]]] = {}
    function: Annotated[str, Field("package.module:function that returns a fedmf.Task for these fields")] = ""
    users: Annotated[int, Field("number of users", "N", ge=1)] = 360
    task_seed: Annotated[int, Field("seed for the function", ge=0)] = 0
    options: Annotated[str, Field("text for the function")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_function_name("the task", self.function)

    @property
    def unit(self) -> None:
        """Not known before the task is built."""
        return None

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """What the task declares."""
        return declared_by_task(self.users)

    def undeclared(self) -> tuple[str, ...]:
        """Nothing: the task declares its structure itself."""
        return ()

    def build(self) -> Task:
        """Call the function.

        Raises:
            ConfigError: it cannot be imported, fails, or returns something else.
        """
        try:
            task = function_of("the task", self.function)(self)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"task {self.function!r} failed: {type(error).__name__}: {error}") from error
        if not isinstance(task, Task):
            raise ConfigError(f"task {self.function!r} must return a fedmf.Task; got {type(task).__name__}.")
        return task


def task_of(recorded: Mapping[str, Any], task: Task | None) -> TaskSource | Task:
    """What a record keeps of a task, read again; ``task`` is it where it was given as an object."""
    kind = recorded.get("kind")
    if kind == GIVEN:
        return same_task(recorded, task)
    if kind in NAMED_TASKS:
        data = value_of(DATASETS, recorded["data"])
        return NAMED_TASKS[kind](data, value_of(MODELS, recorded["model"]))
    return value_of(by_kind(FunctionTask), recorded)
