"""The interface of federated data sets, and examples in memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.cells import column_of, ids, numbers, places, require_canonical, require_once, types
from fedmf.data.partitions import Partition, partition_by_owner
from fedmf.data.structure import (
    ExampleStructure,
    Features,
    TensorStructure,
    each,
    named,
    structure_of,
)

#: Takes the list of users, or the classes, from the data themselves, which makes them public.
FROM_DATA: Final = "from-data"
#: Whose a test part is: examples that no user of the run ever owned, those of people who are no
#: users of the run, or examples taken from the users of the run, which no noise covers.
TestOwner = Literal["nobody", "held-out users", "training users"]


class NumberedUsers(Sequence[str]):
    """The ids ``user-000`` … of U users, in O(1) memory; they sort like their numbers.

    >>> user_ids = NumberedUsers(1_000_000)
    >>> user_ids[7], user_ids.index_of("user-999999"), user_ids[2:9:3]
    ('user-000007', 999999, ['user-000002', 'user-000005', 'user-000008'])
    """

    def __init__(self, users: int) -> None:
        self._users = users
        self._width = len(str(users - 1))

    def __len__(self) -> int:
        return self._users

    def __getitem__(self, index: Any) -> Any:
        found = range(self._users)[index]
        return (
            f"user-{found:0{self._width}d}" if isinstance(found, int) else [self[u] for u in found]
        )

    def index_of(self, user_id: str) -> int:
        """The place of an id; KeyError for one that is not here."""
        digits = user_id.removeprefix("user-")
        if not digits.isdecimal() or int(digits) >= self._users or self[int(digits)] != user_id:
            raise KeyError(user_id)
        return int(digits)


class Dataset(ABC):
    """Training examples owned by users, and a central held-out test part.

    `from_frame` and `from_arrays` create one from your own rows. Users have a stable id (a string)
    in messages and in the ledger, and by their index, 0..U − 1, in here.

    Attributes:
        user_ids: the unique, stable ids, by index. A sequence, not necessarily a list: it may
            format its ids on demand.
        test_features: shape (tests, …), on the dataset's device, or several such tensors by the
            names under which the model takes them; of no tests, nothing is evaluated.
        test_labels: shape (tests, …).
        classes: number of classes where labels are class numbers; 0 where they are anything else.
        vocabulary: number of tokens where features are tokens, or bounds of integers by name, else
            0.
        test_owner: the owner of the test part: "nobody", "held-out users", who are no users of this
            data set, or "training users".

    Guarantees: the examples of a user and their order depend neither on the device nor on the users
    asked for together with it. A user may own nothing. Features that could not be read are NaN;
    `examples` raises if a user's examples cannot be given.
    """

    user_ids: Sequence[str]
    test_features: Features
    test_labels: Tensor
    classes: int = 0
    vocabulary: int | Mapping[str, int] = 0
    test_owner: TestOwner = "nobody"

    #: Whether `examples` of several users always has as many rows of each as `sizes` says, so that
    #: no user's rows can be taken for another's. Users of other data sets are loaded one by one.
    counts_are_exact: ClassVar[bool] = False
    #: Whether users' examples are here, rather than on nodes that train them; there they have no
    #: size here.
    has_examples: bool = True

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any,
        users: Any,
        *,
        user_list: Sequence[Any] | str | None = None,
        classes: int | Sequence[Any] | None = None,
        test: tuple[Any, Any] | None = None,
        test_owner: TestOwner = "nobody",
        vocabulary: int | Mapping[str, int] = 0,
    ) -> InMemoryDataset:
        """A data set of arrays or tensors with a user for each example.

        Args:
            x: features, shape (examples, …), or several such arrays by the names of the model's
                arguments; float64 becomes float32.
            y: labels, shape (examples, …): numbers, class numbers, or names of classes.
            users: the user of each example, shape (examples,): strings or integers of any dtype.
            user_list: the ids of all users, which is public; "from-data" takes them from ``users``.
            classes: how many there are, or their names in order; None where labels are numbers of a
                floating type, or tokens.
            test: features and labels of the test part, which must not be of private rows.
            test_owner: the owner of the test part.
            vocabulary: integers among the features are below it, such as tokens, which labels may
                be too, or categories; or a bound by name. Default: the largest of the test part,
                plus one.

        Raises:
            ValueError: lengths that differ, no user list, labels of which it is not told what they
                are, or no example that can be used.

        Guarantees: an example with a user who is not on the user list, a label that is none of the
        classes, an integer that is not below its bound, or numbers that are not finite, is left out
        and changes
            nothing else.

        >>> x, y, users = [[0.5], [1.5], [2.5]], [0, 1, 1], ["a", "b", 7]
        >>> Dataset.from_arrays(x, y, users, user_list=["a", "b"], classes=2)
        InMemoryDataset(users=2, examples=2, features=(1,) float32, labels=() int64 below 2,
        tests=0)
        """
        features = each(_tensor, x)
        lengths = [len(part) for part in (*named(features).values(), y, users)]
        if len(set(lengths)) > 1:
            raise ValueError(f"x, y and users must have the same length; got {lengths}.")
        names = [] if classes is None or isinstance(classes, int) else _ids(list(classes))
        if isinstance(classes, str) or (names and len({*names} - {None}) < max(2, len(names))):
            raise ValueError(f"classes must be at least two different names; got {classes!r:.300}.")
        count = classes if isinstance(classes, int) else len(names)
        test_x, test_y = test or (each(lambda part: part[:0], features), y[:0])
        test_x = each(_tensor, test_x)
        if not (vocabulary or len(test_y)):
            whole = [
                not (part.is_floating_point() or part.dtype is torch.bool)
                for part in named(features).values()
            ]
            if any(whole):
                raise ValueError(
                    "vocabulary (integers of x are below it) must be given if there is no test"
                    " part."
                )
        labels, test_labels = (
            _labels(given, names, count, bool(vocabulary)) for given in (y, test_y)
        )
        ids_of_rows = _ids(users)
        user_ids = _listed(user_list, ids_of_rows)
        owned = partition_by_owner(places(ids_of_rows, user_ids), np.arange(len(user_ids)))
        kept = torch.from_numpy(readable(test_x, test_labels, count))
        test_x = each(lambda part: part[kept], test_x)
        test_labels = test_labels[kept]
        within = _within(features, named(structure_of(test_x, vocabulary)))
        owned = owned.keeping(readable(features, labels, count) & within)
        if not owned.order.size:
            raise ValueError(
                "x, y and users must hold an example with a user on the user list, numbers that are"
                " finite, and a label that is one of the classes; got none. Labels that are text"
                ' need their names: classes=["no", "yes"].'
            )
        return InMemoryDataset(
            features=features,
            labels=labels,
            owned=owned,
            user_ids=user_ids,
            test_features=test_x,
            test_labels=test_labels,
            classes=count,
            test_owner=test_owner,
            vocabulary=vocabulary,
        )

    @staticmethod
    def from_frame(
        frame: Any,
        *,
        user: str,
        label: str | Sequence[str],
        features: Sequence[str] | None = None,
        test: Any = None,
        **options: Any,
    ) -> InMemoryDataset:
        """A data set of a data frame, of pandas or with ``to_pandas``, with a user column.

        Args:
            frame: one example a row.
            user: column of the users' ids.
            label: column of the labels; several columns of numbers for several numbers an example.
            features: columns of numbers; None for all others.
            test: a frame with the same columns, without rows of users on the user list; its user
                column may be omitted.
            options: ``user_list``, ``classes`` and ``test_owner`` of `from_arrays`.

        Raises:
            ValueError: a column that is missing or there twice, and what `from_arrays` rejects.

        Guarantees: as of `from_arrays`; a cell that is no number affects its row alone.

        >>> import pandas as pd
        >>> rows = pd.DataFrame({"who": ["a", "b", "b"], "age": [31, 45, None], "ill": ["no", "yes", "no"]})
        >>> declared = {"user_list": ["a", "b"], "classes": ["no", "yes"]}
        >>> data = Dataset.from_frame(rows, user="who", label="ill", **declared)
        >>> data.sizes(np.arange(2)).tolist()
        [1, 1]
        """
        labels = [label] if isinstance(label, str) else list(label)
        frame, test = (
            part.to_pandas() if hasattr(part, "to_pandas") else part for part in (frame, test)
        )
        for name, part in (("frame", frame), ("test", test)):
            if not hasattr(part, "columns") and (name == "frame" or part is not None):
                raise TypeError(f"{name} must be a data frame; got {type(part).__name__}.")
        every = [name for name in map(str, frame.columns) if name not in (user, *labels)]
        names = every if features is None else list(features)

        def examples(table: Any, called: str) -> tuple[NDArray[np.float32], Any]:
            columns = _columns(table, [*names, *labels], called)
            y = _matrix(columns, labels) if len(labels) > 1 else columns[labels[0]]
            return _matrix(columns, names), y

        users = _columns(frame, [user], "frame")[user]
        tests = None if test is None else examples(test, "test")
        x, y = examples(frame, "frame")
        if len(x) and (wordy := [names[i] for i in np.flatnonzero(np.isnan(x).all(axis=0))]):
            raise ValueError(
                f"features must be columns of numbers; got no number in {', '.join(wordy)[:300]}."
                " Name those to use (features=[…]), or read text with a schema"
                " (docs/data-and-models.md)."
            )
        data = Dataset.from_arrays(x, y, users, test=tests, **options)
        tested = _ids(test[user]) if test is not None and user in test.columns else []
        if data.test_owner != "training users" and not {*data.user_ids}.isdisjoint(tested):
            raise ValueError(
                "test (rows) must not belong to users on the user list; got rows of some users. If"
                " this is intended, pass test_owner='training users': their evaluation is then not"
                " private."
            )
        return data

    @property
    def structure(self) -> ExampleStructure:
        """Shapes and types of the test part; below ``classes`` and ``vocabulary`` if there are
        any.
        """
        features = structure_of(self.test_features, self.vocabulary)
        return ExampleStructure(
            features, TensorStructure.of(self.test_labels, self.classes or None)
        )

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
            Features, shape (Σ sizes, …) or a mapping of such tensors, and labels, shape (Σ sizes,
            …), on the dataset's device.
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


@dataclass(frozen=True, eq=False, repr=False)
class InMemoryDataset(Dataset):
    """Examples in tensors, and for each user the rows it owns.

    Args:
        features: shape (examples, …), of any real type; or several such tensors by the names under
            which the model takes them.
        labels: shape (examples, …), of any real type.
        owned: for each user the indices of its examples; examples may belong to no user.
        user_ids: unique, stable names; user u is called ``user_ids[u]``.
        test_features: shape (tests, …), likewise.
        test_labels: shape (tests, …).
        classes: number of classes where labels are class numbers; 0 where they are anything else.
        test_owner: the owner of the test part.
        vocabulary: number of tokens where features are tokens, or bounds of integers by name, else
            0.
        has_examples: whether users' examples are here; else their nodes have them, and all own
            nothing here.

    Raises:
        ValueError: ids that are no text, not unique, or not as `canonical_id` writes them, rows
            that are no indices, or users' examples that differ in shape or type from the test part.
    """

    counts_are_exact: ClassVar[bool] = True

    features: Features
    labels: Tensor
    owned: Sequence[NDArray[np.int64]]
    user_ids: Sequence[str]
    test_features: Features
    test_labels: Tensor
    classes: int = 0
    test_owner: TestOwner = "nobody"
    vocabulary: int | Mapping[str, int] = 0
    has_examples: bool = True

    def __post_init__(self) -> None:
        if len(self.owned) != len(self.user_ids):
            raise ValueError(
                f"owned (rows of users) must be one array for each of {len(self.user_ids)} user"
                f" ids; got {len(self.owned)}. Dataset.from_arrays takes the user of each example."
            )
        assert len(self._index) == len(
            self._partition
        )  # or ids, or what is no index of a row, were refused
        for name in ("features", "labels"):
            mine = getattr(self, name)
            tests = getattr(self, f"test_{name}")
            for part in (mine, tests):
                if not all(isinstance(values, Tensor) for values in named(part).values()):
                    raise ValueError(
                        f"{name} must be torch tensors; got other objects. Use torch.as_tensor."
                    )
                if len({len(values) for values in named(part).values()}) > 1:
                    raise ValueError(
                        f"{name} must have as many rows under every name; they do not."
                    )
            if _layout(mine) != _layout(tests):
                raise ValueError(
                    f"{name} must be like test_{name}, {_layout(tests)}; got {_layout(mine)}."
                )

    def __repr__(self) -> str:
        structure = self.structure
        return (
            f"{type(self).__name__}(users={self.users}, examples={self._partition.order.size}, "
            f"features={structure.features}, labels={structure.labels}, "
            f"tests={len(self.test_labels)})"
        )

    @cached_property
    def _partition(self) -> Partition:
        return self.owned if isinstance(self.owned, Partition) else Partition.of(self.owned)

    @cached_property
    def _index(self) -> dict[str, int]:
        if (
            wrong := next((user for user in self.user_ids if not isinstance(user, str)), None)
        ) is not None:
            raise ValueError(f"user ids must be strings; got {wrong!r}. Convert each with str.")
        index = {name: u for u, name in enumerate(self.user_ids)}
        if len(index) < len(self.user_ids):
            raise ValueError(
                f"user ids must be unique; got {len(index)} different of {len(self.user_ids)}."
            )
        if not isinstance(self.user_ids, NumberedUsers):
            require_canonical(self.user_ids)
        return index

    def index_of(self, user_id: str) -> int:
        """See `Dataset.index_of`."""
        return self._index[user_id]

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Dataset.sizes`."""
        return self._partition.sizes[users]

    def rows(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the examples of these users are, one user after the other."""
        return self._partition.rows(users)

    def examples(self, users: NDArray[np.int64]) -> tuple[Features, Tensor]:
        """See `Dataset.examples`."""
        rows = torch.from_numpy(self.rows(users)).to(self.labels.device)
        features = each(lambda values: values.index_select(0, rows), self.features)
        return features, self.labels.index_select(0, rows)

    def to(self, device: torch.device | str) -> Self:
        """See `Dataset.to`."""
        names = ("features", "labels", "test_features", "test_labels")
        return replace(
            self, **{name: each(lambda x: x.to(device), getattr(self, name)) for name in names}
        )


def _layout(features: Features) -> str:
    """Names, shapes and types, as text."""
    parts = [
        f"{name} {tuple(x.shape[1:])} {x.dtype}".lstrip()
        for name, x in sorted(named(features).items())
    ]
    return ", ".join(parts)


def _tensor(values: Any) -> Tensor:
    """A copy, which no later change of the values moves."""
    tensor = (
        values.detach().clone()
        if isinstance(values, Tensor)
        else torch.from_numpy(np.array(values))
    )
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _columns(frame: Any, names: Sequence[str], called: str) -> dict[str, Any]:
    """Columns of a frame as Arrow arrays; messages call it ``called``."""
    present = list(map(str, frame.columns))
    if wrong := [name for name in names if present.count(name) != 1 or names.count(name) != 1]:
        raise ValueError(
            f"column {wrong[0]!r} must be in {called} once and asked for once; {called} has the"
            f" columns {', '.join(present)[:300]}."
        )
    return {name: column_of(frame.iloc[:, present.index(name)]) for name in names}


def _matrix(columns: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.float32]:
    """Columns as numbers, shape (rows, columns); NaN for a cell that is none."""
    with np.errstate(over="ignore"):
        of = [numbers(columns[name], f"column {name!r}") for name in names]
        return np.stack(of, axis=1).astype(np.float32)


def _ids(values: Any) -> list[str | None]:
    """The canonical id of each (`canonical_id`), however they are typed; None for values that name
    no user.

    >>> _ids(["ann", 7, 7.0, None, float("nan"), 10**30])
    ['ann', '7', '7', None, None, '1000000000000000000000000000000']
    """
    return ids(
        column_of(values.numpy() if isinstance(values, Tensor) else values), "users"
    ).to_pylist()


def _listed(
    user_list: Sequence[Any] | str | None, ids_of_rows: Sequence[str | None]
) -> tuple[str, ...]:
    """The ids of all users.

    Raises:
        ValueError: no list, or one with a repeated or missing id.
    """
    if user_list is None or (isinstance(user_list, str) and user_list != FROM_DATA):
        raise ValueError(
            "user_list (ids of all users) must be given, because it is public: all ids, known"
            f" before any row is read, or user_list={FROM_DATA!r}, which publishes the ids that"
            f" occur in the rows; got {user_list!r:.100}."
        )
    if isinstance(user_list, str):
        return require_once(sorted({name for name in ids_of_rows if name}))
    return require_once(_ids(user_list))


def _labels(y: Any, names: Sequence[str | None], classes: int, vocabulary: bool) -> Tensor:
    """Labels as a tensor: numbers, tokens, or class numbers, where −1 stands for any other
    value.
    """
    if names:
        return torch.from_numpy(places(_ids(y), [name or "" for name in names]))
    if isinstance(y, Tensor) or np.ndim(y) > 1:
        labels = _tensor(y)
        whole = not labels.dtype.is_floating_point
    else:
        column = column_of(y)
        labels = torch.tensor(numbers(column, "y"))
        whole = types.is_integer(column.type) or types.is_boolean(column.type)
        whole |= len(labels) > 0 and not bool(torch.isfinite(labels).any())
    if classes:
        return torch.where(labels == labels.double().round(), labels, -1).to(torch.int64)
    if whole and not vocabulary:
        raise ValueError(
            "classes must be given unless labels are floating-point numbers: their number, or their"
            " names in order, which are public; got none."
        )
    return labels.long() if whole else labels.float()


def _within(features: Features, structures: Mapping[str, TensorStructure]) -> NDArray[np.bool_]:
    """Which examples have integers below the bounds only."""
    parts = [(values, structures[name].bound) for name, values in named(features).items()]
    good = torch.ones(len(parts[0][0]), dtype=torch.bool)
    for values, bound in parts:
        if bound is not None and values.dtype != torch.bool:
            most = (
                bound - 1
                if values.is_floating_point()
                else min(bound - 1, torch.iinfo(values.dtype).max)
            )
            fits = (values >= 0) & (values <= most)
            good &= fits.reshape(len(values), math.prod(values.shape[1:])).all(dim=1)
    return good.numpy()


def readable(features: Features, labels: Tensor, classes: int) -> NDArray[np.bool_]:
    """Which examples have finite numbers and a label that there is."""
    known = (labels >= 0) & (labels < classes) if classes else torch.isfinite(labels)
    good = torch.ones(len(labels), dtype=torch.bool)
    for entries in (known, *(torch.isfinite(values) for values in named(features).values())):
        good &= entries.reshape(len(labels), math.prod(entries.shape[1:])).all(dim=1)
    return good.numpy()
