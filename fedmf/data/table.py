"""Your own rows in CSV, JSON lines or Parquet files: with classes, numbers or texts, by a schema or
plain.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as arrow
import torch
from numpy.typing import NDArray

from fedmf.data.cells import ids, is_list, lists_of_numbers, numbers, places, read_user_list, texts
from fedmf.data.dataset import Dataset, InMemoryDataset, NumberedUsers, TestOwner, readable
from fedmf.data.dataset_options import PublicInput, SpreadOptions, in_words
from fedmf.data.partitions import Partition, hold_out, hold_out_of_each_user, partition_by_owner
from fedmf.data.schema import Category, Encoded, Schema, User
from fedmf.data.schema_file import read_schema
from fedmf.data.table_reader import JsonLinesTable, open_table, table_files
from fedmf.data.tokens import Vocabulary, evenly, next_tokens, padded, public_vocabulary
from fedmf.values import Field

_log = logging.getLogger("fedmf")
_RANGE: Final = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_MOST_CLASSES: Final = 1_000_000
#: Examples of a test part of its own, and sequences of texts that are held out.
MOST_TESTS: Final = 10_000
_MOST_SEQUENCES: Final = 1_000
_ROWS: Final = 65_536
_TEST_PARTS: Final[dict[TestOwner, str]] = {
    "training users": (
        "rows of the training users themselves; without noise their evaluation is not private"
    ),
    "held-out users": "all rows of people who are no users of the run",
    "nobody": "rows that no user of the run owns",
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as they were read.

    Args:
        features: shape (rows, …), float32, NaN in a row with a cell that cannot be read; or a list
            of texts.
        labels: class numbers, shape (rows,), −1 for none of the classes; or numbers, shape (rows,)
            or (rows, L).
        users: ids as an Arrow array; None without a column of users.
        readable: which rows have a label and features that can be read.
    """

    features: Any
    labels: torch.Tensor
    users: Any
    readable: NDArray[np.bool_]


#: Keys that say nothing where another is given.
_ALONE: Final = {
    "schema": ("class_names",),
    "text_column": ("input_shape", "schema", "label_columns"),
    "label_columns": ("label_column", "class_names"),
}


@dataclass(frozen=True)
class Table(SpreadOptions):
    """Rows of a file or of all tables of a folder, CSV, JSON lines (.gz too) or Parquet, spread
    over users.

    Labels are classes (``label_column``), or numbers (``label_columns``), or the tokens that follow
    in a text (``text_column`` without a label). A row of which a feature or the label is missing or
    cannot be read, or with a user that is missing or not on the user list, is ignored; it changes
    nothing else. What is public is declared: columns, classes, users. By a schema numbers are
    scaled, categories coded, and columns and classes declared; as labels numbers are scaled too,
    and a category with two values is 0 or 1.

    >>> Table(path="rows.csv", feature_columns=("age",), class_names=("no", "yes"), test_split="users")
    Traceback (most recent call last):
    ValueError: user_column and user_list must be named with a user list, partition 'by-user' or ...
    """

    kind: ClassVar[str] = "table"
    path: Annotated[str, Field("file with the rows, or folder of such files")] = ""
    user_column: Annotated[str, Field("name of the column with the user of each row")] = ""
    user_list: Annotated[str, Field("file with the ids of all users; for partition by-user")] = ""
    test_split: Annotated[
        Literal["auto", "users", "examples"],
        Field(
            "test part: all rows of some users, or some examples; auto: users with partition"
            " by-user"
        ),
    ] = "auto"
    schema: Annotated[
        str,
        Field("file that declares columns, bounds and classes; without it, numbers are not scaled"),
    ] = ""
    feature_columns: Annotated[
        tuple[str, ...],
        Field("names of the feature columns; default with a schema: all possible columns"),
    ] = ()
    label_column: Annotated[
        str,
        Field("name of the label column; default: label, or none with texts or numbers as labels"),
    ] = ""
    label_columns: Annotated[
        tuple[str, ...],
        Field("names of numeric label columns: for regression, or several of 0 and 1"),
    ] = ()
    class_names: Annotated[
        tuple[str, ...],
        Field("the labels in order; 0..61 stands for these integers; not with a schema"),
    ] = ()
    input_shape: Annotated[
        tuple[int, ...],
        Field("shape of an example, channels first; default: a vector of the columns", ge=1),
    ] = ()
    text_column: Annotated[str, Field("name of the text column, which is the feature")] = ""
    length: Annotated[int, Field("number of tokens in a sequence", "T", ge=1)] = 64
    most_sequences: Annotated[
        int | None,
        Field("largest number of sequences of a user, evenly spaced over its texts", ge=1),
    ] = None
    vocabulary_path: Annotated[
        str, Field("public tokenizer.json of the tokenizers library; default: the bytes of a text")
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.label_column or self.label_columns or self.text_column):
            object.__setattr__(self, "label_column", "label")
        if not self.path:
            raise ValueError(
                f"path (of the data) must name what dataset {self.kind!r} reads; got none."
            )
        people = self.partition == "by-user" or self.test_split == "users" or self.user_list
        if people and not (self.user_column and self.user_list):
            raise ValueError(
                "user_column and user_list must be named with a user list, partition 'by-user' or "
                "test_split 'users'; got none."
            )
        columns = [*self.feature_columns, *filter(None, [self.text_column]), *self._others]
        for what, names in (("columns", columns), ("class_names", self.class_names)):
            if len(set(names)) < len(names) or "" in names:
                raise ValueError(f"{what} must have different names; got {', '.join(names)}.")
        for name, others in _ALONE.items():
            if getattr(self, name) and (
                given := [other for other in others if getattr(self, other)]
            ):
                raise ValueError(f"{' and '.join(given)} must be left out with {name}.")
        if self.class_names and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(
                f"class_names must be two or more different labels; got {self.class_names}."
            )
        if self.label_columns and self.partition == "dirichlet":
            raise ValueError(
                f"partition must not be one by classes with numbers; got {self.partition!r}."
            )
        needed = {
            "feature_columns": not (self.schema or self.text_column),
            "class_names": bool(self.label_column) and not self.schema,
        }
        if missing := [name for name, asked in needed.items() if asked and not getattr(self, name)]:
            raise ValueError(
                f"{' and '.join(missing)} (of the data) must be declared; got none. Public facts"
                " are never derived from the rows."
            )

    # What is declared.

    @cached_property
    def declared(self) -> Schema | None:
        """What the file of the schema says; None without one.

        Raises:
            ValueError: it cannot be read, or declares user or labels otherwise.
        """
        if not self.schema:
            return None
        schema = read_schema(Path(self.schema.partition("#")[0]).expanduser())
        if self.user_column:
            schema.column(self.user_column, User, "user_column")
        if self.label_column:
            schema.column(self.label_column, Category, "label_column")
        for name in self.label_columns:
            column = schema.column(name, Encoded, "label_columns")
            if isinstance(column, Category) and len(column.categories) > 2:
                raise ValueError(
                    f"label_columns must be numbers or categories with two values; got {name!r}"
                    f" with {len(column.categories)}."
                )
        return schema

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The labels, ranges written out; none where labels are numbers or the tokens that follow.

        Raises:
            ValueError: a range of too many numbers, or of none.
        """
        if self.declared and self.label_column:
            return self.declared.column(self.label_column, Category, "label_column").categories
        names: list[str] = []
        for entry in self.class_names:
            ends = _RANGE.fullmatch(entry)
            first, last = map(int, ends.groups()) if ends else (0, 0)
            if not 0 <= last - first < _MOST_CLASSES:
                raise ValueError(
                    f"class_names must hold ranges of 1 to {_MOST_CLASSES} numbers; got {entry}."
                )
            names += map(str, range(first, last + 1)) if ends else [entry]
        return tuple(names)

    @property
    def _others(self) -> list[str]:
        """Columns that are no features."""
        return [name for name in (self.label_column, *self.label_columns, self.user_column) if name]

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The feature columns: those that are named, or by the schema all that may be.

        Raises:
            ValueError: there is none.
        """
        every = self.declared.named(Encoded) if self.declared else ()
        names = self.feature_columns or tuple(name for name in every if name not in self._others)
        if not (names or self.text_column):
            raise ValueError("feature_columns must be others than label and user; got none.")
        return (self.text_column,) if self.text_column else names

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of an example: as it is declared, else a vector of the columns.

        Raises:
            ValueError: another number of entries than the columns have, where these are no lists.
        """
        names = self.features
        width = len(self.declared.encoding(names).coordinates) if self.declared else len(names)
        shape = self.input_shape or (width,)
        if math.prod(shape) != width and (self.declared or width > 1):
            raise ValueError(
                f"input-shape must multiply to the {width} entries of an example; got {shape}."
            )
        return shape

    @property
    def holds_out_users(self) -> bool:
        """Whether all rows of some users are held out, rather than some rows."""
        return self.test_split == "users" or (
            self.test_split == "auto" and self.partition == "by-user"
        )

    @property
    def test_owner(self) -> TestOwner:
        """The owner of the test part; where users are simulated, none of them ever owned its
        rows.
        """
        if self.partition != "by-user":
            return "nobody"
        return "held-out users" if self.holds_out_users else "training users"

    def example_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.example_inputs`."""
        declared = f"declared: schema {self.schema}" if self.schema else "declared"
        inputs = []
        if self.label_columns:
            inputs = [PublicInput("labels", ", ".join(self.label_columns), declared)]
        elif self.label_column:
            names = (
                f"categories of {self.label_column}" if self.schema else ", ".join(self.class_names)
            )
            inputs = [PublicInput("classes", names, declared)]
        if self.text_column:
            source = f"public file {self.vocabulary_path}" if self.vocabulary_path else "fixed"
            inputs.append(PublicInput("vocabulary", str(self.tokens), source))
            return (*inputs, PublicInput("shape of an example", str(self.length), "configuration"))
        shape = (
            "as its columns are" if self.schema and not self.input_shape else in_words(self.shape)
        )
        how = self.normalisation, "fixed by the reader; no statistic of the rows"
        if self.schema:
            how = "(x − center)/scale, clipped into bounds; categories coded", declared
        return (
            *inputs,
            PublicInput("shape of an example", shape, declared),
            PublicInput("normalisation", *how),
        )

    #: How values become features without a schema.
    normalisation: ClassVar[str] = "numbers as they are, in float32"

    @property
    def dealt(self) -> str:
        """See `DatasetOptions.dealt`."""
        if self.partition == "by-user":
            return f"column {self.user_column}: a row is its user's"
        made = (
            "computed from all labels"
            if self.partition == "dirichlet"
            else "made from their number"
        )
        return f"{made} and the seed: who owns which row is taken as public"

    @property
    def test_part(self) -> tuple[str, str]:
        """See `DatasetOptions.test_part`."""
        drawn = "who is held out" if self.holds_out_users else "which rows are held out"
        base = "the user list" if self.user_list else "the number of rows"
        return (
            _TEST_PARTS[self.test_owner],
            f"{drawn} depends on {base}, test_fraction and the public seed",
        )

    def user_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.user_inputs`."""
        if self.partition != "by-user":
            return super().user_inputs()
        counted = (
            "counted in the rows; a user's size decides that user's own batches and update only"
        )
        return (
            PublicInput(
                "users", str(self.users), f"configuration, checked against {self.user_list}"
            ),
            PublicInput("user ids", "as on the user list, in its order", self.user_list),
            PublicInput(
                "sizes of users",
                "number of rows of each, less those with a missing or unreadable cell",
                counted,
            ),
        )

    @cached_property
    def tokens(self) -> Vocabulary:
        """The vocabulary.

        Raises:
            ValueError: the public file cannot be used, or the library tokenizers is not there.
        """
        return public_vocabulary(self.vocabulary_path)

    def listed_users(self, held_out: bool) -> tuple[str, ...]:
        """The ids of the user list in its order; none without a user list.

        Args:
            held_out: whether some of them are held out.

        Raises:
            ValueError: an unreadable user list, or ``users`` is not how many of it are left to
                train.
        """
        if not self.user_list:
            return ()
        names = read_user_list(Path(self.user_list).expanduser(), self.user_column)
        gone = round(self.test_fraction * len(names)) if held_out else 0
        if self.partition == "by-user" and len(names) - gone != self.users:
            raise ValueError(
                f"N (users) must be {len(names) - gone} with this user_list: it names {len(names)},"
                f" of whom {gone} are held out; got {self.users}."
            )
        return names

    # Reading.

    def batches(self, optional: Sequence[str] = ()) -> Iterator[Mapping[str, Any]]:
        """Columns of all files by name, some rows at a time.

        Args:
            optional: columns that need not be there though a schema declares them, and are not
                read.

        Raises:
            ValueError: nothing readable there, or other columns than are asked for.
        """
        lists = (
            self.features
            if self.declared is None and len(self.features) < math.prod(self.shape)
            else ()
        )
        for file in table_files(Path(self.path).expanduser()):
            with open_table(file) as table:
                if self.declared and not isinstance(
                    table, JsonLinesTable
                ):  # whose objects may lack some
                    self.declared.check_header(table.names, str(file), optional)
                table.select(
                    [*self.features, *(one for one in self._others if one not in optional)], lists
                )
                while (batch := table.read(_ROWS)) is not None:
                    yield batch.columns

    def read(self, batches: Iterable[Mapping[str, Any]]) -> Rows:
        """Rows of batches of columns.

        Raises:
            ValueError: no rows, or a column of a type that holds no numbers or no names. No value
                of a row raises.

        Guarantees: what becomes of a row depends on that row alone.
        """
        features: list[Any] = []
        labels: list[NDArray[Any]] = []
        users: list[Any] = []
        for columns in batches:
            features.append(self._features(columns))
            labels.append(self._labels(columns, len(features[-1])))
            if self.user_column in columns:
                users.append(ids(columns[self.user_column], f"column {self.user_column!r}"))
        if not sum(map(len, features)):
            raise ValueError(f"path must hold at least one row; got none in {self.path}.")
        labels_of = torch.from_numpy(np.concatenate(labels))
        x = [text for part in features for text in part]
        if not self.text_column:
            x = torch.from_numpy(np.concatenate(features)).reshape(-1, *self.shape)
        good = readable({} if self.text_column else x, labels_of, len(self.classes))
        return Rows(x, labels_of, arrow.chunked_array(users) if users else None, good)

    def _features(self, columns: Mapping[str, Any]) -> Any:
        """Features, shape (rows, d), float32, NaN in a row with a cell that cannot be read; or
        texts.
        """
        first = columns[self.features[0]]
        if self.text_column:
            return [(cell or "").encode() for cell in texts(first).to_pylist()]
        if isinstance(first, np.ndarray):
            values = first
        elif len(self.features) == 1 and self.declared is None and is_list(first.type):
            values = lists_of_numbers(first, math.prod(self.shape))
        else:
            values = self._numbers(self.features, columns)
        with np.errstate(over="ignore", invalid="ignore"):  # beyond float32: no finite number
            narrow = values.astype(np.float32)
        narrow[~np.isfinite(narrow).all(axis=1)] = np.nan
        return narrow

    def _labels(self, columns: Mapping[str, Any], rows: int) -> NDArray[Any]:
        """Class numbers, −1 for none of the classes; or numbers."""
        if self.label_columns:
            labels = self._numbers(self.label_columns, columns, each_its_last=True).astype(
                np.float32
            )
            return labels[:, 0] if len(self.label_columns) == 1 else labels
        if not self.label_column:
            return np.zeros(rows, dtype=np.int64)
        cells = texts(columns[self.label_column], f"column {self.label_column!r}")
        if self.declared:
            return self.declared.column(self.label_column, Category, "label_column").places(cells)
        return places(cells, self.classes)

    def _numbers(
        self, names: Sequence[str], columns: Mapping[str, Any], each_its_last: bool = False
    ) -> NDArray[np.float64]:
        """Columns as numbers, by the schema as its coordinates, of each column all or the last
        one.
        """
        if self.declared is None:
            return np.stack([numbers(columns[name], f"column {name!r}") for name in names], axis=1)
        encoding = self.declared.encoding(names)
        z, valid = encoding.encode(encoding.measure([columns[name] for name in names]))
        z = np.where(valid[:, None], z, np.nan)
        return (
            z[:, np.cumsum([len(one.endings) for one in encoding.columns]) - 1]
            if each_its_last
            else z
        )

    def load(self) -> Dataset:
        """See `DatasetOptions.load`; of one column of numbers as labels these have shape
        (examples,).

        Raises:
            ValueError: see `read` and `dataset_of`.
        """
        if self.user_column and self.partition not in ("by-user", "each-example"):
            _log.warning(
                "Users are made up (partition %r): rows of one person in column %r are spread over"
                " several, and a user is not a person. Persons are users with partition 'by-user'.",
                self.partition,
                self.user_column,
            )
        people = self.listed_users(self.holds_out_users)
        return self.dataset_of(self.read(self.batches()), people)

    def dataset_of(
        self, rows: Rows, people: Sequence[str], tests: Rows | None = None
    ) -> InMemoryDataset:
        """Spread rows over users and hold some out, unless there are rows for the test part.

        Args:
            rows: as read.
            people: on the user list; none without one.
            tests: of the test part; rows of users of the run are left out if it belongs to held-out
                users.

        Raises:
            ValueError: test_fraction holds out too little or too much, the partition does not fit,
                or no row held out can be read.
        """
        purpose = 0x7E47 if self.text_column else 0x7AB2 if self.label_columns else 0x7AB1
        rng = np.random.default_rng([self.seed, purpose])
        owned, user_ids, held = self._dealt(rows, people, rng, tests is not None)
        owned = owned.keeping(rows.readable)
        chosen = np.flatnonzero(held & rows.readable)
        x, y = test_x, test_y = rows.features, rows.labels
        if self.text_column:
            x, y, sequences = self._sequences(rows)
            own = [sequences.rows(mine) for mine in owned]
            owned = Partition.of([mine[evenly(mine.size, self.most_sequences)] for mine in own])
            chosen = sequences.rows(chosen)
            chosen = chosen[evenly(chosen.size, _MOST_SEQUENCES)]
            test_x = x
            test_y = y
        elif tests is not None:
            good = tests.readable
            if self.test_owner == "held-out users":
                good = good & (places(tests.users, people) < 0) & tests.users.is_valid().to_numpy()
            chosen = np.sort(rng.permutation(np.flatnonzero(good))[:MOST_TESTS])
            test_x = tests.features
            test_y = tests.labels
        test_x = test_x[chosen]
        test_y = test_y[chosen]
        if not len(test_y):
            label = f"one of {', '.join(self.classes[:20])}" if self.classes else "a finite number"
            raise ValueError(
                f"test part must hold a row with a user on the user list, a label that is {label}"
                f" and readable features; got none of {self.path}. Check the spelling of ids and"
                " labels, and that numbers have a decimal point."
            )
        return InMemoryDataset(
            features=x,
            labels=y,
            owned=owned,
            user_ids=user_ids,
            test_features=test_x,
            test_labels=test_y,
            classes=len(self.classes),
            test_owner=self.test_owner,
            vocabulary=self.tokens.size if self.text_column else 0,
        )

    def _sequences(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, Partition]:
        """(features, labels, sequences): of which text r has those at r."""
        parts = [
            (
                (padded(self.tokens.encode(text), self.length), rows.labels[row : row + 1].numpy())
                if self.label_column
                else next_tokens(self.tokens.encode(text), self.length)
            )
            for row, text in enumerate(rows.features)
        ]
        x, y = (torch.from_numpy(np.concatenate(side)) for side in zip(*parts, strict=True))
        edges = np.cumsum([0, *(len(features) for features, _ in parts)])
        return x, y, Partition(np.arange(len(x)), edges)

    def _dealt(
        self, rows: Rows, people: Sequence[str], rng: np.random.Generator, tested: bool
    ) -> tuple[Partition, Sequence[str], NDArray[np.bool_]]:
        """Hold rows out, and spread the others over users.

        Args:
            rows: as read; rows without a class count as class 0 for partitions by label.
            people: on the user list.
            rng: public.
            tested: whether the test part is elsewhere, so that no row is held out.

        Returns:
            The rows of each user, the users' ids, and the mask of test rows.
        """
        count = len(rows.labels)
        owner = places(rows.users, people) if people else np.full(count, -1)
        users = np.arange(len(people))
        tests = np.zeros(count, dtype=bool)
        if not tested and self.holds_out_users:
            gone, _ = hold_out(len(people), self.test_fraction, rng, "users")
            users = np.setdiff1d(users, gone)
            tests = np.isin(owner, gone)
        elif not tested and self.partition == "by-user":
            tests = hold_out_of_each_user(owner, self.test_fraction, self.seed)
        elif not tested:  # whose row it was must not decide what others own
            tests[hold_out(count, self.test_fraction, rng, "examples")[0]] = True
        if self.partition == "by-user":
            owned = partition_by_owner(np.where(tests, -1, owner), users)
            return owned, tuple(people[int(u)] for u in users), tests
        trained = np.flatnonzero(~tests)
        labels = rows.labels.numpy() if self.classes else np.zeros(count, dtype=np.int64)
        parts = self.split(np.maximum(labels[trained], 0), rng)
        return Partition(trained[parts.order], parts.edges), NumberedUsers(self.users), tests
