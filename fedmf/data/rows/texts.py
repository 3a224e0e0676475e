"""Texts of users: what they are cut into, and which vocabulary they are written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import PublicInput, in_words
from fedmf.data.partitions import Partition
from fedmf.data.rows.cells import TextColumn
from fedmf.data.rows.labelled_rows import LabelledRows
from fedmf.data.tokens import (
    SequenceOptions,
    Vocabulary,
    evenly,
    next_tokens,
    padded,
    public_vocabulary,
    tagged,
)
from fedmf.values import Field

#: As a column of texts: the .txt files of a folder.
TXT_FILES: Final = "*.txt"


@dataclass(frozen=True)
class TextRows(LabelledRows, SequenceOptions):
    """Rows with columns that may be texts; abstract. Examples of texts are sequences of T tokens.

    Without label and tag column the token that follows each is to be learnt (`next_tokens`); with a label
    column a class for each text, of which the first T tokens are kept; with a tag column a class for each
    piece of a text, pieces and tags being what stands between blanks. Every text becomes tokens, whatever its
    bytes are; a text whose label is none of the classes counts for nobody.
    """

    label_column: Annotated[str, Field("name of the label column; none beside a column of texts")] = ""
    text_column: Annotated[str, Field("name of the column of texts, whose tokens are the features")] = ""
    tag_column: Annotated[str, Field("name of the column with a tag for each piece of a text")] = ""
    vocabulary: Annotated[
        Literal["bytes", "words", "bpe"], Field("bytes, or words or bpe from a public text or tokenizer")
    ] = "bytes"
    vocabulary_path: Annotated[
        str, Field("public text or tokenizer.json of the vocabulary; needed for privacy")
    ] = ""
    lower_case: Annotated[bool, Field("whether words are lower-cased")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_column and self.label_column and self.tag_column:
            raise ValueError(
                f"label_column and tag_column must not both be named; got {self.label_column!r} and "
                f"{self.tag_column!r}. A text has one label, or a tag for each piece."
            )
        if self.tag_column and not self.text_column:
            raise ValueError("text_column must be named with tag_column; got none.")
        if self.text_column == TXT_FILES and self._classed:
            raise ValueError(
                f"label_column and tag_column must be left out with text_column {TXT_FILES!r}: a folder of "
                ".txt files has no labels."
            )

    @property
    def unlabelled(self) -> bool:
        """See `LabelledRows.unlabelled`."""
        return bool(self.text_column)

    @property
    def _classed(self) -> bool:
        return bool(self.label_column or self.tag_column)

    @property
    def columns_of_texts(self) -> list[tuple[str, str]]:
        """(key, name) of what is read; whose a text was is not, where users are made up."""
        user = self.user_column if self.partition == "natural" or self.holds_out_users else ""
        keys = {
            "text_column": self.text_column,
            "label_column": self.label_column,
            "tag_column": self.tag_column,
            "user_column": user,
        }
        return [(key, name) for key, name in keys.items() if name]

    def declared(self) -> dict[str, bool]:
        """See `RowOptions.declared`."""
        if not self.text_column:
            return super().declared()
        return {
            "class_names": bool(self.class_names) or not self._classed,
            "vocabulary_path": bool(self.vocabulary_path) or self.vocabulary == "bytes",
        }

    def example_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.example_inputs`."""
        if not self.text_column:
            return super().example_inputs()
        known = self.declared()["vocabulary_path"]
        words = str(self.public_tokens()) if known else f"{self.vocabulary}, of the rows"
        source = "fixed" if self.vocabulary == "bytes" else f"public file {self.vocabulary_path}"
        return (
            PublicInput("vocabulary", words, source if known else "made from the rows: not for private runs"),
            PublicInput("shape of an example", in_words((self.length,)), "configuration"),
            *([self.class_input()] if self._classed else []),
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

    def dataset_of_texts(self, columns: Mapping[str, list[Any]]) -> InMemoryDataset:
        """Texts as tokens, spread over users.

        Args:
            columns: chunks of bytes of each column, by its name. A missing text is an empty one.

        Raises:
            ValueError: nothing is held out.
        """
        texts = [cell or b"" for chunk in columns[self.text_column] for cell in chunk.to_pylist()]
        nothing = TextColumn.without_names(len(texts))
        named = dict(self.columns_of_texts)
        label, user = (
            TextColumn.of(columns[named[key]]) if key in named else nothing
            for key in ("label_column", "user_column")
        )
        tags = [(cell or b"").decode("utf-8", "replace").split() for cell in _cells(columns, self.tag_column)]
        users = self.users_on_roster(self.holds_out_users) or user.ordered(as_numbers=False)
        occurring = (
            tuple(sorted({tag for row in tags for tag in row})) if tags else label.ordered(as_numbers=True)
        )
        classes = self.classes or occurring
        labels = label.among(classes) if self.label_column else np.zeros(len(texts), dtype=np.int64)
        dealt = self.dealt(user.among(users), users, labels, np.random.default_rng([self.seed, 0x7E47]))
        vocabulary = self.public_tokens(tuple(texts))

        def examples(row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            """Features, shape (s, T), and labels of one text."""
            if self.tag_column:
                pieces = [vocabulary.encode(piece) for piece in texts[row].split()]
                return tagged(pieces, tags[row], classes, self.length)
            tokens = vocabulary.encode(texts[row])
            if self.label_column:
                return padded(tokens, self.length), labels[row : row + 1]
            return next_tokens(tokens, self.length)

        parts = [examples(row) for row in range(len(texts))]
        edges = np.cumsum([0, *(len(features) for features, _ in parts)])
        features, targets = (torch.from_numpy(np.concatenate(side)) for side in zip(*parts, strict=True))
        chosen = [sequences_of(edges, mine[labels[mine] >= 0]) for mine in dealt.owned]
        tests = sequences_of(edges, np.flatnonzero(dealt.tests & (labels >= 0)))
        if not tests.size:
            raise ValueError(
                f"test_fraction must hold out at least one text that can be read; got none of {self.path}."
            )
        tests = tests[evenly(tests.size, self.most_test_sequences)]
        return InMemoryDataset(
            features=features,
            labels=targets,
            owned=Partition.of([own[evenly(own.size, self.most_sequences)] for own in chosen]),
            user_ids=dealt.user_ids,
            test_features=features[tests],
            test_labels=targets[tests],
            classes=len(classes) if self._classed else 0,
            vocabulary=vocabulary.size,
            test_owner=self.test_owner,
        )


def sequences_of(edges: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sequences of some texts, one text after the other.

    Args:
        edges: text r has the sequences edges[r], …, edges[r + 1] − 1.
        rows: which texts.
    """
    return np.concatenate(
        [np.arange(0), *(np.arange(int(edges[row]), int(edges[row + 1])) for row in rows.tolist())]
    )


def _cells(columns: Mapping[str, list[Any]], name: str) -> list[bytes | None]:
    return [cell for chunk in columns.get(name, []) for cell in chunk.to_pylist()]
