"""Texts as rows of token numbers, such as StackOverflow's: a row for each sentence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.memory import DecodedRows
from fedmf.data.options import PublicInput, in_words
from fedmf.data.rows.cells import TextColumn, bytes_of, columns_once, row_batches
from fedmf.data.rows.row_options import RowOptions
from fedmf.data.tokens import PADDING, SequenceOptions


@dataclass(frozen=True, eq=False)
class Sentences:
    """Token numbers, cut or filled with 0.

    Args:
        tokens: shape (sentences, T + 1).
    """

    tokens: NDArray[np.int32]

    def examples(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """T tokens and the T that follow them; see `RowSource.examples`."""
        tokens = self.tokens[rows].astype(np.int64)
        following = np.where(tokens[:, 1:] == 0, PADDING, tokens[:, 1:])
        return torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(following)


@dataclass(frozen=True)
class TokenRows(RowOptions, SequenceOptions):
    """Parquet files with a row for each sentence: its user, and a list of token numbers.

    ``path`` is a folder with the folders train and, if there is one, test, each with such files. Users are
    those of train; rows of test that belong to them are left out, unless ``hold_out`` is "examples". Without
    a folder test, or where ``path`` has the files itself, ``hold_out`` says what is held out. Token 0 is
    padding. A list that is missing, empty or has a number that is no token is a sentence without anything to
    learn: nobody else's rows change.

    Args:
        path: of the folder.
        tokens_column: the column of lists.
        user_column: of the files, and of the roster.
        vocabulary_size: tokens are numbered 0 … vocabulary_size − 1.
        length: T, positions of an example; longer sentences are cut.
        most_sequences: sentences of a user that are used, the first ones; None for all.
        most_test_sequences: of the test part, drawn by the seed.
    """

    kind: ClassVar[str] = "token-rows"
    least_vocabulary: ClassVar[int] = 2
    partition: Literal["natural"] = "natural"
    tokens_column: str = "tokens"
    user_column: str = "user"
    vocabulary_size: int = 10_004
    length: int = 20
    most_sequences: int | None = 64
    most_test_sequences: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tokens_column:
            raise ValueError("tokens_column must be named; got none.")

    def declared(self) -> dict[str, bool]:
        """See `RowOptions.declared`: shape and numbers of a sentence are those of the configuration."""
        return {}

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        return (
            PublicInput("vocabulary", f"{self.vocabulary_size} numbers", "configuration"),
            PublicInput("shape of an example", in_words((self.length,)), "configuration"),
            PublicInput("normalisation", "none: token numbers", "fixed"),
        )

    def load(self) -> DecodedRows:
        """See `DatasetOptions.load`."""
        folder = Path(self.path).expanduser()
        tested = (folder / "test").is_dir()
        people = self.users_on_roster(self.holds_out_users and not tested)
        train = folder / "train" if (folder / "train").is_dir() else folder
        tokens, names, owner = self._read(train, self.most_sequences)
        users = people or tuple(sorted(names))
        place = {name: i for i, name in enumerate(users)}
        owner = np.array([place.get(name, -1) for name in names], dtype=np.int64)[owner]
        rng = np.random.default_rng([self.seed, 0x70CE])
        source = tests = Sentences(tokens)
        dealt = self.dealt(owner, users, np.zeros(owner.size, dtype=np.int64), rng, tested)
        candidates = np.flatnonzero(dealt.tests)
        if tested:
            test_tokens, test_names, test_owner = self._read(folder / "test", None)
            known = np.array([name in place for name in test_names], dtype=bool)[test_owner]
            candidates, tests = np.flatnonzero(self.may_test(known)), Sentences(test_tokens)
        chosen = np.sort(rng.permutation(candidates)[: self.most_test_sequences])
        test = tests.examples(chosen)
        if not (test[1] >= 0).any():
            raise ValueError(
                f"the test part must have a sentence that can be read and is of no user of the run; got none "
                f"in {self.path}."
            )
        return DecodedRows(
            source, dealt.owned, dealt.user_ids, test, self.test_owner, vocabulary=self.vocabulary_size
        )

    def _read(
        self, folder: Path, most: int | None
    ) -> tuple[NDArray[np.int32], tuple[str, ...], NDArray[np.int64]]:
        """Tokens of all sentences with a user, names of the users, and which of them each sentence has."""
        place: dict[str, int] = {}
        parts: list[NDArray[np.int32]] = []
        owners: list[NDArray[np.int64]] = []
        counts = np.zeros(0, dtype=np.int64)
        keys = [("user_column", self.user_column), ("tokens_column", self.tokens_column)]
        for file, batch in row_batches(folder, partial(columns_once, keys), suffixes=(".parquet",)):
            users = TextColumn.of(
                [bytes_of(batch[self.user_column], f"column {self.user_column!r} of {file}")]
            )
            numbers = np.array([place.setdefault(name, len(place)) for name in users.values], dtype=np.int64)
            rows = np.flatnonzero(users.codes >= 0)
            owner = numbers[users.codes[rows]] if rows.size else rows
            counts = np.concatenate([counts, np.zeros(len(place) - counts.size, dtype=np.int64)])
            if most is not None:
                first = counts[owner] + _ranks(owner) < most
                rows, owner = rows[first], owner[first]
            counts += np.bincount(owner, minlength=counts.size)
            parts.append(self._tokens(batch[self.tokens_column].take(arrow.array(rows)), file))
            owners.append(owner)
        if not sum(map(len, parts)):
            raise ValueError(f"path must hold at least one sentence of a user; got none in {folder}.")
        return np.concatenate(parts), tuple(place), np.concatenate(owners)

    def _tokens(self, column: arrow.Array, file: Path) -> NDArray[np.int32]:
        """Shape (sentences, T + 1); all 0 for a list that is not one of tokens."""
        kind = column.type
        lists = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
        if not lists or not arrow.types.is_integer(kind.value_type):
            raise ValueError(
                f"tokens_column must hold lists of whole numbers; got {kind} in column "
                f"{self.tokens_column!r} of {file}."
            )
        lengths = (
            compute.call_function("list_value_length", [column]).fill_null(0).to_numpy(zero_copy_only=False)
        ).astype(np.int64)
        flat = column.flatten()
        values = flat.cast(arrow.int64(), safe=False).fill_null(-1).to_numpy(zero_copy_only=False)
        sentence = np.repeat(np.arange(lengths.size), lengths)
        wrong = (values < 0) | (values >= self.vocabulary_size)
        broken = np.bincount(sentence[wrong], minlength=lengths.size) > 0
        at = np.arange(values.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        kept = (at <= self.length) & ~broken[sentence]
        tokens = np.zeros((lengths.size, self.length + 1), dtype=np.int32)
        tokens[sentence[kept], at[kept]] = values[kept]
        return tokens


def _ranks(owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many earlier rows have the same owner."""
    order = np.argsort(owner, kind="stable")
    starts = np.flatnonzero(np.diff(owner[order], prepend=-1))
    ranks = np.empty(owner.size, dtype=np.int64)
    ranks[order] = np.arange(owner.size) - np.repeat(starts, np.diff(starts, append=owner.size))
    return ranks
