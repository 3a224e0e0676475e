"""Releases as JSON lines or Parquet."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.moments import mean_noise_variances
from fedmf.records import replace_durably
from fedmf.streaming.stream_plan import StreamPlan
from fedmf.typing import Array

__all__ = ["JsonLinesFile", "Output", "ParquetFile", "Renderer", "Returned", "StandardOutput", "open_output"]

_GROUP_BYTES: Final = 1 << 25


class Renderer:
    """The fields of a release from its numbers; elementwise, so that no release depends on its neighbours.

    With w_t = Σ_i [A₁]_{ti}, v_t = τ₁²·‖(A₁C₁⁻¹)_t‖² and A₁ = A₂, Y_t/w_t is the private mean of the rows
    with weights [A₁]_{ti}/w_t, and S_t/w_t − (Y_t/w_t)(Y_t/w_t)ᵀ + v_t/w_t²·I their covariance, unbiased.
    """

    def __init__(self, plan: StreamPlan) -> None:
        self._plan, self._moment = plan, plan.second_moment
        first, second = plan.workloads
        self._variances = mean_noise_variances(plan.mechanism, first)
        self._errors = self._variances.sqrt()
        # Rows of an average sum to one, which 1/t taken t times misses in the last bit.
        sums = np.ones(plan.rounds) if first.name == "average" else first.row_sums()
        self._weights = torch.from_numpy(sums)
        self._covariance = second is first and self._moment.gives_covariance

    def fields(self, record: int, releases: Array) -> dict[str, NDArray[Any]]:
        """t, first, second, mean, covariance and the standard error of `first`, each with a row per release.

        The covariance is there where both moments have one workload and the second holds squares.

        Args:
            record: number of the first release, from 0.
            releases: first and packed second moments, shape (releases, width).
        """
        d = self._plan.layout.dimension
        steps = torch.tensor(
            [self._plan.step_of(record + i) for i in range(len(releases))], dtype=torch.int64
        )
        weights = self._weights[steps - 1]
        first = torch.from_numpy(releases[:, :d])
        second = self._moment.unpack(torch.from_numpy(releases[:, d:]))
        mean = first / weights[:, None]
        fields = {"t": steps, "first": first, "second": second, "mean": mean}
        if self._covariance:
            scaled = second / weights.reshape(-1, *(second.ndim - 1) * [1])
            noise = self._variances[steps - 1] / weights**2
            fields["covariance"] = self._moment.covariances(mean, scaled, noise)
        fields["standard_error"] = self._errors[steps - 1]
        return {name: values.numpy() for name, values in fields.items()}

    def lines(self, record: int, releases: Array) -> bytes:
        """JSON lines of the releases."""
        fields = self.fields(record, releases)
        columns = [values.tolist() for values in fields.values()]
        dump = json.JSONEncoder(allow_nan=False, check_circular=False).encode
        rows = (dump(dict(zip(fields, row, strict=True))) for row in zip(*columns, strict=True))
        return "".join(row + "\n" for row in rows).encode()


class Output(ABC):
    """Where releases go; abstract."""

    #: Names the place, so that a resumed stream knows whether it is the same.
    name: str
    #: Whether lines are written as the stream goes.
    takes_lines = True

    @abstractmethod
    def begin(self, written: int) -> bool:
        """Get ready to go on after that many bytes; False where only a fresh start is possible, now begun."""

    @abstractmethod
    def write(self, content: bytes) -> None:
        """Append."""

    @abstractmethod
    def flush(self) -> int:
        """Make all of it durable; how many bytes there are."""

    def finish(  # noqa: B027 - most outputs have nothing left to do
        self, renderer: Renderer, releases: Callable[[int, int], Array], records: int
    ) -> None:
        """Called when the input has ended, or all steps were taken."""

    def close(self) -> None:  # noqa: B027
        """Close the file."""


@final
class JsonLinesFile(Output):
    """One JSON object a line, appended as the stream goes."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path.absolute()), path
        self._descriptor, self._size = -1, 0

    def begin(self, written: int) -> bool:
        """See `Output.begin`."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        whole = os.fstat(self._descriptor).st_size >= written
        self._size = written if whole else 0
        os.ftruncate(self._descriptor, self._size)
        return whole

    def write(self, content: bytes) -> None:
        """See `Output.write`."""
        view = memoryview(content)
        while view:
            done = os.pwrite(self._descriptor, view, self._size)
            view, self._size = view[done:], self._size + done

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
    """JSON lines on standard output; a resumed stream goes on with the first release not known to be out."""

    name = "-"

    def begin(self, written: int) -> bool:
        """See `Output.begin`."""
        return True

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

    def begin(self, written: int) -> bool:
        """See `Output.begin`."""
        return True

    def write(self, content: bytes) -> None:
        """See `Output.write`."""

    def flush(self) -> int:
        """See `Output.flush`."""
        return 0


@final
class ParquetFile(Output):
    """A Parquet file, written in one piece when the input has ended."""

    takes_lines = False

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path.absolute()), path

    def begin(self, written: int) -> bool:
        """See `Output.begin`."""
        return True

    def write(self, content: bytes) -> None:
        """See `Output.write`."""

    def flush(self) -> int:
        """See `Output.flush`."""
        return 0

    def finish(self, renderer: Renderer, releases: Callable[[int, int], Array], records: int) -> None:
        """Write the file beside its place and move it there."""
        from pyarrow import parquet

        table = _table(renderer.fields(0, releases(0, 0)))
        group = max(1, _GROUP_BYTES // (8 * sum(_numbers(values) for values in _shapes(renderer, releases))))

        def write(file: BinaryIO) -> None:
            with parquet.ParquetWriter(
                file, table.schema, compression="zstd", use_dictionary=False
            ) as writer:
                for start in range(0, records, group):
                    stop = min(start + group, records)
                    writer.write_table(_table(renderer.fields(start, releases(start, stop))), group)

        replace_durably(self._path, write, mode=0o644)


def open_output(path: Path | None, fresh: bool) -> Output:
    """The output of a file name: .parquet, or JSON lines with any other; standard output for None.

    Args:
        path: where.
        fresh: whether this stream has no releases there yet; then the file must not exist.

    Raises:
        ValueError: the file exists or its folder does not.
    """
    if path is None:
        return StandardOutput()
    if not path.absolute().parent.is_dir():
        raise ValueError(f"output (file) must lie in a folder that exists; got {path}.")
    if path.is_dir() or (fresh and path.exists()):
        raise ValueError(f"output (file) must not exist before the stream; got {path}. Choose another name.")
    return ParquetFile(path) if path.suffix.lower() in (".parquet", ".pq") else JsonLinesFile(path)


def _shapes(renderer: Renderer, releases: Callable[[int, int], Array]) -> list[tuple[int, ...]]:
    return [values.shape[1:] for values in renderer.fields(0, releases(0, 0)).values()]


def _numbers(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _table(fields: dict[str, NDArray[Any]]) -> Any:
    import pyarrow as arrow

    return arrow.table({name: _nested(values) for name, values in fields.items()})


def _nested(values: NDArray[Any]) -> Any:
    """An Arrow array with a list for every axis after the first."""
    import pyarrow as arrow

    nested = arrow.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        count = _numbers(values.shape[:axis])
        offsets = np.arange(count + 1, dtype=np.int32) * values.shape[axis]
        nested = arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), nested)
    return nested
