"""Where releases go: JSON lines, CSV, Parquet, standard output, or back to the caller."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable
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
    """A JSON object a release, with the names of its columns."""
    fields = renderer.fields(releases)
    columns = {"columns": renderer.names}
    dump = json.JSONEncoder(allow_nan=False, check_circular=False).encode
    rows = zip(*map(listed, fields.values()), strict=True)
    return "".join(
        dump(dict(zip(fields, row, strict=True)) | columns) + "\n" for row in rows
    ).encode()


def csv_lines(renderer: Renderer, releases: ReleaseBlock) -> bytes:
    """A row a release, under one header before the first of them."""
    columns = flat(renderer, renderer.fields(releases))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not releases.first:
        writer.writerow(columns)
    told = (
        ["" if value is None else value for value in listed(values)] for values in columns.values()
    )
    writer.writerows(zip(*told, strict=True))
    return text.getvalue().encode()


def flat(renderer: Renderer, fields: Fields) -> Fields:
    """Columns of numbers by name, "mean:speed" and "covariance:speed:load" say, a row each
    release.
    """
    names = renderer.names
    blocks = [f"block {i}" for i in range(1, renderer.plan.second_moment.size + 1)]
    told: Fields = {}
    for quantity, values in fields.items():
        if values.ndim == 1:
            told[quantity] = values
            continue
        d = values.shape[1]
        of = (
            names
            if d == len(names)
            else renderer.coordinates
            if d == len(renderer.coordinates)
            else blocks
        )
        for i in range(d):
            if values.ndim == 2:
                told[f"{quantity}:{of[i]}"] = values[:, i]
                continue
            for j in range(i + quantity.startswith("correlation"), d):
                told[f"{quantity}:{of[i]}:{of[j]}"] = values[:, i, j]
    return told


class Output:
    """Where releases go; this one keeps nothing: the caller gets them."""

    #: Names the place and what stands there, so that a resumed stream knows whether it is the same.
    name = "returned"
    #: Whether sums and the covariance before projection are said too.
    raw = True

    def begin(self, written: int) -> bool:
        """Get ready to continue after that many bytes; False where it starts anew."""
        return True

    def write(self, renderer: Renderer, releases: ReleaseBlock) -> None:
        """Append releases."""

    def flush(self) -> int:
        """Make all of it durable; how many bytes there are."""
        return 0

    def finish(
        self, renderer: Renderer, releases: Callable[[int, int], ReleaseBlock], records: int
    ) -> None:
        """Called when the input has ended, or all steps were taken."""

    def close(self) -> None:
        """Close the file."""


@final
class Lines(Output):
    """Lines of a file, or JSON lines on standard output, where a resumed stream continues with the
    first release that is not known to be out.
    """

    def __init__(self, path: Path | None, raw: bool) -> None:
        self.name = _name(path, raw)
        self.raw = raw
        self._path = path
        self._lines = csv_lines if path is not None and format_of(path) == "csv" else json_lines
        self._descriptor = -1
        self._size = 0

    def begin(self, written: int) -> bool:
        """See `Output.begin`."""
        if self._path is None:
            return True
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"output (file) must be writable; got {self._path}: {error.strerror}."
            ) from None
        whole = os.fstat(self._descriptor).st_size >= written
        self._size = written if whole else 0
        os.ftruncate(self._descriptor, self._size)
        return whole

    def write(self, renderer: Renderer, releases: ReleaseBlock) -> None:
        """See `Output.write`."""
        content = self._lines(renderer, releases) if len(releases) else b""
        if self._descriptor >= 0:
            self._size += write_at(self._descriptor, content, self._size)
        else:
            sys.stdout.write(content.decode())

    def flush(self) -> int:
        """See `Output.flush`."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
        else:
            sys.stdout.flush()
        return self._size

    def close(self) -> None:
        """See `Output.close`."""
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
        """Write the file next to its place and move it there."""
        from pyarrow import parquet

        fields = renderer.fields(releases(0, 0))
        group = max(
            1, _GROUP_NUMBERS // sum(int(np.prod(part.shape[1:])) for part in fields.values())
        )
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
    """The output of a file name, by its ending: CSV, Parquet or JSON lines; standard output for
    None.

    Args:
        path: where.
        fresh: whether this stream has no releases there yet; then the file must not exist.
        raw: whether sums and the covariance before projection are said too.

    Raises:
        ValueError: the file exists, its folder does not, or its ending says nothing.
    """
    if path is None:
        return Lines(None, raw)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"output (file) must lie in a folder that exists; got {path}.")
    if path.is_dir() or (fresh and path.exists()):
        raise ValueError(
            f"output (file) must not exist before the stream; got {path}. Choose another name."
        )
    known = [ending for endings in FORMATS.values() for ending in endings]
    if path.suffix.lower() not in ("", *known):
        raise ValueError(
            f"output (file) must end in {', '.join(known)}, or have no suffix (JSON lines); got "
            f"{path.name!r}."
        )
    return ParquetFile(path, raw) if format_of(path) == "parquet" else Lines(path, raw)


def _name(path: Path | None, raw: bool) -> str:
    return ("-" if path is None else str(path.absolute())) + (" (raw)" if raw else "")


def _table(columns: Fields) -> Any:
    """An Arrow table, with nulls for what cannot be told, and a list for every axis after the
    first.
    """
    import pyarrow as arrow

    table = {}
    for name, values in columns.items():
        kind = arrow.string() if values.dtype == object else None
        nested = arrow.array(np.ascontiguousarray(values).reshape(-1), kind, from_pandas=True)
        for axis in range(values.ndim - 1, 0, -1):
            starts = (
                np.arange(int(np.prod(values.shape[:axis])) + 1, dtype=np.int32)
                * values.shape[axis]
            )
            nested = arrow.ListArray.from_arrays(arrow.array(starts, arrow.int32()), nested)
        table[name] = nested
    return arrow.table(table)


def release_table(renderer: Renderer, releases: ReleaseBlock) -> Any:
    """Releases as an Arrow table, a row each and a column for each number."""
    return _table(flat(renderer, renderer.fields(releases)))
