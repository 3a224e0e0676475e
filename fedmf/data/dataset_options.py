"""Options that named data sets share: users, ownership of examples, and the public inputs.

A `[data]` table of a configuration is one of these values; `load` makes the `Dataset` of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedmf.data.dataset import Dataset
from fedmf.data.partitions import Partition, partition_by_label, partition_each, partition_evenly
from fedmf.values import Field, Value

#: Partitions that need only labels and a generator.
Spread = Literal["iid", "dirichlet", "each-example"]
_DRAWN: Final = "drawn from the public seed; no private rows"


@dataclass(frozen=True)
class PublicInput:
    """A fact that is fixed or declared before any row is read, so that noise need not hide it.

    Args:
        name: name of the fact.
        value: its value, or the rule that gives it.
        source: its origin; named if that is the data themselves.
    """

    name: str
    value: str
    source: str


def in_words(shape: tuple[int, ...]) -> str:
    """Return a shape as text, such as 1×28×28."""
    return "×".join(map(str, shape))


@dataclass(frozen=True)
class DatasetOptions(Value, ABC):
    """A data set and its options; `load` generates or reads it.

    Raises:
        ValueError: a value is out of range, or a public fact is not declared.

    Guarantees: equal values load equal data, to the bit.
    """

    users: Annotated[
        int,
        Field("number of users; with partition by-user, of listed users not held out", "N", ge=1),
    ] = 360
    partition: Annotated[
        Literal[Spread, "by-user"],
        Field(
            "who owns which examples; by-user: from the user column; each-example: each is a user"
        ),
    ] = "iid"
    test_fraction: Annotated[
        float, Field("share of the examples held out for testing", gt=0, lt=1)
    ] = 0.2
    seed: Annotated[
        int,
        Field(
            "public seed of ownership, initial parameters, cohorts and order of examples",
            ge=0,
            le=2**63 - 1,
        ),
    ] = 0

    @abstractmethod
    def load(self) -> Dataset:
        """Generate or read the data.

        Raises:
            ValueError: the data cannot be read, or do not suit the options.
        """

    @abstractmethod
    def example_inputs(self) -> tuple[PublicInput, ...]:
        """Return classes or vocabulary, the shape of an example, and the normalization."""

    @property
    def dealt(self) -> str:
        """The facts that decide which user owns which examples."""
        return _DRAWN

    @property
    def test_part(self) -> tuple[str, str]:
        """The owner of the test part, and the facts that decide it."""
        return "nobody's", _DRAWN

    def user_inputs(self) -> tuple[PublicInput, ...]:
        """Return the number of users, their ids and their sizes."""
        unit = self.unit
        count = PublicInput(f"{unit}s", str(self.users), "configuration")
        ids = PublicInput(f"{unit} ids", "numbered", f"made from the number of {unit}s")
        if unit == "example":
            return count, ids
        sizes = PublicInput("sizes of users", f"partition {self.partition!r}", self.dealt)
        return count, ids, sizes

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """Return all facts of the data that count as public; computed from the options alone."""
        return (
            *self.user_inputs(),
            *self.example_inputs(),
            PublicInput("partition", self.partition, self.dealt),
            PublicInput("test part", *self.test_part),
        )

    @property
    def schema_file(self) -> Path | None:
        """The file that declares the columns; None for data without one."""
        return None

    @property
    def unit(self) -> str:
        """The unit that privacy protects: a "user", or a single "example"."""
        if self.partition == "each-example":
            return "example"
        return "user"


@dataclass(frozen=True)
class SpreadOptions(DatasetOptions):
    """A data set with examples that are spread over users."""

    dirichlet_alpha: Annotated[
        float,
        Field("α of the label shares of partition dirichlet; smaller is more unequal", "α", gt=0),
    ] = 0.5

    def split(self, labels: NDArray[np.int64], rng: np.random.Generator) -> Partition:
        """Spread the examples with these labels over the users; each user owns at least one.

        Raises:
            ValueError: more users than examples.
        """
        if self.partition == "dirichlet":
            return partition_by_label(labels, self.users, self.dirichlet_alpha, rng)
        if self.partition == "each-example":
            return partition_each(labels.size, self.users)
        return partition_evenly(labels.size, self.users, rng)
