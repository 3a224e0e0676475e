"""Tables of your own rows as data sets: CSV, JSON lines or Parquet, with or without a schema.

Rows are read, encoded and marked as readable or not; then some are held out and the others are
spread over users. `Hub` and `OnNodes` differ in where rows come from.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as arrow
import torch
from numpy.typing import NDArray

from fedmf.data.cells import (
    ids,
    is_list,
    is_missing,
    lists_of_numbers,
    matrix_of,
    places,
    read_user_list,
    require_exact,
    require_numbers,
    texts,
    types,
)
from fedmf.data.dataset import (
    TEST_PARTS,
    Dataset,
    InMemoryDataset,
    NumberedUsers,
    TestOwner,
    readable,
)
from fedmf.data.dataset_options import PublicInput, SpreadOptions, in_words
from fedmf.data.partitions import Partition, hold_out, hold_out_of_each_user, partition_by_owner
from fedmf.data.row_counts import RowCounts, check_public_tests, counted
from fedmf.data.schema import Category, Encoded, Number, Schema, User
from fedmf.data.schema_file import read_schema
from fedmf.data.table_reader import JsonLinesTable, RowBatch, table_files
from fedmf.data.tokens import Vocabulary, evenly, next_tokens, padded, public_vocabulary
from fedmf.data.user_files import RowFiles, UserFiles, open_rows
from fedmf.values import Field

_log = logging.getLogger("fedmf")
_RANGE: Final = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_MOST_CLASSES: Final = 1_000_000
#: Largest number of sequences of texts that are held out.
_MOST_SEQUENCES: Final = 1_000


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table, read and encoded.

    Args:
        features: shape (rows, …), float32, NaN in a row with a cell that cannot be read; or a list
            of texts.
        labels: class numbers, shape (rows,), −1 for none of the classes; or numbers, shape (rows,)
            or (rows, L).
        users: ids as an Arrow array; None without a column of users.
        readable: mask of the rows with a label and features that can be read.
        faults: masks of the other rows by reason.
        columns: types of the columns, by name.
    """

    features: Any
    labels: torch.Tensor
    users: Any
    readable: NDArray[np.bool_]
    faults: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table(SpreadOptions):
    """Rows of CSV, JSON lines or Parquet files, spread over users.

    ``path`` is a file, packed (.gz) or not, or a folder of such files. Labels are the classes in
    ``class_names``, else numbers in one or several columns, else the next tokens of a text
    (``text_column`` without a label). A row is ignored if a feature or the label is missing or
    cannot be read, or if its user is missing or not on the user list; it changes nothing else.

    Public facts are declared: columns, classes, users. A schema declares columns and classes; by
    it, numbers are scaled and categories encoded. A single label column that it declares a category
    is a class. Other labels are numbers, which are scaled too; among several labels, a category
    with two values is 0 or 1.

    >>> columns = {"feature_columns": ("age",), "class_names": ("no", "yes")}
    >>> Table(path="rows.csv", test_split="users", **columns)
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
        tuple[str, ...],
        Field(
            "name of the label column, or names of several of numbers; default: label, or none"
            " with texts"
        ),
    ] = ()
    class_names: Annotated[
        tuple[str, ...],
        Field(
            "the classes in order; 0..61 stands for these integers; not with a schema, nor with"
            " numbers as labels"
        ),
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
    user_from: Annotated[
        Literal["column", "filename"],
        Field("filename: path is a folder with a file for each user, named after the user"),
    ] = "column"
    test_path: Annotated[
        str,
        Field(
            "public test part, instead of held-out rows: a file, or a folder as in path, without"
            " rows of users on the user list; not for hub"
        ),
    ] = ""

    #: Largest number of examples of a separate test part; None without a limit.
    most_tests: ClassVar[int | None] = None
    #: Whether labels may be numbers, rather than classes.
    takes_number_labels: ClassVar[bool] = True
    #: How values become features without a schema.
    normalization: ClassVar[str] = "numbers as they are, in float32"

    def __post_init__(self) -> None:
        super().__post_init__()
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
        if self.user_from == "filename" and not self.user_column:
            raise ValueError(
                "user_column must name the column that the names of files become (user_from"
                " 'filename'); got none."
            )
        if self.test_path and self.test_split != "auto":
            raise ValueError(
                "test_split must be left out with test_path, whose rows are the test part; got"
                f" {self.test_split!r}."
            )
        if self.schema and self.class_names:
            raise ValueError("class_names must be left out with schema.")
        if self.text_column:
            for name in ("input_shape", "schema"):
                if getattr(self, name):
                    raise ValueError(f"{name} must be left out with text_column.")
        self._check_labels()
        columns = [*self.feature_columns, *self._others]
        if self.text_column:
            columns.append(self.text_column)
        for what, names in (("columns", columns), ("class_names", self.class_names)):
            if len(set(names)) < len(names) or "" in names:
                raise ValueError(f"{what} must have different names; got {', '.join(names)}.")

    def _check_labels(self) -> None:
        """Give the label column its default, and reject labels and columns that are not declared.

        Raises:
            ValueError: a public fact is missing, or does not suit the others.
        """
        classes_only = bool(self.text_column) or not self.takes_number_labels
        if not self.label_column and not self.text_column:
            object.__setattr__(self, "label_column", ("label",))
            classes_only = True
        missing: list[str] = []
        if not (self.feature_columns or self.schema or self.text_column):
            missing.append("feature_columns")
        if classes_only and self.label_column and not (self.class_names or self.schema):
            missing.append("class_names")
        if missing:
            raise ValueError(
                f"{' and '.join(missing)} (of the data) must be declared; got none. Public facts"
                " are never derived from the rows."
            )
        if len(self.label_column) > 1 and (classes_only or self.class_names):
            raise ValueError(
                f"label_column must be one column with classes; got {', '.join(self.label_column)}."
            )
        if self.class_names and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(
                f"class_names must be two or more different labels; got {self.class_names}."
            )

    # Declarations.

    @property
    def schema_file(self) -> Path | None:
        if not self.schema:
            return None
        return Path(self.schema.partition("#")[0]).expanduser()

    @cached_property
    def declared(self) -> Schema | None:
        """The schema; None without one.

        Raises:
            ValueError: it cannot be read, or does not declare users and labels as such.
        """
        if self.schema_file is None:
            return None
        schema = read_schema(self.schema_file)
        if self.user_column:
            schema.column(self.user_column, User, "user_column")
        for name in self.label_column:
            column = schema.column(name, Encoded, "label_column")
            several = len(self.label_column) > 1
            if several and isinstance(column, Category) and len(column.categories) > 2:
                raise ValueError(
                    "label_column must be numbers or categories with two values if it names several"
                    f" columns; got {name!r} with {len(column.categories)}."
                )
        return schema

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes, ranges written out; none where labels are numbers or next tokens.

        Raises:
            ValueError: a range of too many numbers, or of none.
        """
        if self._category is not None:
            return self._category.categories
        names: list[str] = []
        for entry in self.class_names:
            ends = _RANGE.fullmatch(entry)
            if ends is None:
                names.append(entry)
                continue
            first = int(ends[1])
            last = int(ends[2])
            if not 0 <= last - first < _MOST_CLASSES:
                raise ValueError(
                    f"class_names must hold ranges of 1 to {_MOST_CLASSES} numbers; got {entry}."
                )
            names += [str(number) for number in range(first, last + 1)]
        return tuple(names)

    @property
    def _category(self) -> Category | None:
        """The category of a schema whose values are the classes; None if there is none."""
        if self.declared is None or len(self.label_column) != 1:
            return None
        column = self.declared.columns[self.label_column[0]]
        if isinstance(column, Category):
            return column
        return None

    @property
    def _has_number_labels(self) -> bool:
        return bool(self.label_column) and not self.classes

    @property
    def _others(self) -> list[str]:
        """Names of the columns that are not features."""
        names = list(self.label_column)
        if self.user_column:
            names.append(self.user_column)
        return names

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The feature columns: those that are named, or with a schema all possible ones.

        Raises:
            ValueError: there is none.
        """
        if self.text_column:
            return (self.text_column,)
        names = self.feature_columns
        if self.declared and not names:
            encoded = self.declared.named(Encoded)
            names = tuple(name for name in encoded if name not in self._others)
        if not names:
            raise ValueError("feature_columns must be others than label and user; got none.")
        return names

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example: as declared, else a vector of the columns.

        Raises:
            ValueError: another number of entries than the columns have, where these are no lists.
        """
        width = len(self.features)
        if self.declared:
            width = len(self.declared.encoding(self.features).coordinates)
        shape = self.input_shape or (width,)
        if math.prod(shape) != width and (self.declared or width > 1):
            raise ValueError(
                f"input-shape must multiply to the {width} entries of an example; got {shape}."
            )
        return shape

    @property
    def holds_out_users(self) -> bool:
        """Whether all rows of some users are held out, rather than some rows or none."""
        if self.test_path:
            return False
        if self.test_split == "auto":
            return self.partition == "by-user"
        return self.test_split == "users"

    @property
    def test_owner(self) -> TestOwner:
        """The owner of the test part; simulated users never own its rows."""
        if self.test_path or self.partition != "by-user":
            return "nobody"
        if self.holds_out_users:
            return "held-out users"
        return "training users"

    def example_inputs(self) -> tuple[PublicInput, ...]:
        declared = f"declared: schema {self.schema}" if self.schema else "declared"
        inputs: list[PublicInput] = []
        if self.class_names:
            inputs.append(PublicInput("classes", ", ".join(self.class_names), declared))
        elif self.label_column and not self.takes_number_labels:
            categories = f"categories of {self.label_column[0]}"
            inputs.append(PublicInput("classes", categories, declared))
        elif self.label_column:
            inputs.append(PublicInput("labels", ", ".join(self.label_column), declared))
        if self.text_column:
            source = f"public file {self.vocabulary_path}" if self.vocabulary_path else "fixed"
            inputs.append(PublicInput("vocabulary", str(self.tokens), source))
            inputs.append(PublicInput("shape of an example", str(self.length), "configuration"))
            return tuple(inputs)
        shape = "as its columns are"
        if self.input_shape or not self.schema:
            shape = in_words(self.shape)
        inputs.append(PublicInput("shape of an example", shape, declared))
        if self.schema:
            scaled = "(x − center)/scale, clipped into bounds; categories coded"
            inputs.append(PublicInput("normalization", scaled, declared))
        else:
            fixed = "fixed by the reader; no statistic of the rows"
            inputs.append(PublicInput("normalization", self.normalization, fixed))
        return tuple(inputs)

    @property
    def dealt(self) -> str:
        if self.partition == "by-user":
            if self.user_from == "filename":
                return "names of files: a file is its user's"
            return f"column {self.user_column}: a row is its user's"
        basis = "made from their number"
        if self.partition == "dirichlet":
            basis = "computed from all labels"
        return f"{basis} and the seed: who owns which row is taken as public"

    @property
    def test_part(self) -> tuple[str, str]:
        if self.test_path:
            return TEST_PARTS[self.test_owner], f"public file {self.test_path}"
        drawn = "who is held out" if self.holds_out_users else "which rows are held out"
        base = "the user list" if self.user_list else "the number of rows"
        source = f"{drawn} depends on {base}, test_fraction and the public seed"
        return TEST_PARTS[self.test_owner], source

    def user_inputs(self) -> tuple[PublicInput, ...]:
        if self.partition != "by-user":
            return super().user_inputs()
        checked = f"configuration, checked against {self.user_list}"
        return (
            PublicInput("users", str(self.users), checked),
            PublicInput("user ids", "as on the user list, in its order", self.user_list),
        )

    @cached_property
    def tokens(self) -> Vocabulary:
        """The vocabulary.

        Raises:
            ValueError: the public file cannot be used, or the library tokenizers is missing.
        """
        return public_vocabulary(self.vocabulary_path)

    def listed_users(self, held_out: bool) -> tuple[str, ...]:
        """Return the ids of the user list in its order; none without a user list.

        Args:
            held_out: whether some of them are held out.

        Raises:
            ValueError: the user list is unreadable, or ``users`` is not the number of ids that
                are left to train.
        """
        if not self.user_list:
            return ()
        names = read_user_list(Path(self.user_list).expanduser(), self.user_column)
        gone = round(self.test_fraction * len(names)) if held_out else 0
        if gone == len(names):
            raise ValueError(
                f"test_fraction must leave users to train on; got {self.test_fraction}, with which"
                f" all {gone} users are held out."
            )
        if self.partition == "by-user" and len(names) - gone != self.users:
            raise ValueError(
                f"N (users) must be {len(names) - gone} with this user_list: it names {len(names)},"
                f" of whom {gone} are held out; got {self.users}."
            )
        return names

    # Reading.

    def batches(
        self, unread: Sequence[str] = (), optional: Sequence[str] = ()
    ) -> Iterator[RowBatch]:
        """Yield the rows of all files, some at a time.

        Args:
            unread: columns that are not read, and may be absent though a schema declares them.
            optional: columns whose cells are missing in a file without them.

        Raises:
            ValueError: there is nothing readable, or a column is missing or not declared.
        """
        names = [*self.features, *(name for name in self._others if name not in unread)]
        lists: Sequence[str] = ()
        if self.declared is None and len(self.features) < math.prod(self.shape):
            lists = self.features
        for source in self._sources():
            with open_rows(source) as table:
                absent: list[str] = []
                if not isinstance(table, JsonLinesTable):  # whose objects may lack columns
                    absent = [name for name in optional if name not in table.names]
                    if self.declared:
                        self.declared.check_header(table.names, str(source), [*unread, *optional])
                table.select([name for name in names if name not in absent], lists)
                for batch in table.batches():
                    cells = arrow.nulls(batch.rows, arrow.large_string())
                    columns = {**batch.columns, **dict.fromkeys(absent, cells)}
                    yield replace(batch, columns=columns)

    def _sources(self) -> Sequence[RowFiles]:
        """Return the files, or the folder with one for each user."""
        path = Path(self.path).expanduser()
        if self.user_from == "filename":
            return [UserFiles(path, self.user_column)]
        return table_files(path)

    def read(self, batches: Iterable[RowBatch]) -> Rows:
        """Return the rows of batches.

        Raises:
            ValueError: there are no rows, or a column has a type that holds no numbers or no
                names. No value of a row raises.

        Guarantees: the result for a row depends on that row alone.
        """
        features: list[Any] = []
        labels: list[NDArray[Any]] = []
        users: list[Any] = []
        parts: list[Mapping[str, NDArray[np.bool_]]] = []
        columns: dict[str, str] = {}
        count = 0
        for batch in batches:
            if not columns:
                columns = self._types(batch.columns)
                self._check_ids(batch.columns)
            measured = self._features(batch.columns)
            labels.append(self._labels(batch.columns, batch.rows))
            parts.append(self._faults(batch, measured, labels[-1]))
            if not self.text_column:
                measured[~np.isfinite(measured).all(axis=1)] = np.nan
            features.append(measured)
            if self.user_column in batch.columns:
                users.append(ids(batch.columns[self.user_column], f"column {self.user_column!r}"))
            count += batch.rows
        if not count:
            raise ValueError(f"path must hold at least one row; got none in {self.path}.")
        y = torch.from_numpy(np.concatenate(labels))
        if self.text_column:
            x = list(chain.from_iterable(features))
            good = readable({}, y, len(self.classes))
        else:
            x = torch.from_numpy(np.concatenate(features)).reshape(-1, *self.shape)
            good = readable(x, y, len(self.classes))
        faults = _joined(parts, [len(part) for part in labels])
        for mask in faults.values():
            good &= ~mask
        return Rows(x, y, arrow.chunked_array(users) if users else None, good, faults, columns)

    def _check_ids(self, columns: Mapping[str, Any]) -> None:
        """Reject ids of a floating type that does not hold those on the user list.

        Raises:
            ValueError: an id of the list is too large for the type.
        """
        if self.user_list and self.user_column in columns:
            column = columns[self.user_column]
            if types.is_floating(column.type):
                listed = read_user_list(Path(self.user_list).expanduser(), self.user_column)
                require_exact(column, listed, f"column {self.user_column!r}")

    def _types(self, columns: Mapping[str, Any]) -> dict[str, str]:
        """Return the type of each column: as declared in the schema, else as it is stored."""
        kinds: dict[str, str] = {}
        for name, column in columns.items():
            if self.declared is not None and name in self.declared.columns:
                kinds[name] = self.declared.columns[name].kind
            elif isinstance(column, np.ndarray):
                kinds[name] = f"examples {in_words(self.shape)}"
            else:
                kinds[name] = str(column.type).replace("large_string", "text")
        return kinds

    def _faults(
        self, batch: RowBatch, features: Any, labels: NDArray[Any]
    ) -> Mapping[str, NDArray[np.bool_]]:
        """Return masks of the rows of a batch that cannot be read, by reason.

        Args:
            batch: the rows.
            features: numbers, shape (rows, d), NaN or infinite where a cell cannot be read; or
                texts.
            labels: numbers, or class numbers.
        """
        faults: dict[str, NDArray[np.bool_]] = {}
        is_row = np.ones(batch.rows, dtype=bool)
        for place, reason in batch.faults.items():
            faults.setdefault(reason, np.zeros(batch.rows, dtype=bool))[place] = True
            is_row[place] = False
        bad: dict[str, NDArray[np.bool_]] = {}
        if not self.text_column:
            finite = np.isfinite(features)
            owners = np.array(self._owners(features.shape[1]))
            for name in self.features:
                bad[name] = ~finite[:, owners == name].all(axis=1)
        if self.classes:
            bad[self.label_column[0]] = labels < 0
        elif self.label_column:
            finite = np.isfinite(labels).reshape(batch.rows, -1)
            for name, column in zip(self.label_column, finite.T, strict=True):
                bad[name] = ~column
        for name, mask in bad.items():
            mask &= is_row
            if not mask.any():
                continue
            absent = np.zeros(batch.rows, dtype=bool)
            if not isinstance(batch.columns[name], np.ndarray):
                absent = is_missing(batch.columns[name])
            for reason, rows in (("missing", absent), (self._fault_of(name), ~absent)):
                if (mask & rows).any():
                    faults[f"{name}: {reason}"] = mask & rows
        return faults

    def _owners(self, width: int) -> Sequence[str]:
        """Return the column of each of so many entries of an example."""
        if self.declared is not None:
            return self.declared.encoding(self.features).owners
        if len(self.features) == width:
            return self.features
        return width * self.features

    def _fault_of(self, name: str) -> str:
        """Return the fault of a cell that is there and cannot be read."""
        if self.classes and name in self.label_column:
            return "none of the classes"
        if self.declared is not None and isinstance(self.declared.columns[name], Category):
            return "none of its categories"
        if self.input_shape and name in self.features and len(self.features) == 1:
            return f"not {in_words(self.shape)} finite numbers"
        return "not a finite number"

    def _features(self, columns: Mapping[str, Any]) -> Any:
        """Return features, shape (rows, d), float32, or texts.

        Entries are NaN or infinite where a cell cannot be read.
        """
        first = columns[self.features[0]]
        if self.text_column:
            return texts(first).fill_null("").cast(arrow.large_binary()).to_pylist()
        if isinstance(first, np.ndarray):
            values = first
        elif len(self.features) == 1 and self.declared is None and is_list(first.type):
            values = lists_of_numbers(first, math.prod(self.shape))
        else:
            values = self._numbers(self.features, columns)
        return _narrow(values)

    def _labels(self, columns: Mapping[str, Any], rows: int) -> NDArray[Any]:
        """Return numbers, or class numbers with −1 for none of the classes; zeros if not read."""
        is_read = set(self.label_column) <= columns.keys()
        if not self.label_column or not (is_read or self._has_number_labels):
            return np.zeros(rows, dtype=np.int64)
        if not is_read:
            labels = np.zeros((rows, len(self.label_column)), dtype=np.float32)
            return labels[:, 0] if len(self.label_column) == 1 else labels
        if self._has_number_labels:
            # The last coordinate of a category with two values is 1 for the second one.
            parts = [self._numbers([name], columns)[:, -1] for name in self.label_column]
            labels = _narrow(np.stack(parts, axis=1))
            return labels[:, 0] if len(parts) == 1 else labels
        (name,) = self.label_column
        cells = texts(columns[name], f"column {name!r}")
        if self._category is not None:
            return self._category.places(cells)
        return places(cells, self.classes)

    def _numbers(self, names: Sequence[str], columns: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return columns as numbers, or with a schema as its coordinates, shape (rows, d)."""
        if self.declared is None:
            return matrix_of(columns, names)
        encoding = self.declared.encoding(names)
        for name, column in zip(names, encoding.columns, strict=True):
            if isinstance(column, Number):
                require_numbers(columns[name], f"column {name!r}")
        measured = encoding.measure([columns[name] for name in names])
        z, _ = encoding.encode(measured)
        return np.where(np.isnan(measured), np.nan, z)

    def of_new_rows(self, path: Path) -> tuple[InMemoryDataset, Rows]:
        """Return the rows of other files, encoded as for training, as a test part without users.

        Only the feature columns are read; others that the schema declares may be absent. Labels are
        zeros. A row that cannot be read is a row of the test part, too, and not readable.

        Args:
            path: a file, or a folder of files.

        Raises:
            ValueError: as `batches` and `read`.
        """
        source = replace(self, path=str(path), user_from="column")
        unread = list(self._others)
        if self.declared is not None:
            unread = [name for name in self.declared.columns if name not in self.features]
        rows = source.read(source.batches(unread))
        x = rows.features
        vocabulary = 0
        if self.text_column:
            vocabulary = self.tokens.size
            texts_as_tokens = [padded(self.tokens.encode(text), self.length) for text in x]
            x = torch.from_numpy(np.concatenate(texts_as_tokens))
        dataset = InMemoryDataset(
            features=x[:0],
            labels=rows.labels[:0],
            owned=Partition(np.arange(0), np.zeros(1, dtype=np.int64)),
            user_ids=(),
            test_features=x,
            test_labels=rows.labels,
            classes=len(self.classes),
            vocabulary=vocabulary,
        )
        return dataset, rows

    # Dividing.

    def load(self) -> Dataset:
        """Read the rows, hold some out and spread the others over users.

        Raises:
            ValueError: `read` or `dataset_of` raises, or the partition is by classes and labels are
                numbers.
        """
        if self.partition == "dirichlet" and self._has_number_labels:
            raise ValueError(
                f"partition must not be one by classes with numbers; got {self.partition!r}."
            )
        if self.user_column and self.partition not in ("by-user", "each-example"):
            _log.warning(
                "Users are simulated (partition %r): rows of one person in column %r are spread"
                " over several users, and a user is not a person. Set partition 'by-user' so that"
                " persons are users.",
                self.partition,
                self.user_column,
            )
        people = self.listed_users(self.holds_out_users)
        rows = self.read(self.batches())
        tests = None
        if self.test_path:
            tests = self.public_rows(people)
        return self.dataset_of(rows, people, tests)

    def public_rows(self, people: Sequence[str]) -> Rows:
        """Return the rows of ``test_path``, which may lack the user column.

        Args:
            people: ids on the user list; none without one.

        Raises:
            ValueError: `batches` or `read` raises, no row can be read, or a row belongs to one of
                these people.
        """
        user_from = self.user_from
        if not Path(self.test_path).expanduser().is_dir():
            user_from = "column"
        source = replace(self, path=self.test_path, user_from=user_from)
        users = [self.user_column] if self.user_column else []
        rows = source.read(source.batches(optional=users))
        if not rows.readable.any():
            raise ValueError(f"test_path must hold a readable row; got none in {self.test_path}.")
        if people and (places(rows.users, people) >= 0).any():
            raise ValueError(
                "test_path (public rows) must not hold rows of users on the user list; got some in"
                f" {self.test_path}. Remove them; if these ids are other people's, rename them."
            )
        return rows

    def chosen_tests(self, tests: Rows, people: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of a separate test part that count, and log how many do not.

        Args:
            tests: its rows.
            people: ids on the user list; none without one.

        Raises:
            ValueError: it is public, and fewer than half of its rows count.
        """
        public = self._public_tests(tests, people)
        chosen = np.flatnonzero(public & tests.readable)
        if chosen.size and self.test_owner != "training users":
            left_out = counted(tests.faults, public)
            place = self.test_path or f"split 'test' of {self.path}"
            check_public_tests(int(public.sum()), chosen.size, left_out, place)
        return chosen

    def dataset_of(
        self, rows: Rows, people: Sequence[str], tests: Rows | None = None
    ) -> InMemoryDataset:
        """Spread rows over users, and hold some out unless there are rows for the test part.

        Args:
            rows: all rows, as read.
            people: ids on the user list; none without one.
            tests: rows of the test part; those of users of the run are left out if it belongs to
                held-out users.

        Raises:
            ValueError: test_fraction holds out too little or too much, the partition does not fit,
                or no row of the test part can be read; or `chosen_tests` raises.
        """
        purpose = 0x7AB1
        if self.text_column:
            purpose = 0x7E47
        elif self._has_number_labels:
            purpose = 0x7AB2
        rng = np.random.default_rng([self.seed, purpose])
        owned, user_ids, held = self._dealt(rows, people, rng, tests is not None)
        owned = owned.keeping(rows.readable)
        if tests is None:
            tests = rows
            chosen = np.flatnonzero(held & rows.readable)
        else:
            chosen = self.chosen_tests(tests, people)
            chosen = np.sort(rng.permutation(chosen)[: self.most_tests])
        x = rows.features
        y = rows.labels
        test_x = tests.features
        test_y = tests.labels
        vocabulary = 0
        if self.text_column:
            vocabulary = self.tokens.size
            x, y, of_texts = self._sequences(rows)
            owned = Partition.of([self._spaced(of_texts.rows(of_user)) for of_user in owned])
            test_x = x
            test_y = y
            if tests is not rows:
                test_x, test_y, of_texts = self._sequences(tests)
            chosen = of_texts.rows(chosen)
            chosen = chosen[evenly(chosen.size, _MOST_SEQUENCES)]
        if not chosen.size:
            label = "a finite number"
            if self.classes:
                label = f"one of {', '.join(self.classes[:20])}"
            raise ValueError(
                f"test part must hold a row with a user on the user list, a label that is {label}"
                f" and readable features; got none of {self.path}. Check the spelling of ids and"
                " labels, that numbers have a decimal point, and that class_names are declared if"
                " labels are names."
            )
        return InMemoryDataset(
            features=x,
            labels=y,
            owned=owned,
            user_ids=user_ids,
            test_features=test_x[chosen],
            test_labels=test_y[chosen],
            classes=len(self.classes),
            test_owner=self.test_owner,
            vocabulary=vocabulary,
            row_counts=RowCounts(
                rows=len(rows.labels),
                examples=owned.order.size,
                users=len(user_ids),
                users_without_examples=int((owned.sizes == 0).sum()),
                test_rows=int(chosen.size),
                columns=rows.columns,
                left_out=self._left_out(rows, people),
            ),
        )

    def _left_out(self, rows: Rows, people: Sequence[str]) -> dict[str, int]:
        """Return how many rows do not count, by reason."""
        everybody = np.ones(len(rows.labels), dtype=bool)
        reasons = counted(rows.faults, everybody)
        if not people:
            return reasons
        named = rows.users.is_valid().to_numpy()
        strangers = {
            f"{self.user_column}: no user id": ~named,
            f"{self.user_column}: not on the user list": named & (places(rows.users, people) < 0),
        }
        return reasons | counted(strangers, everybody)

    def _public_tests(self, tests: Rows, people: Sequence[str]) -> NDArray[np.bool_]:
        """Return which rows of a separate test part may be used, whatever they hold."""
        if self.test_owner != "held-out users":
            return np.ones(len(tests.labels), dtype=bool)
        return (places(tests.users, people) < 0) & tests.users.is_valid().to_numpy()

    def _sequences(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, Partition]:
        """Return features and labels of sequences of tokens, and those of each text."""
        features: list[NDArray[np.int64]] = []
        labels: list[NDArray[np.int64]] = []
        edges = [0]
        for row, text in enumerate(rows.features):
            tokens = self.tokens.encode(text)
            if self.label_column:
                x = padded(tokens, self.length)
                y = rows.labels[row : row + 1].numpy()
            else:
                x, y = next_tokens(tokens, self.length)
            features.append(x)
            labels.append(y)
            edges.append(edges[-1] + len(x))
        x = torch.from_numpy(np.concatenate(features))
        y = torch.from_numpy(np.concatenate(labels))
        return x, y, Partition(np.arange(len(x)), np.array(edges))

    def _spaced(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return at most ``most_sequences`` sequences of a user, evenly spaced."""
        return sequences[evenly(sequences.size, self.most_sequences)]

    def _dealt(
        self, rows: Rows, people: Sequence[str], rng: np.random.Generator, has_tests: bool
    ) -> tuple[Partition, Sequence[str], NDArray[np.bool_]]:
        """Hold rows out, and spread the others over users.

        Args:
            rows: rows as read; those without a class count as class 0 for partitions by label.
            people: ids on the user list.
            rng: public generator.
            has_tests: whether there is a separate test part, so that no row is held out.

        Returns:
            The rows of each user, the users' ids, and the mask of test rows.
        """
        count = len(rows.labels)
        owner = np.full(count, -1)
        if people:
            owner = places(rows.users, people)
        users = np.arange(len(people))
        held = np.zeros(count, dtype=bool)
        if not has_tests and self.holds_out_users:
            gone, _ = hold_out(len(people), self.test_fraction, rng, "users")
            users = np.setdiff1d(users, gone)
            held = np.isin(owner, gone)
        elif not has_tests and self.partition == "by-user":
            held = hold_out_of_each_user(owner, self.test_fraction, self.seed)
        elif not has_tests:  # the former owner of a row must not decide what others own
            held[hold_out(count, self.test_fraction, rng, "examples")[0]] = True
        if self.partition == "by-user":
            owned = partition_by_owner(np.where(held, -1, owner), users)
            return owned, tuple(np.array(people, dtype=object)[users]), held
        trained = np.flatnonzero(~held)
        labels = np.zeros(trained.size, dtype=np.int64)
        if self.classes:
            labels = np.maximum(rows.labels.numpy()[trained], 0)
        parts = self.split(labels, rng)
        return Partition(trained[parts.order], parts.edges), NumberedUsers(self.users), held


def _joined(
    parts: Sequence[Mapping[str, NDArray[np.bool_]]], lengths: Sequence[int]
) -> dict[str, NDArray[np.bool_]]:
    """Return masks of the rows of all parts by reason, from those of each part.

    Args:
        parts: masks by reason; a reason that a part lacks holds for none of its rows.
        lengths: number of rows of each part.
    """
    joined: dict[str, NDArray[np.bool_]] = {}
    first = 0
    for part, length in zip(parts, lengths, strict=True):
        for reason, mask in part.items():
            whole = joined.setdefault(reason, np.zeros(sum(lengths), dtype=bool))
            whole[first : first + length] = mask
        first += length
    return joined


def _narrow(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return numbers as float32; those beyond its range become infinite, without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)
