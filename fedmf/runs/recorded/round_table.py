"""Tables of numbers by round, as files."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet


def table_of_rounds(rows: Mapping[int, Mapping[str, Any]], columns: Iterable[str]) -> bytes:
    """A Parquet file with a row a round: its number and float64 columns, null where a row has no number."""
    order = np.array(sorted(rows), dtype=np.int64)
    table = {"round": pa.Array.from_buffers(pa.int64(), order.size, [None, pa.py_buffer(order)])}
    for name in columns:
        held = (rows[t].get(name) for t in order.tolist())
        table[name] = _column(np.array([math.nan if value is None else value for value in held], np.float64))
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_arrays([*table.values()], names=[*table]), buffer)
    return buffer.getvalue()


def _column(numbers: NDArray[np.float64]) -> Any:
    """With null for NaN. By its buffers: `pyarrow.array` would import pandas, which is slow."""
    there = np.packbits(~np.isnan(numbers), bitorder="little")
    return pa.Array.from_buffers(pa.float64(), numbers.size, [pa.py_buffer(there), pa.py_buffer(numbers)])
