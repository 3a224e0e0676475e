"""Data sets in Hugging Face's format: examples are read here, and divided as those of a table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

from fedmf.data.cells import numbers
from fedmf.data.dataset import InMemoryDataset
from fedmf.data.table import Table
from fedmf.data.table_reader import RowBatch, shown_names

_ROWS: Final = 1024


@dataclass(frozen=True)
class Hub(Table):
    """A data set of the Hugging Face hub, or a folder in its format, spread over users.

    ``path`` is its name on the hub (which needs a network the first time) or a folder: Parquet
    files named after their split, or what ``save_to_disk`` wrote. The split "train" is spread. The
    test part is the split "test", of which at most 10,000 examples are used, or without one the
    part that ``test_split`` holds out. With partition "by-user", rows of the split "test" that
    belong to users of the run are left out unless ``test_split`` is "examples". For private runs,
    use typed files
    (Parquet, Arrow): the types of CSV and JSON are inferred from the rows themselves. The one
    feature column holds images, which become (channels, height, width) in [0, 1], or numbers, in
    lists of any depth. With ``text_column`` the split "train" is a table of texts, and the test
    part is taken from it.

    >>> Hub(path="ylecun/mnist", class_names=("0..9",), input_shape=(1, 28, 28)).feature_columns
    ('image',)
    """

    kind: ClassVar[str] = "hub"
    most_tests: ClassVar[int] = 10_000
    takes_number_labels: ClassVar[bool] = False
    normalization: ClassVar[str] = "pixels / 255, other numbers as they are, in float32"
    feature_columns: tuple[str, ...] = ("image",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.feature_columns) != 1 or self.schema:
            raise ValueError(
                "feature_columns must name one column with dataset 'hub', without schema; got "
                f"{', '.join(self.feature_columns)}."
            )
        if self.user_from == "filename":
            raise ValueError("user_from must be 'column' with dataset 'hub'; got 'filename'.")
        if self.test_path:
            raise ValueError(
                f"test_path must be left out with dataset 'hub'; got {self.test_path!r}. Its split"
                " 'test' is the test part."
            )
        if not (self.input_shape or self.text_column):
            raise ValueError(
                "input_shape must be declared with dataset 'hub', such as 3,32,32; got none."
            )

    def load(self) -> InMemoryDataset:
        splits = loaded(self.path)
        train = splits["train"]
        present = train.column_names
        for name in (*self.features, *self._others):
            if name not in present:
                raise ValueError(
                    f"column {name!r} is missing; {self.path} has {', '.join(present)[:300]}."
                )
        has_tests = "test" in splits and not self.text_column
        people = self.listed_users(self.holds_out_users and not has_tests)
        names = self._class_names(splits, "train")
        words = self._label_words(names, names)
        test_words = None
        if has_tests:
            test_words = self._label_words(names, self._class_names(splits, "test"))
        rows = self.read(self._columns(train, words))
        if not has_tests:
            return self.dataset_of(rows, people)
        tests = self.read(self._columns(splits["test"], test_words))
        if self.test_owner == "held-out users" and tests.users is None:
            raise ValueError(
                f"split 'test' of {self.path} must have column {self.user_column!r}, so that rows"
                " of the run's users are left out; test_split 'examples' needs none, but is not"
                " private."
            )
        return self.dataset_of(rows, people, tests)

    def batches(
        self, unread: Sequence[str] = (), optional: Sequence[str] = ()
    ) -> Iterator[RowBatch]:
        """Yield the rows of a folder without splits, in the order of the names of its files.

        Raises:
            ValueError: no such folder, one with splits, or one without the feature column.
        """
        del optional
        if not Path(self.path).exists():  # or else it would be a name on the hub
            raise ValueError(f"path must be a folder; {self.path} does not exist.")
        splits = loaded(self.path)
        if len(splits) > 1:
            raise ValueError(
                f"path must be a folder without splits; {self.path} has {', '.join(splits)}. Rename"
                " files with the name of a split in theirs."
            )
        split = splits["train"]
        (feature,) = self.features
        if feature not in split.column_names:
            raise ValueError(
                f"column {feature!r} is missing; {self.path} has"
                f" {', '.join(split.column_names)[:300]}."
            )
        names = [name for name in split.column_names if name not in unread]
        yield from self._columns(split.select_columns(names), None)

    @property
    def test_part(self) -> tuple[str, str]:
        held, drawn = super().test_part
        if self.text_column:
            return held, drawn
        return f"the split 'test' or, without one, {held}; at most {self.most_tests:,} rows", drawn

    def _columns(self, split: Any, words: Sequence[str] | None) -> Iterator[RowBatch]:
        """Yield the rows of a split, some at a time.

        Columns are Arrow arrays, and examples rows of numbers. The user column of a test part may
        be absent.

        Args:
            split: the split.
            words: what each number of the label column stands for (`_label_words`); None for
                labels as they are.
        """
        (feature,) = self.features
        names = [name for name in self._others if name in split.column_names]
        if self.text_column:
            names.append(feature)
        for first in range(0, len(split), _ROWS):
            rows = range(first, min(first + _ROWS, len(split)))
            table = split.select(rows).select_columns(names).with_format("arrow")[:]
            columns: dict[str, Any] = dict(zip(table.column_names, table.columns, strict=True))
            if not self.text_column:
                columns[feature] = self._examples(split, rows, feature)
            if words is not None:
                columns[self.label_column[0]] = _as_words(columns[self.label_column[0]], words)
            yield RowBatch(len(rows), columns)

    def _class_names(self, splits: Any, split: str) -> list[str] | None:
        """Return the names that a split gives to the numbers of its label column, if it does.

        Files that were not written together may number the same names in another order. The
        library reads all of them by the names of the first one, so each is asked for its own.

        Raises:
            ValueError: two files of the split differ.
        """
        if not self.label_column:
            return None
        (name,) = self.label_column
        names = getattr(splits[split].features.get(name), "names", None)
        if names is None:
            return None
        of_files = [features[name].names for features in _features_of_files(self.path, split, name)]
        for other in of_files:
            if other != of_files[0]:
                raise ValueError(
                    f"label_column {name!r} must have the same class names in all files of the"
                    f" split {split!r}; got {_listed(of_files[0])} and {_listed(other)}."
                )
            names = other
        return names

    def _label_words(
        self, names: list[str] | None, own_names: list[str] | None
    ) -> list[str] | None:
        """Return the declared class that each number of the label column of a split stands for.

        Declared classes are names of the data set, or numbers in the order of its split "train".

        Args:
            names: names of the classes in the split "train"; None for a column without names.
            own_names: names in the split.

        Raises:
            ValueError: the declared classes are neither, or the names of the split are others.
        """
        if names is None and own_names is None:
            return None
        if names is None or own_names is None or not set(own_names) <= set(names):
            raise ValueError(
                f"label_column {self.label_column[0]!r} must have the same class names in the"
                f" splits 'train' and 'test'; got {_listed(names)} and {_listed(own_names)}."
            )
        if set(self.classes) <= set(names):
            return own_names
        positions = [str(number) for number in range(len(names))]
        if not set(self.classes) <= set(positions):
            raise ValueError(
                f"class_names must be names of the data set, {_listed(names)}, or numbers from 0 to"
                f" {len(names) - 1} in this order; got {_listed(self.classes)}."
            )
        return [positions[names.index(name)] for name in own_names]

    def _examples(self, split: Any, rows: range, feature: str) -> NDArray[np.float64]:
        """Return examples, shape (rows, entries); NaN for one of another shape."""
        examples = np.full((len(rows), math.prod(self.shape)), np.nan)
        for row, value in enumerate(decoded(split, rows, feature)):
            if value is not None and value.shape == self.shape:
                examples[row] = value.ravel()
        return examples


def _features_of_files(path: str, split: str, column: str) -> list[Any]:
    """Return the features that the local Parquet files of a split declare with class names.

    Args:
        path: the data set.
        split: name of the split.
        column: the column with class names.
    """
    import datasets
    from pyarrow import parquet

    if not Path(path).is_dir() or (Path(path) / "dataset_dict.json").is_file():
        return []
    files = datasets.load_dataset_builder(path).config.data_files or {}
    declared: list[Any] = []
    for file in files.get(split, ()):
        if not str(file).endswith(".parquet"):
            continue
        features = datasets.Features.from_arrow_schema(parquet.read_schema(file))
        if hasattr(features.get(column), "names"):
            declared.append(features)
    return declared


def _as_words(column: Any, words: Sequence[str]) -> Any:
    """Return numbers as words; null for a number that stands for none."""
    codes = numbers(column)
    cells: list[str | None] = []
    for code in codes.tolist():
        word = None
        if code in range(len(words)):
            word = words[int(code)]
        cells.append(word)
    return arrow.array(cells, arrow.large_string())


def _listed(names: Sequence[str] | None) -> str:
    if names is None:
        return "no names"
    return shown_names(names)


def decoded(split: Any, rows: range, column: str) -> list[NDArray[np.float32] | None]:
    """Return the values of rows: pixels in [0, 1] with channels first, or numbers as they are.

    A value that is neither is None. The rows are decoded together or, if that fails, one by one, so
    that a row's numbers depend on that row alone.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # a decoder's words about a row must not be shown
            values = split.select_columns([column])[rows.start : rows.stop][column]
            return [_example(value) for value in values]
    except Exception:  # whatever a decoder raises, it concerns one row
        if len(rows) == 1:
            return [None]
    examples: list[NDArray[np.float32] | None] = []
    for row in rows:
        examples += decoded(split, range(row, row + 1), column)
    return examples


def _example(value: Any) -> NDArray[np.float32] | None:
    """Return one value as float32; None if it does not consist of numbers."""
    entries = np.asarray(value)
    if entries.dtype == np.uint8:
        channels = entries[None] if entries.ndim == 2 else np.moveaxis(entries, -1, 0)
        entries = channels / np.float32(255)
    if entries.dtype.kind not in "iuf":
        return None
    return entries.astype(np.float32)


def loaded(name: str) -> Any:
    """Return the splits of a data set, one of which is "train".

    Raises:
        ValueError: it cannot be loaded, or the extra ``data`` is missing.
    """
    if find_spec("datasets") is None:
        raise ValueError("dataset 'hub' needs the extra: pip install 'fedmf[data]'.")
    import datasets

    datasets.disable_progress_bars()  # they would print the number of rows
    load: Any = datasets.load_dataset
    if (Path(name) / "dataset_dict.json").is_file():
        load = datasets.load_from_disk
    try:
        splits: Any = load(name)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"path must name a data set on the hub or a folder in its format; got {name!r}:"
            f" {reason}"
        ) from error
    if "train" not in splits:
        raise ValueError(f"path must have a split 'train'; got {list(splits)} in {name}.")
    return splits
