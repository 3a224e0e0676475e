"""Tasks of runs: by name, by a function of the user, or as an object.

A run describes its task by a `TaskSource`, which can be recorded, and builds the `Task` from it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Protocol, TypeVar

from torch import nn

from fedmf.data import DATASETS, Dataset, Digits, PublicInput
from fedmf.data.dataset_options import DatasetOptions
from fedmf.errors import ConfigError
from fedmf.functions import check_function_name, function_of
from fedmf.models import MODELS, Architecture, FlatModel, Mlp
from fedmf.training import Task, task_kinds
from fedmf.values import Field, Value, by_kind, value_of

#: The kind of a task or optimizer that was given as an object.
GIVEN: Final = "given"
T = TypeVar("T")
#: Objects of the user's own, or options by name.
Data = Dataset | DatasetOptions
Model = nn.Module | FlatModel | Architecture


class TaskSource(Protocol):
    """The source of a task; by default, the task itself declares its users and their data."""

    #: Keys of a run, by table, that such a task ignores: configurations leave them out.
    ignored_keys: ClassVar[Mapping[str, Collection[str]]] = {}

    @property
    def users(self) -> int:
        """N, declared before any data are read."""
        ...

    @property
    def unit(self) -> str:
        """The unit of privacy: a "user" or an "example"."""
        return "user"

    @property
    def seed(self) -> int:
        """The public seed of random choices that do not protect anyone."""
        ...

    @property
    def schema_file(self) -> Path | None:
        """The file that declares the columns of the data; None without one."""
        return None

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """Facts about the data that are taken as public; nothing is loaded."""
        source = "declared by the task, which must not take them from private rows"
        return (
            PublicInput("users", str(self.users), source),
            PublicInput("user ids", "as in its data set", source),
            PublicInput("structure of an example", "shapes, types and bounds", source),
            PublicInput("initial parameters", "those of its model", "the model"),
        )

    def build(self) -> Task:
        """Load the data and build the model."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The record of the task, JSON-able."""
        ...


@dataclass(frozen=True)
class NamedTask(TaskSource):
    """A data set, a model, loss and metrics.

    Args:
        data: the users and their examples.
        model: the model.
    """

    kind: ClassVar[str]
    #: The requirement on the data, in words.
    needs: ClassVar[str]
    #: Loss and metrics for a data set and a module.
    task: ClassVar[Callable[[Dataset, nn.Module | FlatModel], Task]]
    #: The number of model outputs for an example or a position; 0 if the data lack such labels.
    outputs: ClassVar[Callable[[Dataset], int]]
    data: DatasetOptions
    model: Architecture

    @property
    def users(self) -> int:
        """N."""
        return self.data.users

    @property
    def unit(self) -> str:
        """The unit of privacy."""
        return self.data.unit

    @property
    def seed(self) -> int:
        """The public seed of the data."""
        return self.data.seed

    @property
    def schema_file(self) -> Path | None:
        """The file of the schema of a table."""
        return self.data.schema_file

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """The public facts about the data, and the file of initial parameters, if any."""
        if not self.model.initial:
            return self.data.public_inputs()
        return (*self.data.public_inputs(), self.pretrained())

    def pretrained(self) -> PublicInput:
        """The file of the initial parameters, by its digest.

        Raises:
            ConfigError: it cannot be read.
        """
        path = Path(self.model.initial).expanduser()
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(
                f"cannot read {path} (initial of the model): {error.strerror}."
            ) from None
        return PublicInput(
            "initial parameters", f"{path.name}, SHA-256 {digest}", "key initial of [model]"
        )

    def build(self) -> Task:
        """Load the data and build the model; a pure function of the value and the files it names.

        Raises:
            ValueError: the data cannot be read, or do not suit task, partition or model.
        """
        dataset = self.data.load()
        task = self.task(dataset, self.module(dataset, self.model, self.seed))
        return replace(task, seed=self.seed)

    @classmethod
    def module(cls, dataset: Dataset, model: Architecture, seed: int = 0) -> nn.Module:
        """The model for examples of the data set, its parameters drawn from a public seed.

        Raises:
            ValueError: the data have nothing to learn of this kind, or the model cannot take them.
        """
        outputs = cls.checked_outputs(dataset)
        tokens = 0
        if isinstance(dataset.vocabulary, int):
            tokens = dataset.vocabulary
        return model.build(dataset.structure.features.shape, outputs, tokens, seed)

    @classmethod
    def checked_outputs(cls, dataset: Dataset) -> int:
        """The number of model outputs for a data set.

        Raises:
            ValueError: the data have nothing to learn of this kind.
        """
        outputs = cls.outputs(dataset)
        if outputs < 1:
            raise ValueError(
                f"data must suit task {cls.kind!r}: {cls.needs}; got a data set that has none."
            )
        return outputs

    def to_dict(self) -> dict[str, Any]:
        """Kind, data and model."""
        return {"kind": self.kind, "data": self.data.to_dict(), "model": self.model.to_dict()}


def _numbers(dataset: Dataset) -> int:
    """The number of real numbers in an example's label; 0 for labels of another type."""
    labels = dataset.structure.labels
    if not labels.dtype.is_floating_point:
        return 0
    return math.prod(labels.shape)


def _number_columns(dataset: Dataset) -> int:
    if dataset.test_labels.ndim != 2:
        return 0
    return _numbers(dataset)


def _classes(dataset: Dataset) -> int:
    if dataset.test_labels.ndim != 1:
        return 0
    return dataset.classes


def _next_token(dataset: Dataset, module: nn.Module | FlatModel) -> Task:
    assert isinstance(dataset.vocabulary, int)
    return task_kinds.next_token(dataset, module, dataset.vocabulary)


def _multi_label(dataset: Dataset, module: nn.Module | FlatModel) -> Task:
    if not bool(((dataset.test_labels == 0) | (dataset.test_labels == 1)).all()):
        raise ValueError(
            "labels of task 'multi-label' must be 0 or 1; got others in the test part."
        )
    return task_kinds.multi_label(dataset, module)


@dataclass(frozen=True)
class Classification(NamedTask):
    """Examples with one label each, and a model with an output for each class."""

    kind = "classification"
    needs = "class numbers as labels"
    task = staticmethod(task_kinds.classification)
    outputs = staticmethod(_classes)
    data: DatasetOptions = field(default_factory=Digits)
    model: Architecture = field(default_factory=Mlp)


@dataclass(frozen=True)
class NextToken(NamedTask):
    """Texts as tokens, and a model that predicts from each position the token that follows."""

    kind = "next-token"
    needs = "tokens as features"
    task = staticmethod(_next_token)
    outputs = staticmethod(lambda data: data.vocabulary)


@dataclass(frozen=True)
class Regression(NamedTask):
    """Examples with numbers as labels, and a model with an output for each of them."""

    kind = "regression"
    needs = "real numbers as labels"
    task = staticmethod(task_kinds.regression)
    outputs = staticmethod(_numbers)


@dataclass(frozen=True)
class MultiLabel(NamedTask):
    """Examples with several labels of 0 or 1, and a model with a logit for each of them."""

    kind = "multi-label"
    needs = "two or more columns of numbers 0 and 1 as labels"
    task = staticmethod(_multi_label)
    outputs = staticmethod(_number_columns)


_KINDS = (Classification, NextToken, Regression, MultiLabel)
#: Tasks that [data] and [model] make, by kind; the first is the default.
NAMED_TASKS: Final[dict[str, type[NamedTask]]] = {task.kind: task for task in _KINDS}


def classification(data: Data, model: Model) -> NamedTask | Task:
    """Create a task with one class per example, and a model with one output per class.

    Args:
        data: your own (`fedmf.Dataset.from_frame`, `from_arrays`, a `Dataset`), or named data such
            as `fedmf.Digits`.
        model: your own module, or a named model such as `fedmf.Mlp`.

    Returns:
        A task that a run records by name if both are named; otherwise a `Task`, recorded by its
        parts.

    Raises:
        TypeError: data or model has another type.
        ValueError: the data have no classes.

    >>> type(classification(Digits(users=10), Mlp())).__name__
    'Classification'
    >>> type(classification(Digits(users=10), nn.Linear(64, 10))).__name__
    'Task'
    """
    return _task_of(Classification, data, model)


def regression(data: Data, model: Model) -> NamedTask | Task:
    """Create a task of predicting real-valued labels; arguments as for `classification`."""
    return _task_of(Regression, data, model)


def next_token(data: Data, model: Model) -> NamedTask | Task:
    """Create a task of predicting the next token at each position; see `classification`.

    The data must have a number of tokens (`Dataset.vocabulary`).
    """
    return _task_of(NextToken, data, model)


def _task_of(named: type[NamedTask], data: Data, model: Model) -> NamedTask | Task:
    if not isinstance(data, Data):
        raise TypeError(
            "data must be a fedmf.Dataset (Dataset.from_frame, Dataset.from_arrays) or named data"
            f" such as fedmf.Digits(); got {type(data).__name__}."
        )
    if not isinstance(model, Model):
        raise TypeError(
            "model must be a torch module or a named model such as fedmf.Mlp(); got"
            f" {type(model).__name__}."
        )
    if isinstance(data, DatasetOptions) and isinstance(model, Architecture):
        return named(data, model)
    dataset = data.load() if isinstance(data, DatasetOptions) else data
    if isinstance(model, Architecture):
        return named.task(dataset, named.module(dataset, model))
    named.checked_outputs(dataset)
    return named.task(dataset, model)


@dataclass(frozen=True)
class FunctionTask(Value, TaskSource):
    """A task that your own function creates in each process.

    Raises:
        ValueError: a function name of another form, or no users.
    """

    kind: ClassVar[str] = "function"
    function: Annotated[
        str, Field("package.module:function, called with this object, that returns a fedmf.Task")
    ] = ""
    users: Annotated[int, Field("number of users", "N", ge=1)] = 360  # type: ignore
    seed: Annotated[  # type: ignore
        int,
        Field(
            "public seed of the function, the cohorts and the order of examples", ge=0, le=2**63 - 1
        ),
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_function_name("the task", self.function)

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
            raise ConfigError(
                f"task {self.function!r} failed: {type(error).__name__}: {error}. The function is"
                " called with one argument, the keys of [task]."
            ) from error
        if not isinstance(task, Task):
            raise ConfigError(
                f"task {self.function!r} must return a fedmf.Task; got {type(task).__name__}."
            )
        return replace(task, seed=self.seed)


def task_of(recorded: Mapping[str, Any], task: Task | None) -> TaskSource | Task:
    """Read the record of a task; a task that was given as an object must be given again."""
    kind = recorded.get("kind")
    if kind == GIVEN:
        return verified_object("task", recorded, task, lambda given: GivenTask(given).to_dict())
    if kind in NAMED_TASKS:
        data = value_of(DATASETS, recorded["data"])
        return NAMED_TASKS[kind](data, value_of(MODELS, recorded["model"]))
    return value_of(by_kind(FunctionTask), recorded)


@dataclass(frozen=True, eq=False)
class GivenTask(TaskSource):
    """A task that was given as an object.

    Args:
        task: data, model, loss and metrics.
    """

    task: Task
    kind: ClassVar[str] = GIVEN

    @property
    def users(self) -> int:
        """N."""
        return self.task.dataset.users

    @property
    def seed(self) -> int:
        """The public seed of the task."""
        return self.task.seed

    def build(self) -> Task:
        """The given object."""
        return self.task

    def to_dict(self) -> dict[str, Any]:
        """Qualified name of the model, seed, and digests that identify the task."""
        model = type(self.task.model.module)
        name = f"{model.__module__}.{model.__qualname__}"
        return {"kind": self.kind, "name": name, "seed": self.seed, **self.task.identity()}


def verified_object(
    role: str,
    recorded: Mapping[str, Any],
    given: T | None,
    describe: Callable[[T], Mapping[str, Any]],
) -> T:
    """Return an object of the user's own, if it is the one with which the run was started.

    Raises:
        ConfigError: none is given, or another one.
    """
    if given is None:
        raise ConfigError(
            f"this run's {role} was given as an object ({recorded['name']}): run the same script"
            f" again, or pass it to fedmf.recorded_run(path, {role}=...)."
        )
    for name, now in describe(given).items():
        if recorded.get(name) != now:
            raise ConfigError(
                f"{role} must be the one that the run was started with; its {name} was "
                f"{recorded.get(name)!r}, not {now!r}. A changed {role} needs another directory."
            )
    return given
