"""Options that data sets share: how many users, who owns what, and what of that is public."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedmf.data.dataset import Dataset
from fedmf.data.partitions import (
    Partition,
    partition_by_label,
    partition_by_shards,
    partition_each,
    partition_evenly,
)
from fedmf.values import Field, Value

#: Partitions that need labels and a generator, no more.
Spread = Literal["iid", "dirichlet", "shards", "each-example"]


@dataclass(frozen=True)
class PublicInput:
    """Something that is fixed, or declared, before any user's rows are read, so that noise need not hide it.

    Args:
        name: what it is.
        value: its value, or how it is made.
        source: where it comes from; if that is the data themselves, this says so.
    """

    name: str
    value: str
    source: str


def in_words(shape: tuple[int, ...]) -> str:
    """A shape as text, such as 1×28×28."""
    return "×".join(map(str, shape))


@dataclass(frozen=True)
class DatasetOptions(Value, ABC):
    """A data set and its options; `load` makes or reads it.

    Raises:
        ValueError: a value is out of range.

    Guarantees: equal values load equal data, to the bit.
    """

    users: Annotated[
        int,
        Field("number of users; with partition by-user those on the list that are not held out", "N", ge=1),
    ] = 360
    partition: Annotated[
        Literal[Spread, "by-user"],
        Field("who owns which examples; by-user: the user column says it; each-example: every one is a user"),
    ] = "iid"
    test_fraction: Annotated[float, Field("share of the examples held out to test", gt=0, lt=1)] = 0.2
    seed: Annotated[
        int, Field("public seed of whatever is drawn; default of all other seeds", ge=0, le=2**63 - 1)
    ] = 0

    @abstractmethod
    def load(self) -> Dataset:
        """Make or read the data.

        Raises:
            ValueError: the data cannot be read, or do not suit the options.
        """

    @abstractmethod
    def example_inputs(self) -> tuple[PublicInput, ...]:
        """Classes or vocabulary, shape of an example, normalisation: as far as they are declared."""

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """Whatever of the data is taken as known to everybody; computed from the options alone."""
        return (
            *self.made_up_owners(f"partition {self.partition!r}", "drawn from the public seed"),
            *self.example_inputs(),
            PublicInput("partition", self.partition, "drawn from the public seed; no private rows"),
            PublicInput("test part", "nobody's", "drawn from the public seed; no private rows"),
        )

    def made_up_owners(self, sizes: str, source: str) -> tuple[PublicInput, ...]:
        """How many users are made up, what they are called and what they own, which is public.

        Args:
            sizes: how many examples each owns.
            source: where that comes from.
        """
        unit = self.unit
        owned = () if unit == "example" else (PublicInput("sizes of users", sizes, source),)
        return (
            PublicInput(f"{unit}s", str(self.users), "configuration"),
            PublicInput(f"{unit} ids", "numbered", f"made from the number of {unit}s"),
            *owned,
        )

    @property
    def unit(self) -> str:
        """What a user of this data set stands for: a "user", or a single "example"."""
        return "example" if self.partition == "each-example" else "user"

    def undeclared(self) -> tuple[str, ...]:
        """Keys that a private run must give: without them something public depends on private rows."""
        return ()


@dataclass(frozen=True)
class SpreadOptions(DatasetOptions):
    """A data set whose examples are spread over users."""

    dirichlet_alpha: Annotated[
        float, Field("α of the label shares of partition dirichlet; smaller is more unequal", "α", gt=0)
    ] = 0.5
    shards_per_user: Annotated[int, Field("shards of each user with partition shards", "s", ge=1)] = 2

    def split(self, labels: NDArray[np.int64], rng: np.random.Generator) -> Partition:
        """Spread the examples with these labels over the users; each user owns at least one.

        Raises:
            ValueError: more users than examples, or too many shards.
        """
        return PARTITIONS[self.partition](self, labels, rng)


#: By name; each gives every user at least one example.
PARTITIONS: Final[dict[str, Callable[[SpreadOptions, NDArray[np.int64], np.random.Generator], Partition]]] = {
    "iid": lambda o, labels, rng: partition_evenly(labels.size, o.users, rng),
    "dirichlet": lambda o, labels, rng: partition_by_label(labels, o.users, o.dirichlet_alpha, rng),
    "each-example": lambda o, labels, rng: partition_each(labels.size, o.users),
    "shards": lambda o, labels, rng: partition_by_shards(labels, o.users, o.shards_per_user, rng),
}
