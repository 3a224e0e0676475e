"""Objects of a user's own in a run, and its data and model: recorded by digest, compared on resuming."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeVar

import numpy as np

from fedmf.data import PublicInput
from fedmf.errors import ConfigError
from fedmf.noise import NoiseKey
from fedmf.optim import OPTIMIZERS, ChosenOptimizer, OwnOptimizer, ServerOptimizer, chosen, fingerprint_of
from fedmf.training import Task, example_counts
from fedmf.values import Value, value_of

#: The kind of what was given as an object.
GIVEN: Final = "given"
T = TypeVar("T")


class TaskSource(Protocol):
    """What a task comes from; by default one that declares its users and their data itself."""

    #: By table, keys of a run that nothing reads for such a task: no configuration says them.
    unread: ClassVar[Mapping[str, Collection[str]]] = {}

    @property
    def users(self) -> int:
        """N, declared before any data are read."""
        ...

    @property
    def unit(self) -> str:
        """What a user stands for: a "user" or an "example"."""
        return "user"

    @property
    def seed(self) -> int:
        """Public seed of whatever is drawn without protecting anybody."""
        ...

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """Whatever of the data is taken as known to everybody; nothing is loaded."""
        source = "declared by the task, which must not read them off private rows"
        return (
            PublicInput("users", str(self.users), source),
            PublicInput("user ids", "those of its data set", source),
            PublicInput("sizes of users", "those of its data set", source),
            PublicInput("structure of an example", "shapes, types and bounds", source),
            PublicInput("test part", "that of its data set, which names its owner", source),
        )

    def build(self) -> Task:
        """Load the data and build the model."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps of it."""
        ...


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
        """See `Task`."""
        return self.task.seed

    def build(self) -> Task:
        """The object."""
        return self.task

    def to_dict(self) -> dict[str, Any]:
        """Qualified name of the model and fingerprint of the task."""
        model = type(self.task.model.module)
        name = f"{model.__module__}.{model.__qualname__}"
        fingerprint = self.task.fingerprint()
        return {"kind": self.kind, "name": name, "fingerprint": fingerprint, "seed": self.seed}


def recorded_optimizer(optimizer: ChosenOptimizer) -> dict[str, Any]:
    """What a record keeps of an optimizer: its options, or qualified name and fingerprint of an object."""
    if isinstance(optimizer, Value):
        return optimizer.to_dict()
    name, fingerprint = fingerprint_of(optimizer.rule if isinstance(optimizer, OwnOptimizer) else optimizer)
    return {"kind": GIVEN, "name": name, "fingerprint": fingerprint}


def optimizer_of(
    recorded: Mapping[str, Any], optimizer: ServerOptimizer | None
) -> ChosenOptimizer | ServerOptimizer:
    """What `recorded_optimizer` kept, read again."""
    if recorded.get("kind") != GIVEN:
        return value_of(OPTIMIZERS, recorded)
    return same("optimizer", recorded, optimizer, lambda given: recorded_optimizer(chosen(given)))


def same(
    what: str, recorded: Mapping[str, Any], given: T | None, described: Callable[[T], Mapping[str, Any]]
) -> T:
    """An object of a user's own, after a check that it is the one that a run was started with.

    Raises:
        ConfigError: none is given, or one with another name, fingerprint or seed.
    """
    if given is None:
        raise ConfigError(
            f"this run's {what} was given as an object ({recorded['name']}): pass the same one again, "
            f"fedmf.Run.from_directory(path, {what}=...)."
        )
    now = described(given)
    for name in ("name", "fingerprint", "seed"):
        if (old := recorded.get(name)) != (new := now.get(name)):
            raise ConfigError(
                f"{what} must be the one that the run was started with; its {name} was {old!r}, now {new!r}."
            )
    return given


def data_digest(key: NoiseKey, task: Task) -> str:
    """A keyed digest of who owns how many examples, hexadecimal: as secret as they are to who has the key."""
    dataset = task.dataset
    counts = example_counts(dataset, np.arange(dataset.users))
    ids = "\0".join(map(str, dataset.user_ids)).encode()
    return hmac.digest(key.subkey("data"), counts.astype("<i8").tobytes() + ids, "sha256").hex()
