"""Where releases go: files, standard output, or back to whoever gave the rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, final

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import ConfigError
from fedmf.records import replace_durably, write_at
from fedmf.streaming.outputs.renderer import Renderer
from fedmf.streaming.outputs.shapes import SHAPES, Shape
from fedmf.streaming.position import Releases
from fedmf.streaming.rows import FORMATS

_GROUP_BYTES: Final = 1 << 25
#: About what a label takes in memory.
_LABEL_BYTES: Final = 256


class Output:
    """Where releases go; this one keeps nothing, which is what an output has that does not say otherwise."""

    #: Names the place, so that a resumed stream knows whether it is the same.
    name: str
    #: Whether lines are written as the stream goes.
    takes_lines = True
    #: How releases are written where lines are taken.
    shape: Shape = staticmethod(SHAPES["json"])
    #: Whether a release says its density.
    density = False

    def begin(self, written: int) -> bool:
        """Get ready to go on after that many bytes; False where only a fresh start is possible, now begun."""
        return True

    def write(self, content: bytes) -> None:
        """Append."""

    def flush(self) -> int:
        """Make all of it durable; how many bytes there are."""
        return 0

    def finish(self, renderer: Renderer, releases: Callable[[int, int], Releases], records: int) -> None:
        """Called when the input has ended, or all steps were taken."""

    def close(self) -> None:
        """Close the file."""


@final
class TextFile(Output):
    """Lines, appended as the stream goes."""

    def __init__(self, path: Path, shape: str, density: bool) -> None:
        self.name, self._path, self.shape = output_name(path, shape, density), path, SHAPES[shape]
        self.density = density
        self._descriptor, self._size = -1, 0

    def begin(self, written: int) -> bool:
        """See `Output.begin`."""
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

    def write(self, content: bytes) -> None:
        """See `Output.write`."""
        self._size += write_at(self._descriptor, content, self._size)

    def flush(self) -> int:
        """See `Output.flush`."""
        os.fsync(self._descriptor)
        return self._size

    def close(self) -> None:
        """See `Output.close`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


@final
class StandardOutput(Output):
    """Lines on standard output; a resumed stream goes on with the first release not known to be out."""

    def __init__(self, shape: str, density: bool) -> None:
        self.name, self.shape = output_name(None, shape, density), SHAPES[shape]
        self.density = density

    def write(self, content: bytes) -> None:
        """See `Output.write`."""
        sys.stdout.write(content.decode())

    def flush(self) -> int:
        """See `Output.flush`."""
        sys.stdout.flush()
        return 0


@final
class Returned(Output):
    """No place at all: whoever gave the rows gets the releases."""

    name = "returned"
    takes_lines = False


@final
class ParquetFile(Output):
    """A Parquet file, written in one piece when the input has ended."""

    takes_lines = False

    def __init__(self, path: Path, density: bool) -> None:
        self.name, self._path, self.density = output_name(path, density=density), path, density

    def finish(self, renderer: Renderer, releases: Callable[[int, int], Releases], records: int) -> None:
        """Write the file beside its place and move it there."""
        from pyarrow import parquet

        fields = renderer.fields(releases(0, 0))
        group, schema = max(1, _GROUP_BYTES // sum(map(_bytes, fields.values()))), _table(fields).schema

        def write(file: BinaryIO) -> None:
            with parquet.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
                for start in range(0, records, group):
                    stop = min(start + group, records)
                    writer.write_table(_table(renderer.fields(releases(start, stop))), group)

        replace_durably(self._path, write, mode=0o644)


def output_name(path: Path | None, shape: str = "json", density: bool = False) -> str:
    """Names a place and what stands there."""
    place = "-" if path is None else str(path.absolute())
    what = [name for name in (shape if shape != "json" else "", "density" if density else "") if name]
    return f"{place} ({', '.join(what)})" if what else place


def shape_of(path: Path | None, begun: str) -> str:
    """The shape of an output by its ending: CSV of a row a step for .csv, JSON lines for theirs or none.

    Args:
        path: the file; None for standard output.
        begun: the name under which a stream has written so far: JSON lines in a file of another ending go
            on.

    Raises:
        ValueError: an ending that says nothing.
    """
    if path is None or begun in (output_name(path), output_name(path, density=True)):
        return "json"
    shapes = {ending: "wide" if name == "csv" else "json" for name, of in FORMATS.items() for ending in of}
    known = {"": "json", **shapes}
    if (ending := path.suffix.lower()) not in known:
        raise ValueError(
            f"output (file) must end in {', '.join(filter(None, known))}, or in nothing for JSON lines; got "
            f"{path.name!r}. Or say its format: --format json, tidy or wide."
        )
    return known[ending]


def open_output(path: Path | None, fresh: bool, shape: str = "json", density: bool = False) -> Output:
    """The output of a file name: .parquet, or lines with any other; standard output for None.

    Args:
        path: where.
        shape: of lines, a name of `SHAPES`.
        fresh: whether this stream has no releases there yet; then the file must not exist.
        density: whether each release says its density.

    Raises:
        ValueError: the file exists or its folder does not, or a Parquet file is to have another shape.
    """
    if path is None:
        return StandardOutput(shape, density)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"output (file) must lie in a folder that exists; got {path}.")
    if path.is_dir() or (fresh and path.exists()):
        raise ValueError(f"output (file) must not exist before the stream; got {path}. Choose another name.")
    if path.suffix.lower() not in FORMATS["parquet"]:
        return TextFile(path, shape, density)
    if shape != "json":
        raise ValueError(f"format must be json for Parquet, a row each step; got {shape}. Name a .csv file.")
    return ParquetFile(path, density)


def _bytes(values: NDArray[Any]) -> int:
    """Of one release's part of a field."""
    return _LABEL_BYTES if values.dtype == object else 8 * _numbers(values.shape[1:])


def _numbers(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _table(fields: dict[str, NDArray[Any]]) -> Any:
    import pyarrow as arrow

    return arrow.table({name: _nested(values) for name, values in fields.items()})


def _nested(values: NDArray[Any]) -> Any:
    """An Arrow array with a list for every axis after the first."""
    import pyarrow as arrow

    if values.dtype == object:
        return arrow.array(values, arrow.string())
    nested = arrow.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        count = _numbers(values.shape[:axis])
        offsets = np.arange(count + 1, dtype=np.int32) * values.shape[axis]
        nested = arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), nested)
    return nested
