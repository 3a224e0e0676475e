"""Tasks by name: a data set with a model, or a function of a user's own."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedmf.data import DatasetOptions, Digits, PublicInput
from fedmf.errors import ConfigError
from fedmf.models import Architecture, Mlp
from fedmf.runs.given import declared_by_task
from fedmf.training import Task, classification
from fedmf.values import Value, check_whole

__all__ = ["Classification", "FunctionTask"]


@dataclass(frozen=True)
class Classification:
    """Examples with one label each, and a model with an output for each class.

    Args:
        data: whose examples.
        model: which model.
    """

    kind: ClassVar[str] = "classification"
    data: DatasetOptions = field(default_factory=Digits)
    model: Architecture = field(default_factory=Mlp)

    @property
    def users(self) -> int:
        """N."""
        return self.data.users

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

    def build(self) -> Task:
        """Load the data and build the model; a pure function of the value and the files it names.

        Raises:
            ValueError: the data cannot be read or do not suit partition or model.
        """
        dataset = self.data.load()
        shape = tuple(dataset.test_features.shape[1:])
        return classification(dataset, self.model.build(shape, dataset.classes))

    def to_dict(self) -> dict[str, Any]:
        """Kind, data and model."""
        return {"kind": self.kind, "data": self.data.to_dict(), "model": self.model.to_dict()}


@dataclass(frozen=True)
class FunctionTask(Value):
    """A task that a function of a user's own makes, wherever it is needed.

    Args:
        function: ``package.module:function``; called with this value, it returns a `Task`. Modules are
            searched on Python's path and in the current folder.
        users: N, how many users the task has.
        task_seed: for the function to use.
        options: text for the function to use.

    Raises:
        ValueError: a function that is not named so, or no users.
    """

    kind: ClassVar[str] = "function"
    function: str = ""
    users: int = 360
    task_seed: int = 0
    options: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.function):
            raise ValueError(
                f"function (of the task) must read package.module:function; got {self.function!r}."
            )
        check_whole("N (users)", self.users)

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
        module_name, _, name = self.function.partition(":")
        here = str(Path.cwd())
        if here not in sys.path:
            # A console script does not search the current folder; python -m, Ray and Flower do.
            sys.path.append(here)
        try:
            task = getattr(importlib.import_module(module_name), name)(self)
        except Exception as error:
            raise ConfigError(
                f"task {self.function!r} failed: {type(error).__name__}: {error} "
                f"(modules are searched on Python's path and in {here})"
            ) from error
        if not isinstance(task, Task):
            raise ConfigError(f"task {self.function!r} must return a fedmf.Task; got {type(task).__name__}.")
        return task
