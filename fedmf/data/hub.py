"""Data sets in Hugging Face's format: examples are read here, and divided as those of a table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.data.dataset import InMemoryDataset
from fedmf.data.table import MOST_TESTS, Table

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
    takes_number_labels: ClassVar[bool] = False
    normalisation: ClassVar[str] = "pixels / 255, other numbers as they are, in float32"
    feature_columns: tuple[str, ...] = ("image",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.feature_columns) != 1 or self.schema:
            raise ValueError(
                "feature_columns must name one column with dataset 'hub', without schema; got "
                f"{', '.join(self.feature_columns)}."
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
        rows = self.read(self._columns(train))
        if not has_tests:
            return self.dataset_of(rows, people)
        tests = self.read(self._columns(splits["test"]))
        if self.test_owner == "held-out users" and tests.users is None:
            raise ValueError(
                f"split 'test' of {self.path} must have column {self.user_column!r}, so that rows"
                " of the run's users are left out; test_split 'examples' needs none, but is not"
                " private."
            )
        return self.dataset_of(rows, people, tests)

    @property
    def test_part(self) -> tuple[str, str]:
        held, drawn = super().test_part
        if self.text_column:
            return held, drawn
        return f"the split 'test' or, without one, {held}; at most {MOST_TESTS:,} rows", drawn

    def _columns(self, split: Any) -> Iterator[Mapping[str, Any]]:
        """Yield columns of a split, some rows at a time.

        They are Arrow arrays, and examples as rows of numbers. The user column of a test part may
        be absent.
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
            yield columns

    def _examples(self, split: Any, rows: range, feature: str) -> NDArray[np.float64]:
        """Return examples, shape (rows, entries); NaN for one of another shape."""
        examples = np.full((len(rows), math.prod(self.shape)), np.nan)
        for row, value in enumerate(decoded(split, rows, feature)):
            if value is not None and value.shape == self.shape:
                examples[row] = value.ravel()
        return examples


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
    numbers = np.asarray(value)
    if numbers.dtype == np.uint8:
        channels = numbers[None] if numbers.ndim == 2 else np.moveaxis(numbers, -1, 0)
        numbers = channels / np.float32(255)
    if numbers.dtype.kind not in "iuf":
        return None
    return numbers.astype(np.float32)


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
