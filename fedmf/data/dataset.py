"""The interface of federated data sets, and examples in memory.

Named data sets (`fedmf.data.DATASETS`) load into one of these, and so do a caller's own arrays and
frames; training reads nothing else of the data.
"""

from __future__ import annotations

import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.cells import (
    column_of,
    ids,
    numbers,
    places,
    require_canonical,
    require_exact,
    require_once,
    types,
)
from fedmf.data.partitions import Partition, partition_by_owner
from fedmf.data.row_counts import RowCounts, check_public_tests, counted
from fedmf.data.structure import (
    ExampleStructure,
    Features,
    TensorStructure,
    each,
    named,
    split_rows,
    structure_of,
)
from fedmf.data.table_reader import shown_names
from fedmf.errors import one_line

_log = logging.getLogger("fedmf")

#: The user list that is taken from the rows themselves, which makes it public.
FROM_DATA: Final = "from-data"
_NOT_FINITE: Final = "x: not a finite number"
#: Numbers that are checked at a time.
_BLOCK: Final = 2**18
#: Names that pandas gives to an index that was saved as a column.
_SAVED_INDEX: Final = re.compile(r"Unnamed: [0-9]+|__index_level_[0-9]+__|")
#: The owner of a test part: nobody, if no user of the run ever owned its examples; people who are
#: not users of the run; or the users of the run, whose test examples no noise covers.
TestOwner = Literal["nobody", "held-out users", "training users"]
#: The test part in the words of a statement, by its owner.
TEST_PARTS: Final[dict[TestOwner, str]] = {
    "training users": (
        "rows of the training users themselves; without noise their evaluation is not private"
    ),
    "held-out users": "all rows of people who are not users of the run",
    "nobody": "rows that belong to no user of the run",
}


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
        place = range(self._users)[index]
        if isinstance(place, range):
            return [self[u] for u in place]
        return f"user-{place:0{self._width}d}"

    def index_of(self, user_id: str) -> int:
        """Return the place of an id.

        Raises:
            KeyError: an unknown id.
        """
        digits = user_id.removeprefix("user-")
        if not digits.isdecimal() or int(digits) >= self._users or self[int(digits)] != user_id:
            raise KeyError(user_id)
        return int(digits)


class Dataset(ABC):
    """Training examples owned by users, and a central held-out test part.

    `from_frame` and `from_arrays` create one from your own rows. Messages and the ledger name a
    user by a stable id (a string); methods of a data set take the index, 0..U − 1.

    Attributes:
        user_ids: the unique, stable ids, by index. A sequence, not necessarily a list: it may
            format its ids on demand.
        test_features: shape (tests, …), on the dataset's device, or several such tensors by the
            names under which the model takes them; without tests, nothing is evaluated.
        test_labels: shape (tests, …).
        classes: number of classes where labels are class numbers; 0 where they are anything else.
        vocabulary: number of tokens where features are tokens, or bounds of integers by name, else
            0.
        test_owner: the owner of the test part: "nobody", "held-out users", who are not users of
            this data set, or "training users".
        row_counts: how many rows were read and left out, for the operator; None if nobody counted.

    Guarantees: the examples of a user and their order depend neither on the device nor on the users
    that are loaded together with it. A user may own nothing. Features that could not be read are
    NaN; `examples` raises if a user's examples cannot be loaded.
    """

    user_ids: Sequence[str]
    test_features: Features
    test_labels: Tensor
    classes: int = 0
    vocabulary: int | Mapping[str, int] = 0
    test_owner: TestOwner = "nobody"
    row_counts: RowCounts | None = None

    #: Whether `examples` of several users always has as many rows of each as `sizes` says, so that
    #: no user's rows can be taken for another's. Users of other data sets are loaded one by one.
    counts_are_exact: ClassVar[bool] = False
    #: Whether users' examples are in this process, rather than on nodes that train them; in the
    #: second case their sizes are unknown here.
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
        """Create a data set from arrays or tensors with a user for each example.

        Args:
            x: features, shape (examples, …), or several such arrays by the names of the model's
                arguments; float64 becomes float32.
            y: labels, shape (examples, …): numbers, class numbers, or names of classes.
            users: the user of each example, shape (examples,): strings or integers of any dtype.
            user_list: the ids of all users, which is public; "from-data" takes them from ``users``.
            classes: their number, or their names in order; None where labels are numbers of a
                floating type, or tokens.
            test: features and labels of the test part, which must not be of private rows.
            test_owner: the owner of the test part: "nobody", "held-out users" or "training users".
            vocabulary: integers among the features are below it, such as tokens, which labels may
                be too, or categories; or a bound by name. Default: the largest of the test part,
                plus one.

        Raises:
            ValueError: lengths that differ, no user list, labels that may be classes or numbers, no
                example that can be used, an unknown owner, or a public test part of which most
                cannot be used.

        Guarantees: an example with a user who is not on the user list, a label that is none of the
        classes, an integer that is not below its bound, or numbers that are not finite, is left out
        and changes nothing else.

        >>> x, y, users = [[0.5], [1.5], [2.5]], [0, 1, 1], ["a", "b", 7]
        >>> Dataset.from_arrays(x, y, users, user_list=["a", "b"], classes=2)
        InMemoryDataset(users=2, examples=2, features=(1,) float32, labels=() int64 below 2,
        tests=0)
        """
        if users is None:
            raise ValueError("users must be the user of each example; got None.")
        _require_owner(test_owner)
        features = each(_tensor, x)
        _require_one_tensor(y)
        lengths = [len(part) for part in (*named(features).values(), y, users)]
        if len(set(lengths)) > 1:
            raise ValueError(f"x, y and users must have the same length; got {lengths}.")
        names: list[str] = []
        count = 0
        if isinstance(classes, int):
            count = classes
            if count == 1:
                raise ValueError("classes must be at least 2; got 1.")
        elif classes is not None:
            names = _class_names(classes)
            count = len(names)
        if test is None:
            test_x = each(lambda part: part[:0].clone(), features)
            test_y = y[:0]
        else:
            test_x = each(_tensor, test[0])
            test_y = test[1]
        if not vocabulary and not len(test_y) and _holds_integers(features):
            raise ValueError(
                "vocabulary (integers of x are below it) must be given if there is no test part."
            )
        labels = _labels(y, names, count, bool(vocabulary))
        test_labels = _labels(test_y, names, count, bool(vocabulary))
        ids_of_rows = _ids(users, "users")
        user_ids = _listed(user_list, ids_of_rows)
        if not isinstance(users, Tensor):
            require_exact(column_of(users), user_ids, "users")
        owned = partition_by_owner(places(ids_of_rows, user_ids), np.arange(len(user_ids)))
        test_faults = _faults(test_x, test_labels, count)
        usable = torch.from_numpy(_without(test_faults))
        if test_owner != "training users":
            everything = np.ones(len(usable), dtype=bool)
            check_public_tests(
                len(usable), int(usable.sum()), counted(test_faults, everything), "test"
            )
        if not usable.all():
            test_x = each(lambda part: part[usable], test_x)
            test_labels = test_labels[usable]
        faults = _faults(features, labels, count)
        within = _within(features, named(structure_of(test_x, vocabulary)))
        faults["x: an integer that is not below its bound"] = ~within
        owned = owned.keeping(_without(faults))
        faults |= _faults_of_users(ids_of_rows, user_ids)
        everybody = np.ones(len(labels), dtype=bool)
        row_counts = RowCounts(
            rows=len(labels),
            examples=owned.order.size,
            users=len(user_ids),
            users_without_examples=int((owned.sizes == 0).sum()),
            test_rows=len(test_labels),
            columns={"x": _layout(features), "y": _layout(labels)},
            left_out=counted(faults, everybody),
        )
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
            row_counts=row_counts,
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
        """Create a data set from a data frame, of pandas or with ``to_pandas``.

        Args:
            frame: one example a row.
            user: column of user ids.
            label: column of the labels; several columns of numbers for several numbers an example.
            features: columns of numbers; None for all others but a saved index ("Unnamed: 0",
                "__index_level_0__"), which are logged.
            test: a frame with the same columns, without rows of users on the user list; its user
                column may be omitted.
            options: ``user_list``, ``classes`` and ``test_owner`` of `from_arrays`.

        Raises:
            TypeError: ``frame`` or ``test`` is not a data frame.
            ValueError: a column is missing or occurs twice, or `from_arrays` raises.

        Guarantees: those of `from_arrays`; a cell that is not a number affects its row alone.

        >>> import pandas as pd
        >>> rows = pd.DataFrame({"who": ["a", "b", "b"], "age": [31, 45, None]})
        >>> rows["ill"] = ["no", "yes", "no"]
        >>> declared = {"user_list": ["a", "b"], "classes": ["no", "yes"]}
        >>> data = Dataset.from_frame(rows, user="who", label="ill", **declared)
        >>> data.sizes(np.arange(2)).tolist()
        [1, 1]
        """
        frame = _data_frame(frame, "frame")
        labels = list(label)
        if isinstance(label, str):
            labels = [label]
        if features is None:
            columns = frame.columns.map(str)
            names = _all_features([name for name in columns if name not in (user, *labels)])
        else:
            names = list(features)
        if not names:
            raise ValueError("features must be one or more columns of numbers; got none.")
        users = _columns(frame, [user], "frame")[user]
        x, y = _examples_of_frame(frame, names, labels, "frame")
        empty = np.array(names)[np.isnan(x).all(axis=0)]
        if len(x) and empty.size:
            raise ValueError(
                f"features must be columns of numbers; got no number in {', '.join(empty)[:300]}."
                " Name those to use (features=[…]), or read text with a schema"
                " (docs/data-and-models.md)."
            )
        test_examples = None
        test_users: list[str | None] = []
        if test is not None:
            test = _data_frame(test, "test")
            test_examples = _examples_of_frame(test, names, labels, "test")
            if user in test.columns:
                test_users = _ids(test[user], "users").to_pylist()
        data = Dataset.from_arrays(x, y, users, test=test_examples, **options)
        data = replace(data, row_counts=_of_columns(data.row_counts, x, names))
        if data.test_owner != "training users" and not set(data.user_ids).isdisjoint(test_users):
            raise ValueError(
                "test (rows) must not belong to users on the user list; got rows of some users. If"
                " this is intended, pass test_owner='training users': their evaluation is then not"
                " private."
            )
        return data

    @property
    def structure(self) -> ExampleStructure:
        """Shapes and types of the test part, bounded by ``classes`` and ``vocabulary`` if given.

        Integer labels of a data set without classes are tokens of its vocabulary.
        """
        features = structure_of(self.test_features, self.vocabulary)
        bound = self.classes
        tokens = not self.test_labels.dtype.is_floating_point and self.test_labels.ndim > 1
        if not bound and tokens and isinstance(self.vocabulary, int):
            bound = self.vocabulary
        labels = TensorStructure.of(self.test_labels, bound or None)
        if bound:  # every class or token, also where the test part lacks some
            labels = replace(labels, least=0)
        return ExampleStructure(features, labels)

    @abstractmethod
    def index_of(self, user_id: str) -> int:
        """Return the index of a user.

        Raises:
            KeyError: an unknown id.
        """

    @abstractmethod
    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many examples each of these users owns, without loading them."""

    @abstractmethod
    def examples(self, users: NDArray[np.int64]) -> tuple[Features, Tensor]:
        """Return all examples of these users, one user after the other in the given order.

        Args:
            users: indices, shape (m,).

        Returns:
            Features, shape (Σ sizes, …) or a mapping of such tensors, and labels, shape (Σ sizes,
            …), on the dataset's device.
        """

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """Return a data set with the same examples on ``device``."""

    @property
    def users(self) -> int:
        """U, the number of users."""
        return len(self.user_ids)

    def indices(self, user_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the indices of several users.

        Raises:
            KeyError: an unknown id.
        """
        return np.fromiter(map(self.index_of, user_ids), dtype=np.int64, count=len(user_ids))


@dataclass(frozen=True, eq=False, repr=False)
class InMemoryDataset(Dataset):
    """Examples in tensors, with the rows that each user owns.

    Args:
        features: shape (examples, …), of any real type; or several such tensors by the names under
            which the model takes them.
        labels: shape (examples, …), of any real type.
        owned: for each user the indices of its examples; examples may belong to no user.
        user_ids: unique, stable ids; that of user u is ``user_ids[u]``.
        test_features: shape (tests, …), likewise.
        test_labels: shape (tests, …).
        classes: number of classes where labels are class numbers; 0 where they are anything else.
        test_owner: as for `Dataset`.
        vocabulary: number of tokens where features are tokens, or bounds of integers by name, else
            0.
        has_examples: whether users' examples are here; else they are on nodes, and all users own
            nothing here.
        row_counts: how many rows were read and left out, for the operator.

    Raises:
        ValueError: ids that are not strings, not unique or not canonical (`canonical_id`), rows
            that are not indices, or examples that differ in shape or type from the test part.
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
    row_counts: RowCounts | None = None
    _partition: Partition = field(init=False)
    _index: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.owned) != len(self.user_ids):
            raise ValueError(
                f"owned (rows of users) must be one array for each of {len(self.user_ids)} user"
                f" ids; got {len(self.owned)}. Dataset.from_arrays takes the user of each example."
            )
        _require_owner(self.test_owner)
        object.__setattr__(self, "_index", _index_of_users(self.user_ids))
        object.__setattr__(self, "_partition", Partition.of(self.owned))
        _require_one_tensor(self.labels)
        _check_parts("features", self.features, self.test_features)
        _check_parts("labels", self.labels, self.test_labels)

    def __repr__(self) -> str:
        structure = self.structure
        return (
            f"{type(self).__name__}(users={self.users}, examples={self._partition.order.size}, "
            f"features={structure.features}, labels={structure.labels}, "
            f"tests={len(self.test_labels)})"
        )

    def index_of(self, user_id: str) -> int:
        return self._index[user_id]

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._partition.sizes[users]

    def rows(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the examples of these users, one user after the other."""
        return self._partition.rows(users)

    def examples(self, users: NDArray[np.int64]) -> tuple[Features, Tensor]:
        rows = torch.from_numpy(self.rows(users)).to(self.labels.device)
        features = each(lambda values: values.index_select(0, rows), self.features)
        return features, self.labels.index_select(0, rows)

    def to(self, device: torch.device | str) -> Self:
        return replace(
            self,
            features=each(lambda values: values.to(device), self.features),
            labels=self.labels.to(device),
            test_features=each(lambda values: values.to(device), self.test_features),
            test_labels=self.test_labels.to(device),
        )


def _require_owner(test_owner: object) -> None:
    if test_owner not in TEST_PARTS:
        names = ", ".join(map(repr, TEST_PARTS))
        raise ValueError(f"test_owner must be one of {names}; got {test_owner!r}.")


def _index_of_users(user_ids: Sequence[str]) -> Mapping[str, int]:
    """Return the index of each user by id.

    Raises:
        ValueError: an id is not a string, not canonical, or occurs twice.
    """
    index: dict[str, int] = {}
    for u, user_id in enumerate(user_ids):
        if not isinstance(user_id, str):
            raise ValueError(f"user ids must be strings; got {user_id!r}. Convert each with str.")
        index[user_id] = u
    if len(index) < len(user_ids):
        raise ValueError(f"user ids must be unique; got {len(index)} different of {len(user_ids)}.")
    if not isinstance(user_ids, NumberedUsers):  # whose ids are canonical
        require_canonical(user_ids)
    return index


def _check_parts(name: str, values: Features, tests: Features) -> None:
    """Reject features or labels that are not tensors, or not like those of the test part.

    Raises:
        ValueError: the fault, in one line.
    """
    for part in (values, tests):
        lengths: set[int] = set()
        for tensor in named(part).values():
            if not isinstance(tensor, Tensor):
                raise ValueError(
                    f"{name} must be torch tensors; got other objects. Use torch.as_tensor."
                )
            lengths.add(len(tensor))
        if len(lengths) > 1:
            raise ValueError(
                f"{name} must have the same number of rows under every name; got different ones."
            )
    if _layout(values) != _layout(tests):
        raise ValueError(
            f"{name} must be like test_{name}, {_layout(tests)}; got {_layout(values)}."
        )


def _require_one_tensor(labels: Any) -> None:
    """Reject labels in several tensors by name.

    Raises:
        ValueError: the fault, in one line.
    """
    if isinstance(labels, Mapping):
        raise ValueError(
            f"labels must be one tensor; got several by name: {', '.join(map(str, labels))}."
            " Concatenate them (docs/data-and-models.md)."
        )


def _layout(features: Features) -> str:
    """Return names, shapes and types as text."""
    parts: list[str] = []
    for name, values in sorted(named(features).items()):
        part = f"{name} {tuple(values.shape[1:])} {values.dtype}"
        parts.append(part.lstrip())
    return ", ".join(parts)


def _tensor(values: Any) -> Tensor:
    """Return a copy, which no later change of the values affects; float64 becomes float32."""
    if isinstance(values, Tensor):
        dtype = torch.float32 if values.dtype == torch.float64 else values.dtype
        tensor = values.detach().to(dtype, copy=True)
    else:
        try:
            array = np.asarray(values)
            dtype = np.float32 if array.dtype == np.float64 else array.dtype
            with np.errstate(over="ignore"):
                tensor = torch.from_numpy(np.array(array, dtype))
        except (TypeError, ValueError):  # text, objects, or rows of different length
            raise ValueError(
                f"x and y must be arrays or tensors of numbers; got {one_line(repr(values)):.80}."
            ) from None
    if tensor.is_complex():
        raise ValueError("x and y must be arrays or tensors of real numbers; got complex ones.")
    return tensor


def _data_frame(values: Any, name: str) -> Any:
    """Return a data frame of pandas; ``name`` is the argument in messages."""
    if hasattr(values, "to_pandas"):
        values = values.to_pandas()
    if not hasattr(values, "columns"):
        raise TypeError(f"{name} must be a data frame; got {type(values).__name__}.")
    return values


def _examples_of_frame(
    frame: Any, features: Sequence[str], labels: Sequence[str], name: str
) -> tuple[NDArray[np.float32], Any]:
    """Return features, shape (rows, features), and labels of a frame."""
    columns = _columns(frame, [*features, *labels], name)
    x = _matrix(columns, features)
    if len(labels) > 1:
        return x, _matrix(columns, labels)
    return x, columns[labels[0]]


def _all_features(names: Sequence[str]) -> list[str]:
    """Return the columns that are features by default, and log which they are."""
    features = [name for name in names if not _SAVED_INDEX.fullmatch(name)]
    indices = [name for name in names if _SAVED_INDEX.fullmatch(name)]
    line = f"features are all columns but user and label: {shown_names(features)}"
    if indices:
        line += f"; not taken, as saved indices: {shown_names(indices)}"
    _log.warning("%s. Name others with features=[…].", line)
    return features


def _of_columns(
    counts: RowCounts | None, x: NDArray[np.float32], names: Sequence[str]
) -> RowCounts | None:
    """Return counts with the rows that features leave out by column, rather than together."""
    if counts is None:
        return None
    left_out = dict(counts.left_out)
    left_out.pop(_NOT_FINITE, None)
    for name, column in zip(names, x.T, strict=True):
        rows = int((~np.isfinite(column)).sum())
        if rows:
            left_out[f"{name}: missing or not a finite number"] = rows
    columns = dict.fromkeys(names, "number")
    return replace(counts, left_out=left_out, columns=columns)


def _columns(frame: Any, names: Sequence[str], frame_name: str) -> dict[str, Any]:
    """Return columns of a frame as Arrow arrays; messages call it ``frame_name``."""
    present = frame.columns.map(str).tolist()
    columns: dict[str, Any] = {}
    for name in names:
        if present.count(name) != 1 or name in columns:
            raise ValueError(
                f"column {name!r} must occur once in {frame_name} and be named once;"
                f" {frame_name} has the columns {', '.join(present)[:300]}."
            )
        columns[name] = column_of(frame.iloc[:, present.index(name)])
    return columns


def _matrix(columns: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.float32]:
    """Return columns as numbers, shape (rows, columns); NaN for a cell that is not a number."""
    matrix = np.empty((len(columns[names[0]]), len(names)), dtype=np.float32)
    with np.errstate(over="ignore"):
        for i, name in enumerate(names):  # float64 for one column at a time
            matrix[:, i] = numbers(columns[name], f"column {name!r}")
    return matrix


def _ids(values: Any, place: str) -> Any:
    """Return the canonical id of each value (`canonical_id`); null for one that names no user.

    >>> _ids(["ann", 7, 7.0, None, float("nan"), 10**30], "users").to_pylist()
    ['ann', '7', '7', None, None, '1000000000000000000000000000000']
    """
    if isinstance(values, Tensor):
        values = values.numpy()
    return ids(column_of(values), place)


def _class_names(classes: Sequence[Any]) -> list[str]:
    """Return the names of classes.

    Raises:
        ValueError: they are not at least two different names.
    """
    names: list[str] = []
    if not isinstance(classes, str):
        names = _ids(list(classes), "classes").drop_null().to_pylist()
    if len(set(names)) < max(2, len(classes)):
        raise ValueError(f"classes must be at least two different names; got {classes!r:.300}.")
    return names


def _listed(user_list: Sequence[Any] | str | None, ids_of_rows: Any) -> tuple[str, ...]:
    """Return the ids of all users.

    Args:
        user_list: ids of any type, or `FROM_DATA`.
        ids_of_rows: canonical ids as an Arrow array.

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
        return require_once(sorted(ids_of_rows.unique().drop_null().to_pylist()))
    return require_once(_ids(user_list, "user_list").to_pylist())


def _labels(y: Any, names: Sequence[str], classes: int, vocabulary: bool) -> Tensor:
    """Return labels as numbers, tokens, or class numbers, where −1 stands for any other value."""
    if names:
        return torch.from_numpy(places(_ids(y, "y"), names))
    if isinstance(y, Tensor) or np.ndim(y) > 1:
        labels = _tensor(y)
        whole = not labels.dtype.is_floating_point
    else:
        column = column_of(y)
        labels = torch.tensor(numbers(column, "y"))
        whole = types.is_integer(column.type) or types.is_boolean(column.type)
        whole |= len(labels) > 0 and not bool(torch.isfinite(labels).any())
    if classes:
        if labels.is_floating_point():
            labels = torch.where(labels == labels.round(), labels, -1)
        return labels.to(torch.int64)
    if not whole:
        return labels.float()
    if not vocabulary:
        raise ValueError(
            "classes must be given unless labels are floating-point numbers: their number, or their"
            " names in order, which are public; got none."
        )
    return labels.long()


def _holds_integers(features: Features) -> bool:
    """Return whether a tensor holds integers, which need a public bound."""
    for values in named(features).values():
        if not values.is_floating_point() and values.dtype is not torch.bool:
            return True
    return False


def _within(features: Features, structures: Mapping[str, TensorStructure]) -> NDArray[np.bool_]:
    """Return which examples hold only integers that are below their bounds."""
    within = torch.ones(len(next(iter(named(features).values()))), dtype=torch.bool)
    for name, values in named(features).items():
        bound = structures[name].bound
        if bound is None or values.dtype == torch.bool:
            continue
        largest = bound - 1
        if not values.is_floating_point():
            largest = min(largest, torch.iinfo(values.dtype).max)
        within &= _all_of_each(partial(_lies_in, largest=largest), values)
    return within.numpy()


def _lies_in(values: Tensor, largest: int) -> Tensor:
    """Return where values lie in 0, …, ``largest``."""
    return (values >= 0) & (values <= largest)


def readable(features: Features, labels: Tensor, classes: int) -> NDArray[np.bool_]:
    """Return which examples have finite features, and a label that is a class or finite."""
    return _without(_faults(features, labels, classes))


def _without(faults: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return which examples have none of these faults."""
    return ~np.logical_or.reduce(list(faults.values()))


def _finite(features: Features, examples: int) -> Tensor:
    valid = torch.ones(examples, dtype=torch.bool)
    for values in named(features).values():
        valid &= _all_of_each(torch.isfinite, values)
    return valid


def _labeled(labels: Tensor, classes: int) -> Tensor:
    if classes:
        return _all_of_each(partial(_lies_in, largest=classes - 1), labels)
    return _all_of_each(torch.isfinite, labels)


def _faults(features: Features, labels: Tensor, classes: int) -> dict[str, NDArray[np.bool_]]:
    """Return masks of the examples that are not readable, by reason."""
    fault = "y: not a finite number (mark missing targets by a column of 0 and 1)"
    if classes:
        fault = f"y: none of the {classes} classes"
    return {
        _NOT_FINITE: ~_finite(features, len(labels)).numpy(),
        fault: ~_labeled(labels, classes).numpy(),
    }


def _faults_of_users(user_ids: Any, user_list: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Return masks of the examples of no user of the list, by reason."""
    named_rows = user_ids.is_valid().to_numpy(zero_copy_only=False)
    listed = places(user_ids, user_list) >= 0
    return {"users: no user id": ~named_rows, "users: not on the user list": named_rows & ~listed}


def _all_of_each(holds: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return for each example whether a condition holds for all of its entries, shape (examples,).

    Args:
        holds: from entries to where the condition holds; called for blocks of examples, so that it
            needs little memory.
        values: shape (examples, …).
    """
    entries = math.prod(values.shape[1:])
    blocks: list[Tensor] = []
    for block in split_rows(values, max(1, _BLOCK // max(1, entries))):
        blocks.append(holds(block).reshape(len(block), entries).all(dim=1))
    return torch.cat(blocks)
