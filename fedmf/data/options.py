"""Options that data sets share: how many users, who owns what, what is held out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedmf.data.dataset import FederatedDataset
from fedmf.data.partitions import (
    Partition,
    check_alpha,
    check_exponent,
    partition_by_dirichlet_sizes,
    partition_by_label,
    partition_by_power_law,
    partition_by_shards,
    partition_each,
    partition_evenly,
)
from fedmf.values import Value, check_choices, check_whole

#: Partitions that need labels and a generator, no more.
Spread = Literal["iid", "dirichlet", "dirichlet-sizes", "power-law", "shards", "each-example"]


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

    Args:
        users: U ≥ 1, number of users; with partition "natural" as many as the roster, or the user column,
            names, less those held out.
        partition: who owns what: "iid" (equal sizes), "dirichlet" (label skew), "dirichlet-sizes",
            "power-law" (few users own much), "shards" (few labels a user), "each-example" (every example is a
            user of its own, and the statement protects single examples; ``users`` is the number of training
            examples), or "natural" (each example stays with the user that the user column names).
        size_exponent: a > 1, tail index of the sizes of "power-law"; the smaller, the more unequal.
        test_fraction: held-out share of the examples, in (0, 1).
        seed: public seed of all that is drawn, 0 ≤ seed < 2⁶³.

    Raises:
        ValueError: a value is out of range.

    Guarantees: equal values load equal data, to the bit.
    """

    users: int = 360
    partition: Literal[Spread, "natural"] = "iid"
    size_exponent: float = 2.0
    test_fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        check_whole("U (users)", self.users)
        check_whole("seed (of the data)", self.seed, 0, 2**63 - 1)
        check_exponent(self.size_exponent)
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"test_fraction must lie in (0, 1); got {self.test_fraction}.")

    @abstractmethod
    def load(self) -> FederatedDataset:
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
    """A data set whose examples are spread over users.

    Args:
        dirichlet_alpha: α > 0 of "dirichlet" and "dirichlet-sizes"; the smaller, the more unequal.
        shards_per_user: s ≥ 1 of "shards".
    """

    dirichlet_alpha: float = 0.5
    shards_per_user: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha(self.dirichlet_alpha)
        check_whole("s (shards_per_user)", self.shards_per_user)

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
    "dirichlet-sizes": lambda o, labels, rng: partition_by_dirichlet_sizes(
        labels.size, o.users, o.dirichlet_alpha, rng
    ),
    "power-law": lambda o, labels, rng: partition_by_power_law(labels.size, o.users, o.size_exponent, rng),
    "each-example": lambda o, labels, rng: partition_each(labels.size, o.users),
    "shards": lambda o, labels, rng: partition_by_shards(labels, o.users, o.shards_per_user, rng),
}
