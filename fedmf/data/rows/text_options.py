"""Texts of users: what they are cut into, and which vocabulary they are written in."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import Spread
from fedmf.data.partitions import Partition
from fedmf.data.public_input import PublicInput, in_words
from fedmf.data.rows.labelled_rows import check_classes, class_input, classes_of
from fedmf.data.rows.row_options import RowOptions
from fedmf.data.rows.text_rows import (
    TextColumns,
    TextRows,
    read_text_folder,
    read_text_table,
    sequences_of,
)
from fedmf.data.text import Vocabulary, evenly, next_tokens, padded, public_vocabulary, tagged
from fedmf.values import check_whole


@dataclass(frozen=True)
class TextOptions(RowOptions):
    """Texts whose examples are sequences of T tokens.

    Without label and tag column the token that follows each is to be learnt (`next_tokens`); with a label
    column a class for each text, of which the first T tokens are kept; with a tag column a class for each
    piece of a text, pieces and tags being what stands between blanks. Every text becomes tokens, whatever its
    bytes are; a text whose label is none of the classes counts for nobody.

    Args:
        partition: who owns which text, see `DatasetOptions`; here "natural" unless said otherwise.
        text_column: name of the column of texts; empty for a folder of .txt files.
        label_column: name of the column with one label for each text; empty for none.
        tag_column: name of the column with a tag for each piece of a text; empty for none.
        class_names: the labels or tags that there are; ``0..61`` stands for these whole numbers.
        length: T, tokens of a sequence.
        vocabulary: "bytes" (257 numbers), "words" (the most frequent words of a public text), or "bpe" (made
            from a public text, or from a tokenizer's file; extra ``lm``).
        vocabulary_size: numbers of "words" and "bpe" at most; above 257.
        vocabulary_path: the public text file that "words" or "bpe" are made from, or for "bpe" a
            ``tokenizer.json``. Empty: made from the rows, which a private run may not.
        lower_case: whether "words" are lower-cased.
        most_sequences: of one user, evenly spaced over its texts; None for all.
        most_test_sequences: of the held-out part, evenly spaced.
    """

    partition: Literal[Spread, "natural"] = "natural"
    user_column: str = "user"
    text_column: str = ""
    label_column: str = ""
    tag_column: str = ""
    class_names: tuple[str, ...] = ()
    length: int = 64
    vocabulary: Literal["bytes", "words", "bpe"] = "bytes"
    vocabulary_size: int = 1024
    vocabulary_path: str = ""
    lower_case: bool = False
    most_sequences: int | None = None
    most_test_sequences: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_classes(self.class_names)
        check_whole("T (length of a sequence)", self.length)
        check_whole("vocabulary_size", self.vocabulary_size, 258)
        check_whole("most_test_sequences", self.most_test_sequences)
        if self.most_sequences is not None:
            check_whole("most_sequences", self.most_sequences)
        if self.label_column and self.tag_column:
            raise ValueError(
                f"label_column and tag_column must not both be named; got {self.label_column!r} and "
                f"{self.tag_column!r}. A text has one label, or a tag for each piece."
            )
        if not self.text_column and self._classed:
            raise ValueError(
                "text_column must be named with label_column or tag_column; got none. A folder of .txt files "
                "has no labels."
            )

    @property
    def _classed(self) -> bool:
        return bool(self.label_column or self.tag_column)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The declared labels, ranges written out."""
        return classes_of(self.class_names)

    @property
    def columns(self) -> TextColumns:
        """What is read of a table; whose a text was is not, where users are made up."""
        user = self.user_column if self.partition == "natural" or self.holds_out_users else ""
        return TextColumns(self.text_column, self.label_column, self.tag_column, user)

    def declared(self) -> dict[str, bool]:
        """See `RowOptions.declared`."""
        return {
            "class_names": bool(self.class_names) or not self._classed,
            "vocabulary_path": bool(self.vocabulary_path) or self.vocabulary == "bytes",
        }

    def example_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.example_inputs`."""
        known = self.declared()["vocabulary_path"]
        words = str(self.public_tokens()) if known else f"{self.vocabulary}, of the rows"
        source = "fixed" if self.vocabulary == "bytes" else f"public file {self.vocabulary_path}"
        return (
            PublicInput("vocabulary", words, source if known else "made from the rows: not for private runs"),
            PublicInput("shape of an example", in_words((self.length,)), "configuration"),
            *([class_input(self.class_names)] if self._classed else []),
        )

    def public_tokens(self, rows: tuple[bytes, ...] = ()) -> Vocabulary:
        """The vocabulary.

        Args:
            rows: what it is made from where nothing public is named.

        Raises:
            ValueError: the public file cannot be used, or the library tokenizers is not there.
        """
        path = Path(self.vocabulary_path).expanduser() if self.vocabulary_path else None
        return public_vocabulary(self.vocabulary, path, rows, self.vocabulary_size, self.lower_case)

    @abstractmethod
    def rows(self) -> TextRows:
        """The texts as they are found."""

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`.

        Raises:
            ValueError: the texts cannot be read, or nothing is held out.
        """
        rows, roster = self.rows(), self.users_on_roster(self.holds_out_users)
        users = roster or rows.users.ordered(as_numbers=False)
        classes = self.classes or self._classes_of(rows)
        labels = (
            rows.labels.among(classes) if self.label_column else np.zeros(len(rows.texts), dtype=np.int64)
        )
        dealt = self.dealt(rows.users.among(users), users, labels, np.random.default_rng([self.seed, 0x7E47]))
        vocabulary = self.public_tokens(tuple(rows.texts))
        parts = [self._examples(rows, row, vocabulary, labels, classes) for row in range(len(rows.texts))]
        edges = np.cumsum([0, *(len(features) for features, _ in parts)])
        features, targets = (torch.from_numpy(np.concatenate(side)) for side in zip(*parts, strict=True))
        chosen = [self._spaced(sequences_of(edges, mine[labels[mine] >= 0])) for mine in dealt.owned]
        tests = sequences_of(edges, np.flatnonzero(dealt.tests & (labels >= 0)))
        if not tests.size:
            raise ValueError(
                f"test_fraction must hold out at least one text that can be read; got none of {self.path}."
            )
        tests = tests[evenly(tests.size, self.most_test_sequences)]
        return InMemoryDataset(
            features=features,
            labels=targets,
            owned=Partition.of(chosen),
            user_ids=dealt.user_ids,
            test_features=features[tests],
            test_labels=targets[tests],
            classes=len(classes) if self._classed else 0,
            vocabulary=vocabulary.size,
            test_owner=self.test_owner,
        )

    def _spaced(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        return sequences[evenly(sequences.size, self.most_sequences)]

    def _classes_of(self, rows: TextRows) -> tuple[str, ...]:
        """The labels or tags that occur: for runs that declare none."""
        if self.tag_column:
            return tuple(
                sorted({tag for tags in rows.tags for tag in tags.decode("utf-8", "replace").split()})
            )
        return rows.labels.ordered(as_numbers=True)

    def _examples(
        self,
        rows: TextRows,
        row: int,
        vocabulary: Vocabulary,
        labels: NDArray[np.int64],
        classes: tuple[str, ...],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Features, shape (s, T), and labels of one text."""
        text = rows.texts[row]
        if self.tag_column:
            pieces = [vocabulary.encode(piece) for piece in text.split()]
            return tagged(pieces, rows.tags[row].decode("utf-8", "replace").split(), classes, self.length)
        tokens = vocabulary.encode(text)
        if self.label_column:
            return padded(tokens, self.length), labels[row : row + 1]
        return next_tokens(tokens, self.length)


@dataclass(frozen=True)
class Text(TextOptions):
    """Texts of a folder of .txt files, or of a column of CSV or Parquet files, cut into tokens.

    In a folder, each file, or each subfolder with all files in it, is a user by its name. A line of CSV ends
    at a line feed, quoted or not: texts of several lines need Parquet.

    >>> Text(path="notes", length=32, vocabulary="words").undeclared()
    ('vocabulary_path', 'roster')
    """

    kind: ClassVar[str] = "text"

    def rows(self) -> TextRows:
        """See `TextOptions.rows`."""
        path = Path(self.path).expanduser()
        return read_text_table(path, self.columns) if self.text_column else read_text_folder(path)
