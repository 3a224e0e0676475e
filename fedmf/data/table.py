"""Your own rows in CSV, JSON lines or Parquet files: with classes, numbers or texts, by a schema or plain."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as arrow
import torch
from numpy.typing import NDArray

from fedmf.data.cells import ids, is_list, list_lengths, lists_of_numbers, numbers, read_user_list, texts
from fedmf.data.dataset import Dataset, InMemoryDataset, NumberedUsers, TestOwner
from fedmf.data.options import PublicInput, SpreadOptions, in_words
from fedmf.data.partitions import (
    Partition,
    hold_out_examples,
    hold_out_of_each_user,
    hold_out_users,
    partition_by_owner,
)
from fedmf.data.schema import Category, Encoded, Schema, User
from fedmf.data.schema_file import read_schema
from fedmf.data.table_reader import open_table, table_files
from fedmf.data.tokens import Vocabulary, evenly, next_tokens, padded, public_vocabulary
from fedmf.values import Field

_log = logging.getLogger("fedmf")
_RANGE: Final = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_MOST_CLASSES: Final = 1_000_000
#: Sequences of texts that are held out.
_MOST_TESTS: Final = 1_000
_ROWS: Final = 65_536
_READ: Final = "read off the rows: not for private runs"
_FIXED: Final = "fixed by the reader; no statistic of the rows"
_TEST_PARTS: Final[dict[TestOwner, str]] = {
    "training users": "rows of the training users themselves; without noise their evaluation is not private",
    "held-out users": "all rows of people who are no users of the run",
    "nobody": "rows that no user of the run owns",
}


@dataclass(eq=False)
class Rows:
    """Rows as they were read, one batch after the other.

    Args:
        features: arrays of shape (rows, d), NaN in a row with a cell that cannot be read; or lists of texts.
        labels: arrays of numbers, shape (rows, L), or Arrow arrays of text.
        users: Arrow arrays of ids; none without a column of users.
    """

    features: list[Any] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    users: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.features))


@dataclass(frozen=True)
class Table(SpreadOptions):
    """Rows of a file or of all tables of a folder, CSV, JSON lines (.gz too) or Parquet, spread over users.

    Labels are classes (``label_column``), or numbers (``label_columns``), or the tokens that follow in a text
    (``text_column`` without a label). Without feature columns all but label and user are features. A row of
    which a feature or the label is missing or cannot be read, or whose user is missing or not on the user
    list, counts for nobody; it changes nothing else. By a schema numbers are scaled, categories coded, and
    columns, classes and shape declared; as labels numbers are scaled too, and a category with two values is
    0 or 1.

    >>> Table(path="rows.csv", test_split="users")
    Traceback (most recent call last):
    ValueError: user_column must be named with test_split 'users'; got none.
    """

    kind: ClassVar[str] = "table"
    path: Annotated[str, Field("where the rows are: a file, or a folder of them")] = ""
    user_column: Annotated[str, Field("name of the column that says whose row it is")] = ""
    user_list: Annotated[
        str, Field("file with the ids of all users; needed for privacy with partition by-user")
    ] = ""
    test_split: Annotated[
        Literal["auto", "users", "examples"],
        Field("test part: all rows of some users, some examples, or auto: users with partition by-user"),
    ] = "auto"
    schema: Annotated[
        str, Field("file that declares columns, bounds and classes; without it numbers are taken as they are")
    ] = ""
    feature_columns: Annotated[tuple[str, ...], Field("names of the feature columns")] = ()
    label_column: Annotated[
        str, Field("name of the label column; none beside texts or numbers as labels, else label")
    ] = ""
    label_columns: Annotated[
        tuple[str, ...], Field("names of columns of numbers as labels: for regression, or several of 0 and 1")
    ] = ()
    class_names: Annotated[
        tuple[str, ...], Field("the labels in order; 0..61 stands for these integers; needed for privacy")
    ] = ()
    input_shape: Annotated[
        tuple[int, ...], Field("shape of an example, channels first; needed for privacy", ge=1)
    ] = ()
    text_column: Annotated[str, Field("name of the column of texts, whose tokens are the features")] = ""
    length: Annotated[int, Field("tokens of a sequence", "T", ge=1)] = 64
    most_sequences: Annotated[
        int | None, Field("most sequences of a user, evenly spaced over its texts", ge=1)
    ] = None
    vocabulary: Annotated[
        Literal["bytes", "words", "bpe"], Field("bytes, or words or bpe from a public text or tokenizer")
    ] = "bytes"
    vocabulary_path: Annotated[
        str, Field("public text or tokenizer.json of the vocabulary; needed for privacy")
    ] = ""
    vocabulary_size: Annotated[int, Field("most tokens of a vocabulary made from texts", ge=258)] = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.label_column or self.label_columns or self.text_column):
            object.__setattr__(self, "label_column", "label")
        if not self.path:
            raise ValueError(f"path (of the data) must name what dataset {self.kind!r} reads; got none.")
        people = {
            "partition 'by-user'": self.partition == "by-user",
            "test_split 'users'": self.test_split == "users",
            "a user list": bool(self.user_list),
        }
        if not self.user_column and any(people.values()):
            asked = next(what for what, needed in people.items() if needed)
            raise ValueError(f"user_column must be named with {asked}; got none.")
        for name in ("feature_columns", "label_columns", "class_names"):
            if len(set(getattr(self, name))) < len(getattr(self, name)) or "" in getattr(self, name):
                raise ValueError(f"{name} must be different names; got {', '.join(getattr(self, name))}.")
        if self.class_names and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(f"class_names must be two or more different labels; got {self.class_names}.")
        if self.label_columns and (self.label_column or self.class_names or self.text_column):
            raise ValueError(
                "label_columns must be left out with text_column, label_column or class_names: labels are "
                f"numbers, or classes; got {', '.join(self.label_columns)}."
            )
        if self.label_columns and not (self.feature_columns or self.schema):
            raise ValueError("feature_columns (of the data) must be named with label_columns; got none.")
        if self.label_columns and self.partition in ("dirichlet", "shards"):
            raise ValueError(f"partition must not be one by classes with numbers; got {self.partition!r}.")
        if self.text_column and (self.input_shape or self.schema):
            raise ValueError(
                "input_shape and schema must be left out with text_column, whose tokens are read."
            )

    # What is declared.

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The labels that the configuration declares, ranges written out.

        Raises:
            ValueError: a range of too many numbers, or of none.
        """
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

    @cached_property
    def declared(self) -> Schema | None:
        """What the file of the schema says; None without one.

        Raises:
            ValueError: it cannot be read, or declares user or labels otherwise.
        """
        if not self.schema:
            return None
        schema = read_schema(Path(self.schema).expanduser())
        if self.user_column:
            schema.column(self.user_column, User, "user_column")
        if self.label_column:
            known = schema.column(self.label_column, Category, "label_column").categories
            if self.class_names and self.classes != known:
                raise ValueError(
                    "class_names must be left out, or the categories of the label column in the schema, "
                    f"{', '.join(known[:20])}; got {', '.join(self.class_names)[:200]}."
                )
        for name in self.label_columns:
            column = schema.column(name, Encoded, "label_columns")
            if isinstance(column, Category) and len(column.categories) > 2:
                raise ValueError(
                    f"label_columns must be numbers or categories with two values; got {name!r} with "
                    f"{len(column.categories)}."
                )
        return schema

    @property
    def known_classes(self) -> tuple[str, ...]:
        """The labels by schema or configuration; none where they are read off the rows."""
        if self.declared and self.label_column:
            return self.declared.column(self.label_column, Category, "label_column").categories
        return self.classes

    def check_labels_of_0_or_1(self) -> None:
        """Whether the schema, if there is one, leaves no labels but 0 and 1, whatever the rows hold.

        Raises:
            ValueError: a label column is no category with two values.
        """
        columns = {name: self.declared.columns[name] for name in self.label_columns} if self.declared else {}
        for name, column in columns.items():
            if not isinstance(column, Category):
                raise ValueError(
                    "label_columns must be categories with two values for labels of 0 or 1 by a schema; got "
                    f"{name!r}, a column of kind {column.kind!r}."
                )

    @property
    def _others(self) -> list[str]:
        """Columns that are no features."""
        return [name for name in (self.label_column, *self.label_columns, self.user_column) if name]

    def features_of(self, present: Sequence[str] = ()) -> tuple[str, ...]:
        """The feature columns: those that are named, else all that may be.

        Args:
            present: all columns of the table, for where nothing is declared.

        Raises:
            ValueError: there is none, or one is that of the labels.
        """
        every = self.declared.named(Encoded) if self.declared else present
        names = self.feature_columns or tuple(name for name in every if name not in self._others)
        names = (self.text_column,) if self.text_column else names
        if shared := [name for name in names if name in self._others]:
            raise ValueError(
                f"feature columns must be none of label_column or label_columns; got {shared[0]!r}."
            )
        if not names:
            raise ValueError("feature_columns must be others than label and user; got none.")
        return names

    @property
    def holds_out_users(self) -> bool:
        """Whether all rows of some users are held out, rather than some rows."""
        return self.test_split == "users" or (self.test_split == "auto" and self.partition == "by-user")

    @property
    def test_owner(self) -> TestOwner:
        """Whose the test part is; where users are made up, none of them ever owned its rows."""
        if self.partition != "by-user":
            return "nobody"
        return "held-out users" if self.holds_out_users else "training users"

    def undeclared(self) -> tuple[str, ...]:
        """See `DatasetOptions.undeclared`."""
        needed = ["class_names", "input_shape", "feature_columns"]
        if self.text_column:
            needed = ["class_names"] * bool(self.label_column) + ["vocabulary_path"] * (
                self.vocabulary != "bytes"
            )
        elif self.schema or self.label_columns:
            needed = []
        needed += ["user_list"] * (self.partition == "by-user" or self.holds_out_users)
        return tuple(name for name in needed if not getattr(self, name))

    def example_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.example_inputs`."""
        by_schema = f"declared: schema {self.schema}" if self.schema else ""
        inputs = []
        if self.label_columns:
            names = ", ".join(self.label_columns)
            inputs.append(PublicInput("labels", names, by_schema or "declared: label_columns"))
        elif self.label_column:
            names = f"categories of {self.label_column}" if self.schema else ", ".join(self.class_names)
            source = by_schema or ("declared: class_names" if names else _READ)
            inputs.append(PublicInput("classes", names or "the labels that occur", source))
        if self.text_column:
            known = bool(self.vocabulary_path) or self.vocabulary == "bytes"
            words = str(self.tokens()) if known else f"{self.vocabulary}, of the rows"
            source = f"public file {self.vocabulary_path}" if self.vocabulary_path else "fixed"
            inputs.append(PublicInput("vocabulary", words, source if known else _READ))
            inputs.append(PublicInput("shape of an example", str(self.length), "configuration"))
            return tuple(inputs)
        shape = self.input_shape or ((len(self.feature_columns),) if self.label_columns else ())
        source = by_schema or ("declared: columns and input_shape" if shape else _READ)
        inputs.append(PublicInput("shape of an example", in_words(shape) or "as its columns are", source))
        coded = "(x − center)/scale, clipped into bounds; categories coded"
        scaled = coded if self.schema else self.normalisation
        return (*inputs, PublicInput("normalisation", scaled, by_schema or _FIXED))

    @property
    def normalisation(self) -> str:
        """How values become features without a schema."""
        return "numbers as they are, in float32"

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.public_inputs`."""
        made = (
            "computed from all labels"
            if self.partition in ("dirichlet", "shards")
            else "made from their number"
        )
        dealt = f"{made} and the seed: who owns which row is taken as public"
        owners = self.made_up_owners("number of rows of each", dealt)
        if self.partition == "by-user":
            people = self.user_list or "the user column: not for private runs"
            counted = "counted in the rows; a user's size decides that user's own batches and update only"
            dealt = f"column {self.user_column}: a row is its user's"
            owners = (
                PublicInput("users", str(self.users), f"configuration, checked against {people}"),
                PublicInput("user ids", "those of the user list, in its order", people),
                PublicInput("sizes of users", "number of rows of each", counted),
            )
        drawn = "who is held out" if self.holds_out_users else "which rows are held out"
        base = (
            "the user list"
            if self.user_list
            else "the users"
            if self.holds_out_users
            else "the number of rows"
        )
        source = f"{drawn} depends on {base}, test_fraction and the public seed"
        return (
            *owners,
            *self.example_inputs(),
            PublicInput("partition", self.partition, dealt),
            PublicInput("test part", self.test_part, source),
        )

    @property
    def test_part(self) -> str:
        """What the test part is, in words."""
        return _TEST_PARTS[self.test_owner]

    def tokens(self, texts: tuple[bytes, ...] = ()) -> Vocabulary:
        """The vocabulary.

        Args:
            texts: what it is made from where nothing public is named.

        Raises:
            ValueError: the public file cannot be used, or the library tokenizers is not there.
        """
        path = Path(self.vocabulary_path).expanduser() if self.vocabulary_path else None
        return public_vocabulary(self.vocabulary, path, texts, self.vocabulary_size)

    def listed_users(self, held_out: bool) -> tuple[str, ...]:
        """The ids of the user list in its order; none without a user list.

        Args:
            held_out: whether some of them are held out.

        Raises:
            ValueError: an unreadable user list, or ``users`` is not how many of it are left to train.
        """
        if not self.user_list:
            return ()
        names = read_user_list(Path(self.user_list).expanduser(), self.user_column)
        gone = round(self.test_fraction * len(names)) if held_out else 0
        if self.partition == "by-user" and len(names) - gone != self.users:
            raise ValueError(
                f"N (users) must be {len(names) - gone} with this user_list: it names {len(names)}, of whom "
                f"{gone} are held out; got {self.users}."
            )
        return names

    # Reading.

    def batches(self, optional: Sequence[str] = ()) -> Iterator[Mapping[str, Any]]:
        """Columns of all files by name, some rows at a time.

        Args:
            optional: columns that need not be there though a schema declares them, and are not read.

        Raises:
            ValueError: nothing readable there, or other columns than are asked for.
        """
        features: tuple[str, ...] = ()
        for file in table_files(Path(self.path).expanduser()):
            with open_table(file) as table:
                if self.declared:
                    self.declared.check_header(table.names, str(file), optional)
                features = features or self.features_of(table.names)
                table.select([*features, *(name for name in self._others if name not in optional)])
                while (batch := table.read(_ROWS)) is not None:
                    yield batch.columns

    def read(self, batches: Iterable[Mapping[str, Any]]) -> Rows:
        """Rows of batches of columns.

        Raises:
            ValueError: no rows, or a column of a type that holds no numbers or no names. No value of a row
                raises.

        Guarantees: with classes, users and shape declared, what becomes of a row depends on that row alone.
        """
        rows = Rows()
        for columns in batches:
            features = [name for name in columns if name not in self._others]
            rows.features.append(self._parsed({name: columns[name] for name in features}))
            if self.user_column in columns:
                rows.users.append(ids(columns[self.user_column], f"column {self.user_column!r}"))
            if self.label_columns:
                rows.labels.append(self._numbers(self.label_columns, columns, each_its_last=True))
            elif self.label_column:
                rows.labels.append(texts(columns[self.label_column], f"column {self.label_column!r}"))
        if not len(rows):
            raise ValueError(f"path must hold at least one row; got none in {self.path}.")
        return rows

    def _parsed(self, columns: Mapping[str, Any]) -> Any:
        """Features, shape (rows, d), float32, NaN in a row with a cell that cannot be read; or texts."""
        first = next(iter(columns.values()))
        if self.text_column:
            return [(cell or "").encode() for cell in texts(first).to_pylist()]
        if isinstance(first, np.ndarray):
            values = first
        elif len(columns) == 1 and self.declared is None and is_list(first.type):
            some = int(next((length for length in list_lengths(first) if length > 0), 1))
            values = lists_of_numbers(first, math.prod(self.input_shape) if self.input_shape else some)
        else:
            values = self._numbers(tuple(columns), columns)
        with np.errstate(over="ignore", invalid="ignore"):  # beyond float32: no finite number
            narrow = values.astype(np.float32)
        narrow[~np.isfinite(narrow).all(axis=1)] = np.nan
        return narrow

    def _numbers(
        self, names: Sequence[str], columns: Mapping[str, Any], each_its_last: bool = False
    ) -> NDArray[np.float64]:
        """Columns as numbers, by the schema as its coordinates, of each column all or the last one."""
        if self.declared is None:
            return np.stack([numbers(columns[name], f"column {name!r}") for name in names], axis=1)
        encoding = self.declared.encoding(names)
        z, valid = encoding.encode([columns[name] for name in names])
        z = np.where(valid[:, None], z, np.nan)
        return z[:, np.cumsum([len(one.endings) for one in encoding.columns]) - 1] if each_its_last else z

    def labelled(self, rows: Rows, classes: tuple[str, ...] = ()) -> tuple[NDArray[Any], tuple[str, ...]]:
        """(labels of rows, the classes): class numbers, −1 for none of them; or numbers, and no classes.

        Args:
            rows: as read.
            classes: that are known; none for those that are declared, or else occur.

        Raises:
            ValueError: fewer than two classes.
        """
        if self.label_columns:
            labels = np.concatenate(rows.labels).astype(np.float32)
            return (labels[:, 0] if len(self.label_columns) == 1 else labels), ()
        if not self.label_column:
            return np.zeros(len(rows), dtype=np.int64), ()
        if self.declared:
            column = self.declared.column(self.label_column, Category, "label_column")
            return np.concatenate([column.places(cells) for cells in rows.labels]), column.categories
        classes, labels = places(rows.labels, classes or self.classes, as_numbers=True)
        if len(classes) < 2:
            raise ValueError(f"label_column must hold at least two labels; got {', '.join(classes)}.")
        return labels, classes

    def load(self) -> Dataset:
        """See `DatasetOptions.load`; of one column of numbers as labels these have shape (examples,).

        Raises:
            ValueError: see `read` and `dataset_of`.
        """
        if not self.text_column:
            _log.warning(
                "%s: a row with a cell that is missing or cannot be read is left out.%s",
                self.path,
                ""
                if self.schema
                else " Numbers are features as they are; a schema scales them: fedmf schema.",
            )
        if self.user_column and self.partition not in ("by-user", "each-example"):
            _log.warning(
                "Users are made up (partition %r): rows of one person in column %r are spread over several, "
                "and what is protected is no person. Persons are users with partition 'by-user'.",
                self.partition,
                self.user_column,
            )
        people = self.listed_users(self.holds_out_users)
        return self.dataset_of(self.read(self.batches()), people)

    def dataset_of(
        self, rows: Rows, people: tuple[str, ...], tests: Rows | None = None, most_tests: int = _MOST_TESTS
    ) -> InMemoryDataset:
        """Spread rows over users and hold some out, unless there are rows for the test part.

        Args:
            rows: as read.
            people: on the user list; none without one.
            tests: of the test part; those of users of the run are left out where it is of held-out users.
            most_tests: how many of these, or sequences of texts held out, are used.

        Raises:
            ValueError: test_fraction holds out too little or too much, the partition or input_shape does not
                fit, or no row held out can be read.
        """
        labels, classes = self.labelled(rows)
        users, owner = places(rows.users, people, as_numbers=False)
        owner = owner if rows.users else np.zeros(len(rows), dtype=np.int64)
        purpose = 0x7E47 if self.text_column else 0x7AB2 if self.label_columns else 0x7AB1
        rng = np.random.default_rng([self.seed, purpose])
        classed = labels if classes else np.zeros(len(rows), dtype=np.int64)
        owned, user_ids, held = self.dealt(owner, users or ("",), classed, rng, tests is not None)
        if self.text_column:
            x, y, edges, size = self._sequences(rows, labels)
            own = [sequences_of(edges, mine) for mine in owned.keeping(classed >= 0)]
            owned = Partition.of([mine[evenly(mine.size, self.most_sequences)] for mine in own])
            chosen = sequences_of(edges, np.flatnonzero(held & (classed >= 0)))
            test_x, test_y = (part[chosen[evenly(chosen.size, most_tests)]] for part in (x, y))
        else:
            x, y, readable = _examples(rows, labels)
            owned, size = owned.keeping(readable), 0
            test_x, test_y, chosen = x, y, np.flatnonzero(held & readable)
            if tests is not None:
                test_x, test_y, good = _examples(tests, self.labelled(tests, classes)[0])
                if self.test_owner == "held-out users":
                    good &= places(tests.users, users, as_numbers=False)[1] < 0
                chosen = np.sort(rng.permutation(np.flatnonzero(good))[:most_tests])
            test_x, test_y = test_x[chosen], test_y[chosen]
        if not len(test_y):
            label = "a finite number" if self.label_columns else f"one of {', '.join(classes[:20])}"
            raise ValueError(
                f"test part must hold a row whose user is on the user list, whose label is {label} and whose "
                f"features can be read; got none of {self.path}. Are ids and labels written as they are "
                "declared, and numbers with a decimal point?"
            )
        dataset = InMemoryDataset(
            features=x,
            labels=y,
            owned=owned,
            user_ids=user_ids,
            test_features=test_x,
            test_labels=test_y,
            classes=len(classes),
            test_owner=self.test_owner,
            vocabulary=size,
        )
        return dataset.reshaped(self.input_shape) if self.input_shape else dataset

    def _sequences(
        self, rows: Rows, labels: NDArray[Any]
    ) -> tuple[torch.Tensor, torch.Tensor, NDArray[np.int64], int]:
        """(features, labels, edges, tokens): text r has the sequences edges[r], …, edges[r + 1] − 1."""
        texts = [text for part in rows.features for text in part]
        vocabulary = self.tokens(tuple(texts))
        parts = [
            (padded(vocabulary.encode(text), self.length), labels[row : row + 1])
            if self.label_column
            else next_tokens(vocabulary.encode(text), self.length)
            for row, text in enumerate(texts)
        ]
        x, y = (torch.from_numpy(np.concatenate(side)) for side in zip(*parts, strict=True))
        return x, y, np.cumsum([0, *(len(features) for features, _ in parts)]), vocabulary.size

    def dealt(
        self,
        owner: NDArray[np.int64],
        names: Sequence[str],
        labels: NDArray[np.int64],
        rng: np.random.Generator,
        tested: bool,
    ) -> tuple[Partition, Sequence[str], NDArray[np.bool_]]:
        """Hold rows out, and spread the others over users.

        Args:
            owner: place of each row's user among the names; −1 for nobody.
            names: of the users of the rows.
            labels: class of each row, for partitions by label; negative ones count as class 0.
            rng: public.
            tested: whether the test part is elsewhere, so that no row is held out.

        Returns:
            The rows of each user, the users' ids, and the mask of test rows.

        Raises:
            ValueError: test_fraction holds out too little or too much, or the partition does not fit.
        """
        users, tests = np.arange(len(names)), np.zeros(owner.size, dtype=bool)
        if tested:
            pass
        elif self.holds_out_users:
            gone = hold_out_users(len(names), self.test_fraction, rng)
            users, tests = np.setdiff1d(users, gone), np.isin(owner, gone)
        elif self.partition != "by-user":  # whose row it was must not decide what others own
            tests = hold_out_examples(np.zeros_like(owner), self.test_fraction, rng)
        elif self.user_list:
            tests = hold_out_of_each_user(owner, self.test_fraction, self.seed)
        else:
            tests = hold_out_examples(owner, self.test_fraction, rng)
        if self.partition == "by-user":
            owned = partition_by_owner(np.where(tests, -1, owner), users)
            return owned, tuple(names[int(u)] for u in users), tests
        trained = np.flatnonzero(~tests)
        parts = self.split(np.maximum(labels[trained], 0), rng)
        return Partition(trained[parts.order], parts.edges), NumberedUsers(self.users), tests


def _examples(rows: Rows, labels: NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor, NDArray[np.bool_]]:
    """Features, labels, and which rows can be read."""
    values = np.concatenate(rows.features)
    good = np.asarray(np.isfinite(np.column_stack([values, labels])).all(axis=1))
    if labels.dtype.kind == "i":
        good &= labels >= 0
    return torch.from_numpy(values), torch.from_numpy(labels), good


def places(
    chunks: Sequence[Any], known: Sequence[str], as_numbers: bool
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """(the names that there are, which of them each row has): −1 for a missing one, or none of them.

    Args:
        chunks: columns of text, one after the other.
        known: the names, in order; none for those that occur, sorted.
        as_numbers: whether to sort them as numbers if all are whole numbers.
    """
    column = arrow.chunked_array(chunks, arrow.large_string()).combine_chunks().dictionary_encode()
    words = column.dictionary.to_pylist()
    if not known:
        whole = as_numbers and all(word.removeprefix("-").isdecimal() for word in words)
        known = sorted(words, key=lambda word: (int(word), word) if whole else (0, word))
    place = {name: i for i, name in enumerate(known)}
    found = np.array([*(place.get(word, -1) for word in words), -1], dtype=np.int64)
    return tuple(known), found[column.indices.fill_null(-1).to_numpy(zero_copy_only=False)]


def sequences_of(edges: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sequences of some texts, one text after the other.

    Args:
        edges: text r has the sequences edges[r], …, edges[r + 1] − 1.
        rows: which texts.
    """
    parts = (np.arange(int(edges[row]), int(edges[row + 1])) for row in rows.tolist())
    return np.concatenate([np.arange(0), *parts])
