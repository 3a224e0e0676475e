"""What every federated dataset answers, and the one whose examples are somewhere else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.structure import ExampleStructure, Features, TensorStructure, each, structure_of
from fedmf.data.user_ids import require_canonical


class NumberedUsers(Sequence[str]):
    """The ids ``user-000`` … of U users, in O(1) memory; they sort like their numbers.

    >>> ids = NumberedUsers(1_000_000)
    >>> ids[7], ids.index_of("user-999999"), list(ids[2:9:3])
    ('user-000007', 999999, ['user-000002', 'user-000005', 'user-000008'])
    """

    def __init__(self, users: int) -> None:
        if users < 1:
            raise ValueError(f"users must be at least 1; got {users}.")
        self._numbers, self._width = range(users), len(str(users - 1))

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> str | Self:
        if isinstance(index, slice):
            part = object.__new__(type(self))
            part._numbers, part._width = self._numbers[index], self._width
            return part
        return f"user-{self._numbers[index]:0{self._width}d}"

    def index_of(self, user_id: str) -> int:
        """The place of an id; KeyError for one that is not here."""
        digits = user_id.removeprefix("user-")
        known = digits.isascii() and digits.isdigit() and len(digits) == self._width
        if not known or len(user_id) != self._width + 5 or int(digits) not in self._numbers:
            raise KeyError(user_id)
        return self._numbers.index(int(digits))

    def __contains__(self, user_id: object) -> bool:
        try:
            return isinstance(user_id, str) and self.index_of(user_id) >= 0
        except KeyError:
            return False


#: Whose a test part is: examples that no user of the run ever owned, those of people who are no users of the
#: run, or examples taken from the users of the run, which no noise covers.
TestOwner = Literal["nobody", "held-out users", "training users"]


class FederatedDataset(ABC):
    """Training examples owned by users, and a central held-out test part.

    Users are called by their stable id (a string) in messages and in the ledger, and by their index,
    0..U − 1, in here.

    Attributes:
        user_ids: the unique, stable ids, by index. A sequence, not necessarily a list: it may format its
            ids on demand.
        test_features: shape (tests, …), on the dataset's device, or several such tensors by the names under
            which the model takes them; of no tests, nothing is evaluated.
        test_labels: shape (tests, …).
        classes: number of classes where labels are class numbers; 0 where they are anything else.
        vocabulary: how many token numbers there are where features are tokens, else 0.
        test_owner: whose the test part is: "nobody", "held-out users", who are no users of this data set, or
            "training users".

    Guarantees: what a user owns, and in which order, depends neither on the device nor on the users asked for
    together with it. A user may own nothing. Features that could not be read are NaN; a user whose examples
    cannot be given at all is one for whom `examples` raises.
    """

    user_ids: Sequence[str]
    test_features: Features
    test_labels: Tensor
    classes: int = 0
    vocabulary: int = 0
    test_owner: TestOwner = "nobody"

    #: Whether `examples` of several users always has as many rows of each as `sizes` says, so that no user's
    #: rows can be taken for another's. Users of other data sets are loaded one by one.
    counts_are_exact: ClassVar[bool] = False
    #: Whether users' examples are here, rather than with somebody else who trains them.
    has_examples: ClassVar[bool] = True

    @property
    def structure(self) -> ExampleStructure:
        """Shapes and types of the test part; below ``classes`` and ``vocabulary`` if there are any."""
        features = structure_of(self.test_features, self.vocabulary)
        return ExampleStructure(features, TensorStructure.of(self.test_labels, self.classes or None))

    @abstractmethod
    def index_of(self, user_id: str) -> int:
        """The index of a user; KeyError for an unknown id."""

    @abstractmethod
    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many examples each of these users owns, without loading them."""

    @abstractmethod
    def examples(self, users: NDArray[np.int64]) -> tuple[Features, Tensor]:
        """All examples of these users, one user after the other in the order asked.

        Args:
            users: indices, shape (m,).

        Returns:
            Features, shape (Σ sizes, …) or a mapping of such tensors, and labels, shape (Σ sizes, …), on the
            dataset's device.
        """

    def held(self, users: NDArray[np.int64]) -> tuple[Features, Tensor, NDArray[np.int64]] | None:
        """The same without a copy, where examples lie in memory; None elsewhere.

        Returns:
            All features, all labels, and the rows of these users' examples, one user after the other.
        """
        return None

    def unfit_rows(self, structure: ExampleStructure) -> NDArray[np.bool_] | None:
        """Which of the rows that `held` gives are outside of what is declared, or not finite.

        Args:
            structure: which the shapes and types of the examples are of.

        Returns:
            Shape (rows,); None if there is none. A data set that holds examples looks at them once.
        """
        raise NotImplementedError("a data set whose examples lie in memory must tell which are unfit.")

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


class RosterDataset(FederatedDataset):
    """The users of a run by name alone; their examples are on nodes, and no number of them is known here.

    Args:
        user_ids: unique, stable names, in the order of the roster.
        structure: what one example looks like, declared.
        test: features and labels of the central test part; None for none.
        test_owner: whose the test part is.

    Raises:
        ValueError: ids that are not unique, or not as `canonical_id` writes them.

    >>> from fedmf.data import TensorStructure
    >>> structure = ExampleStructure(TensorStructure((8,)), TensorStructure(dtype=torch.int64, bound=10))
    >>> len(RosterDataset(("ann", "bob"), structure).test_features)
    0
    """

    has_examples: ClassVar[bool] = False

    def __init__(
        self,
        user_ids: Sequence[str],
        structure: ExampleStructure,
        test: tuple[Features, Tensor] | None = None,
        test_owner: TestOwner = "nobody",
    ) -> None:
        self.user_ids, self._structure, self.test_owner = tuple(user_ids), structure, test_owner
        self._index = {name: u for u, name in enumerate(self.user_ids)}
        if len(self._index) < len(self.user_ids):
            raise ValueError(
                f"user ids must be unique; got {len(self._index)} different of {len(self.user_ids)}."
            )
        require_canonical(self.user_ids)
        self.test_features, self.test_labels = test or (
            structure.features.zeros(0),
            structure.labels.zeros(0),
        )
        self.classes = structure.labels.bound or 0

    @property
    def structure(self) -> ExampleStructure:
        """As declared."""
        return self._structure

    def index_of(self, user_id: str) -> int:
        """See `FederatedDataset.index_of`."""
        return self._index[user_id]

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Not known here."""
        raise ValueError("users' examples are on their nodes; how many there are is not known here.")

    def examples(self, users: NDArray[np.int64]) -> tuple[Features, Tensor]:
        """Not here."""
        raise ValueError("users' examples are on their nodes, not here.")

    def to(self, device: torch.device | str) -> Self:
        """See `FederatedDataset.to`."""
        test = each(lambda x: x.to(device), self.test_features), self.test_labels.to(device)
        return type(self)(self.user_ids, self._structure, test, self.test_owner)
