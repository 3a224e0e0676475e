"""Rows of a Parquet file, a few thousand at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from fedmf.data import texts_of_ids, written
from fedmf.streaming.rows import InputError, Layout, RowBlock, RowReader, label_of, wanted_columns

_BATCH: Final = 4096


@final
class ParquetReader(RowReader):
    """Number columns, or one column of lists of numbers.

    Args:
        path: of the file.
        columns: names of the number columns, or of the list column; None for all but the user's.
        user: name of the user's column.
        layout: of an earlier part of the same input, whose order of columns is kept.
        first_row: number of the first row in this file.
        labels: names of the columns of labels: text, numbers, dates or times, as Arrow writes them.
        check: refuses the names of all columns, if they are not those that were declared.

    Raises:
        InputError: not a Parquet file, a column is missing or does not hold what it should, or no rows.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[str] | None,
        user: str | None,
        layout: Layout | None = None,
        first_row: int = 1,
        labels: Sequence[str] = (),
        check: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._path, self.first_row, self._seen, self._user = path, first_row, 0, user
        self._labels = tuple(labels)
        with self._readable():
            self._file = parquet.ParquetFile(path)
        self.rows = self._file.metadata.num_rows
        schema = self._file.schema_arrow
        if check is not None:
            check(schema.names)
        self._columns = wanted_columns(schema.names, columns, user, labels, layout.columns if layout else ())
        self._batches = self._from(0)
        self._rest: Any = None
        vector = len(self._columns) == 1 and _is_list(schema.field(self._columns[0]).type)
        for name in self._columns:
            kind = schema.field(name).type.value_type if vector else schema.field(name).type
            if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
                raise InputError(f"column {name!r} must hold numbers; got {kind}.")
        if user is not None:
            _require_ids(schema.field(user).type, user)
        for name in labels:
            if not is_written_as_text(kind := schema.field(name).type):
                raise InputError(f"column {name!r} must hold text, numbers or times; got {kind}.")
        dimension = self._length(layout) if vector else len(self._columns)
        self.layout = Layout(tuple(self._columns), vector, dimension, user, self._labels)

    def read(self, most: int) -> RowBlock | None:
        """See `RowReader.read`."""
        while self._rest is None or not self._rest.num_rows:
            with self._readable():
                self._rest = next(self._batches, None)
            if self._rest is None:
                return None
        batch, self._rest = self._rest.slice(0, most), self._rest.slice(most)
        first = self.first_row + self._seen
        self._seen += batch.num_rows
        return self._block(first, batch)

    def skip(self, rows: int) -> int:
        """See `RowReader.skip`; whole row groups are not read."""
        target = min(self._seen + rows, self.rows)
        group, before = 0, 0
        sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        while group < len(sizes) and before + sizes[group] <= target:
            before += sizes[group]
            group += 1
        self._batches, self._rest, left = self._from(group), None, target - before
        while left:
            with self._readable():
                batch = next(self._batches, None)
                if batch is None:
                    raise OSError("it says that it has more rows than there are")
            self._rest, left = batch.slice(left), left - min(left, batch.num_rows)
        passed, self._seen = target - self._seen, target
        return passed

    def where(self, row: int) -> str:
        """See `RowReader.where`."""
        return f"row {row}"

    def close(self) -> None:
        """See `RowReader.close`."""
        self._file.close()

    def _from(self, group: int) -> Iterator[Any]:
        groups = list(range(group, self._file.num_row_groups))
        wanted = [*self._columns, *([] if self._user is None else [self._user]), *self._labels]
        return self._file.iter_batches(_BATCH, row_groups=groups, columns=wanted, use_threads=False)

    def _block(self, first: int, batch: Any) -> RowBlock:
        layout, faults = self.layout, {}
        if layout.vector:
            values = self._lists(batch.column(0), faults)
        else:
            columns = []
            for place, name in enumerate(layout.columns):
                column = batch.column(place)
                _mark(faults, column.is_null().to_numpy(zero_copy_only=False), f"column {name!r} is missing")
                numbers = column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
                columns.append(numbers)
                _mark(faults, ~np.isfinite(numbers), f"column {name!r} must be finite")
            empty = np.zeros((batch.num_rows, 0))
            values = np.stack(columns, axis=1).astype(np.float64) if columns else empty
        users = None
        if layout.user is not None:
            users = texts_of_ids(batch.column(layout.user), f"column {layout.user!r}")
            nobody = np.array([user is None for user in users])
            _mark(faults, nobody, f"column {layout.user!r} must name a user")
        if faults:
            values[list(faults)] = 0.0
        labels = (map(text_of, written(batch.column(name)).to_pylist()) for name in layout.labels)
        return RowBlock(first, values, users, faults, list(zip(*labels, strict=True)))

    def _lists(self, column: Any, faults: dict[int, str]) -> NDArray[np.float64]:
        d = self.layout.dimension
        lengths = (
            compute.call_function("list_value_length", [column]).fill_null(-1).to_numpy(zero_copy_only=False)
        )
        inner = column.filter(arrow.array(lengths == d)).flatten()
        values = np.zeros((len(lengths), d))
        flat = inner.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
        values[lengths == d] = flat.reshape(-1, d)
        for i in np.flatnonzero(lengths != d).tolist():
            count = "nothing" if lengths[i] < 0 else str(lengths[i])
            faults[i] = f"must have {d} numbers; got {count}"
        _mark(faults, ~np.isfinite(values).all(axis=1), f"column {self.layout.columns[0]!r} must be finite")
        return values

    def _length(self, before: Layout | None) -> int:
        """d, from the type, the rows before, or the first row."""
        kind = self._file.schema_arrow.field(self._columns[0]).type
        if arrow.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        if before is not None and before.vector:
            return before.dimension
        with self._readable():
            first = next(self._file.iter_batches(1, columns=self._columns), None)
        row = None if first is None else first.column(0)[0].as_py()
        if not row:
            raise InputError("row 1 must hold numbers; got none." if first is not None else _EMPTY)
        return len(row)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (arrow.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise InputError(
                f"input {self._path} cannot be read on after row {self.first_row + self._seen - 1}: {reason}."
            ) from None


_EMPTY: Final = "input must have rows; got an empty one."


def _is_list(kind: Any) -> bool:
    types = arrow.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def is_written_as_text(kind: Any) -> bool:
    """Whether cells of a type can be written as text."""
    try:
        arrow.nulls(1, kind).cast(arrow.string())
    except (arrow.ArrowNotImplementedError, arrow.ArrowInvalid):  # nested; a time zone that is not known
        return False
    return True


def _require_ids(kind: Any, name: str) -> None:
    try:
        texts_of_ids(arrow.nulls(1, kind), f"column {name!r}")
    except ValueError as error:
        raise InputError(str(error)) from None


def text_of(cell: bytes | None) -> str:
    """The text of a cell, "" for a missing one."""
    return label_of((cell or b"").decode(errors="replace"))


def _mark(faults: dict[int, str], where: Any, reason: str) -> None:
    """Note the reason for rows that have none yet."""
    for i in np.flatnonzero(where).tolist():
        faults.setdefault(i, reason)
