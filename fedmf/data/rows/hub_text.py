"""Texts of data sets in Hugging Face's format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmf.data.rows.hub import column_chunks, loaded
from fedmf.data.rows.text_column import bytes_of
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
