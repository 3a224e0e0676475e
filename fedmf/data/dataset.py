"""What every federated dataset answers, and what one example of it looks like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["ExampleStructure", "FederatedDataset", "TensorStructure", "TestOwner"]

#: Whose a test part is: examples that no user of the run ever owned, those of people who are no users of the
#: run, or examples taken from the users of the run, which no noise covers.
TestOwner = Literal["nobody", "held-out users", "training users"]


@dataclass(frozen=True)
class TensorStructure:
    """What the features, or the labels, of one example look like.

    Args:
        shape: sizes, without the dimension that counts examples; each at least 1.
        dtype: any real one.
        bound: entries are whole numbers 0, …, bound − 1; None for real numbers of a floating dtype.

    Raises:
        ValueError: an empty shape, a complex dtype, or no positive bound for whole numbers.

    >>> str(TensorStructure((12,), torch.int64, bound=50))
    '(12,) int64 below 50'
    """

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    bound: int | None = None

    def __post_init__(self) -> None:
        if min(self.shape, default=1) < 1:
            raise ValueError(f"shape must consist of sizes of at least 1; got {self.shape}.")
        if self.dtype.is_complex:
            raise ValueError(f"dtype must be real; got {self.dtype}.")
        whole = not self.dtype.is_floating_point or self.bound is not None
        if whole and (self.bound is None or self.bound < 1):
            raise ValueError(
                f"bound (exclusive, of whole numbers) must be at least 1; got {self.bound}. "
                f"Say which numbers of type {self.dtype} are valid."
            )

    def __str__(self) -> str:
        limit = "" if self.bound is None else f" below {self.bound}"
        return f"{self.shape} {str(self.dtype).removeprefix('torch.')}{limit}"

    @classmethod
    def of(cls, values: Tensor, bound: int | None = None) -> Self:
        """The structure of one of ``values``, shape (examples, …); their largest bounds whole numbers."""
        if bound is None and not values.dtype.is_floating_point:
            bound = max(1, int(values.max()) + 1) if values.numel() else 1
        return cls(tuple(values.shape[1:]), values.dtype, bound)

    def fits(self, values: Tensor) -> bool:
        """Whether ``values``, shape (examples, …), are of this structure; negative ones stand for padding."""
        if tuple(values.shape[1:]) != self.shape or values.dtype != self.dtype:
            return False
        return self.bound is None or not values.numel() or int(values.max()) < self.bound

    def sample(self, generator: torch.Generator, shape: Sequence[int]) -> Tensor:
        """Made-up values, shape (*shape, *self.shape): standard normal, or uniform below the bound."""
        size = (*shape, *self.shape)
        if self.bound is None:
            return torch.randn(size, generator=generator).to(self.dtype)
        return torch.randint(self.bound, size, generator=generator).to(self.dtype)


@dataclass(frozen=True)
class ExampleStructure:
    """What one example looks like. It is declared, and public: no user's row is looked at.

    Args:
        features: what the model takes.
        labels: what the loss compares its outputs with.
    """

    features: TensorStructure
    labels: TensorStructure

    def sample(self, generator: torch.Generator, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Features and labels of made-up examples, which are valid by the declaration.

        Args:
            generator: of the processor; the same state gives the same examples.
            shape: how many, such as (users, width).
        """
        return self.features.sample(generator, shape), self.labels.sample(generator, shape)


class FederatedDataset(ABC):
    """Training examples owned by users, and a central held-out test part.

    Users are called by their stable id (a string) in messages and in the ledger, and by their index,
    0..U − 1, in here.

    Attributes:
        user_ids: the unique, stable ids, by index. A sequence, not necessarily a list: it may format its
            ids on demand.
        test_features: shape (tests, …), on the dataset's device; of no tests, nothing is evaluated.
        test_labels: shape (tests, …).
        classes: number of classes where labels are class numbers; 0 where they are anything else.
        test_owner: whose the test part is: "nobody", "held-out users", who are no users of this data set, or
            "training users".

    Guarantees: what a user owns, and in which order, depends neither on the device nor on the users asked for
    together with it. A user may own nothing. Features that could not be read are NaN; a user whose examples
    cannot be given at all is one for whom `examples` raises.
    """

    user_ids: Sequence[str]
    test_features: Tensor
    test_labels: Tensor
    classes: int = 0
    test_owner: TestOwner = "nobody"

    #: Whether `examples` of several users always has as many rows of each as `sizes` says, so that no user's
    #: rows can be taken for another's. Users of other data sets are loaded one by one.
    counts_are_exact: ClassVar[bool] = False
    #: Whether users' examples are here, rather than with somebody else who trains them.
    has_examples: ClassVar[bool] = True

    @property
    def structure(self) -> ExampleStructure:
        """Shapes and types of the test part, which are public; labels are below ``classes`` if any."""
        labels = TensorStructure.of(self.test_labels, self.classes or None)
        return ExampleStructure(TensorStructure.of(self.test_features), labels)

    @abstractmethod
    def index_of(self, user_id: str) -> int:
        """The index of a user; KeyError for an unknown id."""

    @abstractmethod
    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many examples each of these users owns, without loading them."""

    @abstractmethod
    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """All examples of these users, one user after the other in the order asked.

        Args:
            users: indices, shape (m,).

        Returns:
            Features, shape (Σ sizes, …), and labels, shape (Σ sizes, …), on the dataset's device.
        """

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """The same examples on ``device``."""

    @property
    def users(self) -> int:
        """U, the number of users."""
        return len(self.user_ids)

    def indices(self, user_ids: Sequence[str]) -> NDArray[np.int64]:
        """The indices of several users; KeyError for an unknown id."""
        return np.fromiter(map(self.index_of, user_ids), dtype=np.int64, count=len(user_ids))
