"""Destinations of releases: JSON lines, CSV, Parquet, standard output, or the caller.

`StreamRun` writes committed releases here, and notes with its next commit how much of the output is
durable, so that a resumed stream neither omits nor repeats one.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, final

import numpy as np

from fedmf.data.table_reader import FORMATS, format_of
from fedmf.errors import ConfigError
from fedmf.ledger.durable_files import replace_durably, write_at
from fedmf.streaming.private_release import Fields, Renderer, listed
from fedmf.streaming.state import ReleaseBlock

_GROUP_NUMBERS: Final = 1 << 20


def json_lines(renderer: Renderer, releases: ReleaseBlock) -> bytes:
    """A JSON object per release, with the names of its columns."""
    fields = renderer.fields(releases)
    encoder = json.JSONEncoder(allow_nan=False, check_circular=False)
    lines = []
    for values in zip(*map(listed, fields.values()), strict=True):
        release = dict(zip(fields, values, strict=True))
        release["columns"] = renderer.names
        lines.append(encoder.encode(release) + "\n")
    return "".join(lines).encode()


def csv_lines(renderer: Renderer, releases: ReleaseBlock) -> bytes:
    """A row per release, with a header before the first release of the stream."""
    columns = flat(renderer, renderer.fields(releases))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not releases.first:
        writer.writerow(columns)
    writer.writerows(zip(*map(listed, columns.values()), strict=True))
    return text.getvalue().encode()


def flat(renderer: Renderer, fields: Fields) -> Fields:
    """A column per number, such as "mean:speed" and "covariance:speed:load"."""
    columns: Fields = {}
    for quantity, values in fields.items():
        if values.ndim == 1:
            columns[quantity] = values
            continue
        names = _axis_names(renderer, values.shape[1])
        for i, name in enumerate(names):
            if values.ndim == 2:
                columns[f"{quantity}:{name}"] = values[:, i]
                continue
            start = i
            if quantity.startswith("correlation"):  # that of a number with itself is 1
                start += 1
            for j in range(start, len(names)):
                columns[f"{quantity}:{name}:{names[j]}"] = values[:, i, j]
    return columns


def _axis_names(renderer: Renderer, size: int) -> Sequence[str]:
    """The names of the entries along an axis: numbers of a row, coordinates, or blocks."""
    if size == len(renderer.names):
        return renderer.names
    if size == len(renderer.coordinates):
        return renderer.coordinates
    return [f"block {i}" for i in range(1, size + 1)]


class Output:
    """A destination of releases; this one does nothing, as the caller gets them."""

    #: Names the place and its content, so that a resumed stream can compare them.
    name = "returned"
    #: Whether sums and the covariance before projection are included.
    raw = True

    def begin(self, written: int) -> bool:
        """Prepare to continue after that many bytes; return False if the output starts anew."""
        return True

    def write(self, renderer: Renderer, releases: ReleaseBlock) -> None:
        """Append releases."""

    def flush(self) -> int:
        """Make everything durable; return its size in bytes."""
        return 0

    def finish(
        self, renderer: Renderer, releases: Callable[[int, int], ReleaseBlock], records: int
    ) -> None:
        """Complete the output after the end of the input, or after the last step.

        Args:
            renderer: of the releases.
            releases: returns the releases start … stop − 1.
            records: how many releases there are.
        """

    def close(self) -> None:
        """Close the file."""


@final
class Lines(Output):
    """Lines of a file, or JSON lines on standard output.

    On standard output a resumed stream continues with the first release that may not have been
    written.
    """

    def __init__(self, path: Path | None, raw: bool) -> None:
        self.name = _name(path, raw)
        self.raw = raw
        self._path = path
        self._lines = json_lines
        if path is not None and format_of(path) == "csv":
            self._lines = csv_lines
        self._descriptor = -1
        self._size = 0

    def begin(self, written: int) -> bool:
        """Open the file and cut off what follows the durable bytes, or all if some are missing."""
        if self._path is None:
            return True
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"output (file) must be writable; got {self._path}: {error.strerror}."
            ) from None
        complete = os.fstat(self._descriptor).st_size >= written
        if complete:
            self._size = written
        os.ftruncate(self._descriptor, self._size)
        return complete

    def write(self, renderer: Renderer, releases: ReleaseBlock) -> None:
        """Append a line per release."""
        if not len(releases):
            return
        content = self._lines(renderer, releases)
        if self._descriptor >= 0:
            self._size += write_at(self._descriptor, content, self._size)
        else:
            sys.stdout.write(content.decode())

    def flush(self) -> int:
        """Make all lines durable; return their size in bytes."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
        else:
            sys.stdout.flush()
        return self._size

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


@final
class ParquetFile(Output):
    """A Parquet file, written in one piece when the input has ended."""

    def __init__(self, path: Path, raw: bool) -> None:
        self.name = _name(path, raw)
        self.raw = raw
        self._path = path

    def finish(
        self, renderer: Renderer, releases: Callable[[int, int], ReleaseBlock], records: int
    ) -> None:
        """Write the file under a temporary name and move it to its place."""
        from pyarrow import parquet

        fields = renderer.fields(releases(0, 0))
        numbers = sum(int(np.prod(values.shape[1:])) for values in fields.values())
        group = max(1, _GROUP_NUMBERS // numbers)
        schema = _table(fields).schema

        def write(file: BinaryIO) -> None:
            with parquet.ParquetWriter(
                file, schema, compression="zstd", use_dictionary=False
            ) as writer:
                for start in range(0, records, group):
                    block = renderer.fields(releases(start, min(start + group, records)))
                    writer.write_table(_table(block), group)

        replace_durably(self._path, write, mode=0o644)


def open_output(path: Path | None, fresh: bool, raw: bool = False) -> Output:
    """The output for a file name: CSV, Parquet or JSON lines by its ending.

    Args:
        path: of the file; None for standard output.
        fresh: whether this stream has no releases there yet; then the file must not exist.
        raw: whether sums and the covariance before projection are included.

    Raises:
        ValueError: the file exists, its folder does not, or its ending is unknown.
    """
    if path is None:
        return Lines(None, raw)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"output (file) must lie in a folder that exists; got {path}.")
    if path.is_dir() or (fresh and path.exists()):
        raise ValueError(
            f"output (file) must not exist before the stream; got {path}. Choose another name."
        )
    known = [*FORMATS["csv"], *FORMATS["jsonl"], *FORMATS["parquet"]]
    if path.suffix.lower() not in ("", *known):
        raise ValueError(
            f"output (file) must end in {', '.join(known)}, or have no suffix (JSON lines); got "
            f"{path.name!r}."
        )
    if format_of(path) == "parquet":
        return ParquetFile(path, raw)
    return Lines(path, raw)


def _name(path: Path | None, raw: bool) -> str:
    name = "-" if path is None else str(path.absolute())
    return f"{name} (raw)" if raw else name


def _table(columns: Fields) -> Any:
    """An Arrow table, with nulls for NaN, and nested lists for every axis after the first."""
    import pyarrow as arrow

    table = {}
    for name, values in columns.items():
        kind = arrow.string() if values.dtype == object else None
        nested = arrow.array(np.ascontiguousarray(values).reshape(-1), kind, from_pandas=True)
        for axis in range(values.ndim - 1, 0, -1):
            lists = int(np.prod(values.shape[:axis]))
            starts = np.arange(lists + 1, dtype=np.int32) * values.shape[axis]
            nested = arrow.ListArray.from_arrays(arrow.array(starts, arrow.int32()), nested)
        table[name] = nested
    return arrow.table(table)


def release_table(renderer: Renderer, releases: ReleaseBlock) -> Any:
    """Releases as an Arrow table, with a row per release and a column per number."""
    return _table(flat(renderer, renderer.fields(releases)))
