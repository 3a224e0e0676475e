"""Data sets in Hugging Face's format, spread by the partitioners of flwr-datasets, decoded on demand."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
import pyarrow as arrow
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import FederatedDataset, NumberedUsers, TestOwner
from fedmf.data.partitions import Partition, check_users
from fedmf.data.rows.labelled_rows import LabelledRows
from fedmf.data.rows.ownership import partition_by_owner
from fedmf.data.rows.row_options import HeldOut
from fedmf.data.rows.text_column import TextColumn, bytes_of
from fedmf.data.rows.text_options import TextOptions
from fedmf.data.rows.text_rows import TextRows, text_rows


@dataclass(frozen=True)
class HubText(TextOptions):
    """Texts of a data set of the Hugging Face hub, or of a folder in its format, cut into tokens.

    ``path`` is its name on the hub (which needs a network the first time) or that of a folder, as for `Hub`.
    The split "train" is read, and what is held out is taken from it.

    Args:
        text_column: name of the column of texts.

    >>> HubText(path="stanfordnlp/imdb", label_column="label", partition="iid").text_column
    'text'
    """

    kind: ClassVar[str] = "hub-text"
    text_column: str = "text"

    def rows(self) -> TextRows:
        """See `TextOptions.rows`."""
        train = loaded(self.path)["train"]
        parts = {
            name: [bytes_of(chunk, f"column {name!r}") for chunk in column_chunks(train, name)]
            for name in self.columns.among(self.path, train.column_names)
        }
        return text_rows(parts, self.columns)


def check_features(feature: Any, column: str) -> None:
    """Refuse a column that holds neither images nor numbers, by its type alone.

    Raises:
        ValueError: it does.
    """
    import datasets

    if isinstance(feature, datasets.Image):
        return
    kind = datasets.Features({column: feature}).arrow_schema.field(0).type
    kind = getattr(kind, "storage_type", kind)
    while (
        arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind)
    ):
        kind = kind.value_type
    if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
        raise ValueError(f"feature_columns must hold images or numbers; got {kind} in {column!r}.")


def decoded(examples: Any, rows: NDArray[np.int64], column: str, shape: tuple[int, ...]) -> Tensor:
    """Features of these rows, float32: pixels in [0, 1] with channels first, or numbers as they are.

    Args:
        examples: a `datasets.Dataset`.
        rows: which of them, shape (m,).
        column: the feature column.
        shape: of one example; empty for that of the first that can be decoded.

    Returns:
        Shape (m, *shape). A row that cannot be decoded, is of another shape or not finite is all NaN; every
        row's numbers depend on that row alone.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # what a row makes a decoder say is not for the screen
        values = [_example(value) for value in _values(examples.select_columns([column]), rows, column)]
    if not shape:
        shape = next((value.shape for value in values if value is not None and value.ndim), (1,))
    block = np.full((len(values), *shape), np.nan, dtype=np.float32)
    for place, value in zip(block, values, strict=True):
        if value is not None and value.shape == shape and np.isfinite(value).all():
            place[...] = value
    return torch.from_numpy(block)


def _values(light: Any, rows: NDArray[np.int64], column: str) -> list[Any]:
    """What the rows hold, decoded together or, if that fails, one by one; None for what cannot be."""
    try:
        return light[rows][column] if rows.size else []
    except Exception:  # whatever a decoder raises, it concerns one row
        if rows.size == 1:
            return [None]
        middle = rows.size // 2
        return [*_values(light, rows[:middle], column), *_values(light, rows[middle:], column)]


def _example(value: Any) -> NDArray[np.float32] | None:
    """One example; None for what is no array of numbers."""
    try:
        numbers = np.asarray(value)
        if numbers.dtype == np.uint8:
            pixels = numbers[None] if numbers.ndim == 2 else np.moveaxis(numbers, -1, 0)
            return pixels.astype(np.float32) / np.float32(255)
        return numbers.astype(np.float32) if numbers.dtype.kind in "iuf" else None
    except Exception:
        return None


_MOST_TESTS: Final = 10_000


class HubDataset(FederatedDataset):
    """Examples that stay on disk until a user who owns them is asked for.

    Images become (channels, height, width) in [0, 1]. One that cannot be decoded, or of another shape than
    the test part's, becomes NaN.

    Args:
        examples: a `datasets.Dataset` with the feature column, not decoded yet.
        labels: class of each example.
        owned: for each user the rows of ``examples``.
        user_ids: unique, stable names.
        test: rows of the test part with their labels, as (features, labels).
        column: name of the feature column.
        classes: number of classes.
        test_owner: whose the test part is.
    """

    counts_are_exact: ClassVar[bool] = True

    def __init__(
        self,
        examples: Any,
        labels: NDArray[np.int64],
        owned: Partition,
        user_ids: Sequence[str],
        test: tuple[Tensor, Tensor],
        column: str,
        classes: int,
        test_owner: TestOwner,
    ) -> None:
        self._examples, self._labels, self._owned, self._column = examples, labels, owned, column
        self.user_ids, self.classes, self.test_owner = user_ids, classes, test_owner
        self._index = {name: u for u, name in enumerate(user_ids)}
        self.test_features, self.test_labels = test

    def index_of(self, user_id: str) -> int:
        """See `FederatedDataset.index_of`."""
        return self._index[user_id]

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `FederatedDataset.sizes`."""
        return self._owned.sizes[users]

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """See `FederatedDataset.examples`."""
        rows = self._owned.rows(users)
        device = self.test_features.device
        labels = torch.from_numpy(self._labels[rows])
        features = decoded(self._examples, rows, self._column, tuple(self.test_features.shape[1:]))
        return features.to(device), labels.to(device)

    def to(self, device: torch.device | str) -> Self:
        """See `FederatedDataset.to`; examples are still read and decoded on the CPU."""
        moved = copy.copy(self)
        moved.test_features, moved.test_labels = self.test_features.to(device), self.test_labels.to(device)
        return moved


@dataclass(frozen=True)
class Hub(LabelledRows):
    """A data set of the Hugging Face hub, or a folder in its format, spread over users.

    ``path`` is its name on the hub (which needs a network the first time) or that of a folder: Parquet files
    named after their split, or what ``save_to_disk`` wrote. The split "train" is spread. The test part is
    the split "test" or, without one, what ``hold_out`` says; at most 10,000 examples of it are used. With
    partition "natural", rows of the split "test" that belong to users of the run are left out unless
    ``hold_out`` is "examples". The partitions iid and dirichlet are those of flwr-datasets, with its random
    numbers. For private runs take typed files (Parquet, Arrow): the types of CSV and JSON are inferred from
    the rows themselves.

    Args:
        feature_columns: the one column of images, or of lists of numbers.

    >>> Hub(path="ylecun/mnist", partition="shards").feature_columns
    ('image',)
    """

    kind: ClassVar[str] = "hub"
    feature_columns: tuple[str, ...] = ("image",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.feature_columns) != 1:
            raise ValueError(
                f"feature_columns must name one column with dataset 'hub'; got {self.feature_columns!r}."
            )

    def load(self) -> HubDataset:
        """See `DatasetOptions.load`; features of training rows are not looked at."""
        splits = loaded(self.path)
        train, features = splits["train"], self.feature_columns[0]
        for column in filter(None, (features, self.label_column, self.user_column)):
            if column not in train.column_names:
                present = ", ".join(train.column_names)
                raise ValueError(f"columns of {self.path} are {present}; got {column!r}.")
        check_features(train.features[features], features)
        rng = np.random.default_rng([self.seed, 0xF10E])
        people = self.users_on_roster(self.holds_out_users and "test" not in splits)
        known, owner, users = self._labels(train), np.zeros(len(train), dtype=np.int64), ("",)
        if self.user_column:
            named = _column(train, self.user_column)
            users = people or named.ordered(_is_whole(train, self.user_column))
            owner = named.among(users)
        if "test" in splits:
            source, held = splits["test"], HeldOut(np.zeros(len(train), dtype=bool), np.arange(len(users)))
            tests = np.flatnonzero(~self._of_users(source, users))
            answers = self._labels(source)
        else:
            source, held = train, self.held_out(owner, len(users), rng)
            tests, answers = np.flatnonzero(held.rows), known
        classes = self.classes or _classes(train, self.label_column, known, answers)
        labels, test_labels = known.among(classes), answers.among(classes)
        tests = np.sort(rng.permutation(tests)[:_MOST_TESTS])
        test_values = decoded(source, tests, features, self.input_shape)
        valid = (test_labels[tests] >= 0) & torch.isfinite(test_values).flatten(1).all(dim=1).numpy()
        if not valid.any():
            raise ValueError(
                f"the test part must have at least one row that can be read; got none in {self.path}."
            )
        if self.partition == "natural":
            owned = partition_by_owner(np.where(held.rows, -1, owner), held.users)
            user_ids: Sequence[str] = tuple(users[u] for u in held.users)
        else:
            owned, user_ids = self._spread(train, np.flatnonzero(~held.rows), labels)
        return HubDataset(
            examples=train,
            labels=labels,
            owned=owned.keeping(labels >= 0),
            user_ids=user_ids,
            test=(test_values[torch.from_numpy(valid)], torch.from_numpy(test_labels[tests][valid])),
            column=features,
            classes=len(classes),
            test_owner=self.test_owner,
        )

    @property
    def normalisation(self) -> str:
        """See `LabelledRows.normalisation`."""
        return "pixels / 255, other numbers as they are, in float32"

    @property
    def test_part(self) -> str:
        """See `RowOptions.test_part`."""
        return f"the split 'test' or, without one, {super().test_part}; at most {_MOST_TESTS:,} rows"

    def _labels(self, split: Any) -> TextColumn:
        return _column(split, self.label_column)

    def _of_users(self, split: Any, users: Sequence[str]) -> NDArray[np.bool_]:
        """Which rows of the test split are those of users of the run, who must not be evaluated unasked."""
        if self.test_owner != "held-out users":
            return np.zeros(len(split), dtype=bool)
        if self.user_column not in split.column_names:
            raise ValueError(
                f"split 'test' of {self.path} must have column {self.user_column!r}, so that rows of the "
                "run's users are left out; or say hold_out 'examples', whose evaluation is not private."
            )
        return _column(split, self.user_column).among(users) >= 0

    def _spread(
        self, train: Any, rows: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> tuple[Partition, Sequence[str]]:
        """Made-up users of these rows of ``train``; a row without a valid label is dealt as of class 0."""
        from flwr_datasets import partitioner as flower

        row, label, dealt = "row of fedmf", "label of fedmf", np.maximum(labels[rows], 0)
        partitioners = {
            "iid": lambda: flower.IidPartitioner(self.users),
            "dirichlet": lambda: flower.DirichletPartitioner(
                self.users,
                label,
                self.dirichlet_alpha,
                min_partition_size=1,
                self_balancing=False,
                seed=self.seed,
            ),
        }
        if self.partition not in partitioners:
            parts = self.split(dealt, np.random.default_rng([self.seed, 0xF10F]))
            return Partition(rows[parts.order], parts.edges), NumberedUsers(self.users)
        check_users(self.users, rows.size)
        chosen = partitioners[self.partition]()
        light = train.select(rows).select_columns([self.label_column])
        chosen.dataset = light.add_column(row, rows).add_column(label, dealt)
        parts = [chosen.load_partition(u).select_columns([row])[:][row] for u in range(chosen.num_partitions)]
        owned = Partition.of([np.sort(np.asarray(part, dtype=np.int64)) for part in parts])
        return owned, NumberedUsers(self.users)


def loaded(name: str) -> Any:
    """The splits of a data set, of which "train" is one.

    Raises:
        ValueError: it cannot be had, or the extra ``data`` is missing.
    """
    if find_spec("flwr_datasets") is None:
        raise ValueError("dataset 'hub' needs the extra: pip install 'fedmf[data]'.")
    import datasets

    datasets.disable_progress_bars()  # they would print how many rows there are
    try:
        saved = (Path(name) / "dataset_dict.json").is_file()
        splits = datasets.load_from_disk(name) if saved else datasets.load_dataset(name)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"path must name a data set on the hub or a folder in its format; got {name!r}: {reason}"
        ) from error
    if "train" not in splits:
        raise ValueError(f"path must have a split 'train'; got {', '.join(map(str, splits))} in {name}.")
    return splits


def column_chunks(split: Any, name: str) -> list[Any]:
    """A column of a split as arrow arrays, not decoded."""
    return split.select_columns([name]).with_format("arrow")[:].column(0).chunks


def _column(split: Any, name: str) -> TextColumn:
    return TextColumn.of([bytes_of(chunk, f"column {name!r}") for chunk in column_chunks(split, name)])


def _is_whole(split: Any, name: str) -> bool:
    return arrow.types.is_integer(split.select_columns([name]).features.arrow_schema.field(0).type)


def _classes(split: Any, name: str, known: TextColumn, answers: TextColumn) -> tuple[str, ...]:
    """The labels that occur, in order: for runs that declare none."""
    both = TextColumn(tuple({*known.values, *answers.values}), known.codes)
    return both.ordered(_is_whole(split, name))
