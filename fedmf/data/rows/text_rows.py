"""Texts with their users and labels from files; what stands in one text decides only that one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

from fedmf.data.rows.table_file import row_batches, row_files
from fedmf.data.rows.text_column import TextColumn, bytes_of


@dataclass(frozen=True)
class TextColumns:
    """Names of columns; "" for one that there is not.

    Args:
        text: the texts.
        label: a class for each text.
        tags: the tags of a text's pieces, between blanks.
        user: whose it is.
    """

    text: str
    label: str = ""
    tags: str = ""
    user: str = ""

    @property
    def names(self) -> dict[str, str]:
        """Those that there are, by the key of a configuration that names them."""
        named = {"text_column": self.text, "label_column": self.label, "tag_column": self.tags}
        return {key: name for key, name in (named | {"user_column": self.user}).items() if name}

    def among(self, file: Path | str, present: list[str]) -> list[str]:
        """The columns to read, in order.

        Raises:
            ValueError: one is not there, or is there twice, or is asked for twice.
        """
        for key, name in self.names.items():
            if present.count(name) != 1:
                raise ValueError(
                    f"{key} must name one column of {file}; got {name!r}, which occurs {present.count(name)} "
                    "times."
                )
        wanted = list(self.names.values())
        if len(set(wanted)) < len(wanted):
            raise ValueError(
                f"columns of texts, labels, tags and users must differ; got {', '.join(wanted)}."
            )
        return wanted


@dataclass(frozen=True)
class TextRows:
    """Texts as they were found.

    Args:
        texts: bytes that should be UTF-8; empty for one that is missing.
        tags: likewise, of the texts' pieces; empty texts where there are none.
        labels: different labels and which of them each text has.
        users: likewise.
    """

    texts: list[bytes]
    tags: list[bytes]
    labels: TextColumn
    users: TextColumn


def read_text_table(path: Path, columns: TextColumns) -> TextRows:
    """The rows of a CSV or Parquet file, or of all such files of a folder in the order of their names.

    A line of CSV ends at a line feed, quoted or not, so that texts of several lines need Parquet.

    Raises:
        ValueError: nothing readable there, or columns that are missing or hold no text.
    """
    parts: dict[str, list[Any]] = {name: [] for name in columns.names.values()}
    for file in row_files(path):
        for batch in row_batches(file, partial(columns.among, file), list(parts)):
            for name, chunks in parts.items():
                column = batch.column(name)
                whole = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
                chunks.append(bytes_of(whole, f"column {name!r} of {file}"))
    return text_rows(parts, columns)


def text_rows(parts: dict[str, list[Any]], columns: TextColumns) -> TextRows:
    """Rows from the arrays of bytes of their columns.

    Args:
        parts: chunks of each column, by its name.
        columns: which is what.
    """
    texts = list(_bytes(parts[columns.text]))
    tags = list(_bytes(parts[columns.tags])) if columns.tags else [b""] * len(texts)
    nothing = TextColumn(("",), np.zeros(len(texts), dtype=np.int64))
    labels = TextColumn.of(parts[columns.label]) if columns.label else nothing
    users = TextColumn.of(parts[columns.user]) if columns.user else nothing
    return TextRows(texts, tags, labels, users)


def read_text_folder(path: Path) -> TextRows:
    """The ``.txt`` files of a folder: a file, or all files of a subfolder, are the texts of one user.

    Names are those of the files without their ending, or of the subfolders; texts come in the order of their
    paths. A file that cannot be read is an empty text.

    Raises:
        ValueError: no such folder, or no such file in it.
    """
    owned: list[tuple[str, Path]] = []
    for entry in sorted(path.iterdir()) if path.is_dir() else ():
        if entry.is_dir():
            owned += ((entry.name, file) for file in sorted(entry.rglob("*.txt")))
        elif entry.suffix == ".txt":
            owned.append((entry.stem, entry))
    if not owned:
        raise ValueError(f"path must name a folder with .txt files, or folders of them; got {path}.")
    names = [name.encode("utf-8", "surrogateescape") for name, _ in owned]
    texts = [_content(file) for _, file in owned]
    users = TextColumn.of([arrow.array(names, type=arrow.large_binary())])
    return TextRows(texts, [b""] * len(texts), TextColumn(("",), np.zeros(len(texts), dtype=np.int64)), users)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _bytes(chunks: list[Any]) -> Iterator[bytes]:
    for chunk in chunks:
        yield from (value or b"" for value in chunk.to_pylist())


def sequences_of(edges: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sequences of some texts, one text after the other.

    Args:
        edges: text r has the sequences edges[r], …, edges[r + 1] − 1.
        rows: which texts.
    """
    return np.concatenate(
        [np.arange(0), *(np.arange(int(edges[row]), int(edges[row + 1])) for row in rows.tolist())]
    )
