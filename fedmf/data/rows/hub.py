"""Data sets in Hugging Face's format, spread by the partitioners of flwr-datasets, decoded on demand."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import pyarrow as arrow
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import FederatedDataset
from fedmf.data.memory import DecodedRows
from fedmf.data.partitions import Partition, check_users
from fedmf.data.rows.cells import TextColumn, bytes_of, columns_once, is_list
from fedmf.data.rows.texts import TextRows
from fedmf.data.user_ids import id_column
from fedmf.values import Field

_MOST_TESTS: Final = 10_000


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
    while is_list(kind):
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


@dataclass(frozen=True, eq=False)
class HubRows:
    """Rows that stay on disk until a user who owns them is asked for.

    Images become (channels, height, width) in [0, 1]. One that cannot be decoded, or of another shape,
    becomes NaN.

    Args:
        rows: a `datasets.Dataset` with the feature column, not decoded yet.
        labels: class of each.
        column: name of the feature column.
        shape: of one example; empty for that of the first that can be decoded.
    """

    rows: Any
    labels: NDArray[np.int64]
    column: str
    shape: tuple[int, ...]

    def examples(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """See `RowSource.examples`."""
        return decoded(self.rows, rows, self.column, self.shape), torch.from_numpy(self.labels[rows])


@dataclass(frozen=True)
class Hub(TextRows):
    """A data set of the Hugging Face hub, or a folder in its format, spread over users.

    ``path`` is its name on the hub (which needs a network the first time) or that of a folder: Parquet files
    named after their split, or what ``save_to_disk`` wrote. The split "train" is spread. The test part is
    the split "test" or, without one, what ``hold_out`` says; at most 10,000 examples of it are used. With
    partition "natural", rows of the split "test" that belong to users of the run are left out unless
    ``hold_out`` is "examples". The partitions iid and dirichlet are those of flwr-datasets, with its random
    numbers. For private runs take typed files (Parquet, Arrow): the types of CSV and JSON are inferred from
    the rows themselves. With ``text_column`` the split "train" is a table of texts, as for `Table`, and what
    is held out is taken from it.

    >>> Hub(path="ylecun/mnist", partition="shards").feature_columns
    ('image',)
    """

    kind: ClassVar[str] = "hub"
    feature_columns: Annotated[tuple[str, ...], Field("the one column of images, or of lists of numbers")] = (
        "image",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.feature_columns) != 1:
            raise ValueError(
                f"feature_columns must name one column with dataset 'hub'; got {self.feature_columns!r}."
            )

    def load(self) -> FederatedDataset:
        """See `DatasetOptions.load`; features of training rows are not looked at, but for texts."""
        splits = loaded(self.path)
        train, column = splits["train"], self.feature_columns[0]
        if self.text_column:
            columns_once(self.columns_of_texts, self.path, train.column_names)
            return self.dataset_of_texts(
                {name: _chunks(train, name, key == "user_column") for key, name in self.columns_of_texts}
            )
        keys = {"feature_columns": column, "label_column": self.label_column, "user_column": self.user_column}
        columns_once([(key, name) for key, name in keys.items() if name], self.path, train.column_names)
        check_features(train.features[column], column)
        tested = "test" in splits
        rng = np.random.default_rng([self.seed, 0xF10E])
        people = self.users_on_roster(self.holds_out_users and not tested)
        known, owner, users = _names(train, self.label_column), np.zeros(len(train), dtype=np.int64), ("",)
        if self.user_column:
            named = _ids(train, self.user_column)
            users = people or named.ordered(_is_whole(train, self.user_column))
            owner = named.among(users)
        source = splits["test"] if tested else train
        answers = _names(source, self.label_column) if tested else known
        classes = self.classes or _classes(train, self.label_column, known, answers)
        labels, test_labels = known.among(classes), answers.among(classes)
        dealt = self.dealt(owner, users, labels, rng, tested)
        tests = np.flatnonzero(self._may_test(source, users) if tested else dealt.tests)
        tests = np.sort(rng.permutation(tests)[:_MOST_TESTS])
        test_values = decoded(source, tests, column, self.input_shape)
        valid = (test_labels[tests] >= 0) & torch.isfinite(test_values).flatten(1).all(dim=1).numpy()
        if not valid.any():
            raise ValueError(
                f"the test part must have at least one row that can be read; got none in {self.path}."
            )
        return DecodedRows(
            source=HubRows(train, labels, column, tuple(test_values.shape[1:])),
            owned=dealt.owned.keeping(labels >= 0),
            user_ids=dealt.user_ids,
            test=(test_values[torch.from_numpy(valid)], torch.from_numpy(test_labels[tests][valid])),
            test_owner=self.test_owner,
            classes=len(classes),
        )

    @property
    def normalisation(self) -> str:
        """See `LabelledRows.normalisation`."""
        return "pixels / 255, other numbers as they are, in float32"

    @property
    def test_part(self) -> str:
        """See `RowOptions.test_part`."""
        if self.text_column:
            return super().test_part
        return f"the split 'test' or, without one, {super().test_part}; at most {_MOST_TESTS:,} rows"

    def _may_test(self, split: Any, users: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which rows of the test split are not those of users of the run, who must not be judged unasked."""
        if self.test_owner != "held-out users":
            return np.ones(len(split), dtype=bool)
        if self.user_column not in split.column_names:
            raise ValueError(
                f"split 'test' of {self.path} must have column {self.user_column!r}, so that rows of the "
                "run's users are left out; or say hold_out 'examples', whose evaluation is not private."
            )
        return _ids(split, self.user_column).among(users) < 0

    def split(self, labels: NDArray[np.int64], rng: np.random.Generator) -> Partition:
        """See `SpreadOptions.split`; "iid" and "dirichlet" by flwr-datasets."""
        if self.text_column:
            return super().split(labels, rng)
        if self.partition not in ("iid", "dirichlet"):
            return super().split(labels, np.random.default_rng([self.seed, 0xF10F]))
        import datasets
        from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

        check_users(self.users, labels.size)
        chosen = (
            IidPartitioner(self.users)
            if self.partition == "iid"
            else DirichletPartitioner(
                self.users,
                "label",
                self.dirichlet_alpha,
                min_partition_size=1,
                self_balancing=False,
                seed=self.seed,
            )
        )
        chosen.dataset = datasets.Dataset.from_dict({"row": np.arange(labels.size), "label": labels})
        parts = [chosen.load_partition(u)["row"] for u in range(chosen.num_partitions)]
        return Partition.of([np.sort(np.asarray(part, dtype=np.int64)) for part in parts])


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


def _chunks(split: Any, name: str, ids: bool = False) -> list[Any]:
    """A column of a split as arrow arrays of bytes, not decoded; ids as `id_column` gives them."""
    chunks = split.select_columns([name]).with_format("arrow")[:].column(0).chunks
    return [(id_column if ids else bytes_of)(chunk, f"column {name!r}") for chunk in chunks]


def _names(split: Any, name: str) -> TextColumn:
    return TextColumn.of(_chunks(split, name))


def _ids(split: Any, name: str) -> TextColumn:
    return TextColumn.of(_chunks(split, name, ids=True))


def _is_whole(split: Any, name: str) -> bool:
    return arrow.types.is_integer(split.select_columns([name]).features.arrow_schema.field(0).type)


def _classes(split: Any, name: str, known: TextColumn, answers: TextColumn) -> tuple[str, ...]:
    """The labels that occur, in order: for runs that declare none."""
    both = TextColumn(tuple({*known.values, *answers.values}), known.codes)
    return both.ordered(_is_whole(split, name))
