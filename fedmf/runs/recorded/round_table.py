"""Tables of numbers by round, as files: metrics, and the times of a round's phases."""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from fedmf.records import write_durably

#: File in a run directory.
FILE: Final = "phases.parquet"
#: Phase ↦ what its seconds are.
PHASES: Final = {
    "clients": "from asking until the last reply is summed: messages, local training, clipping, exact sums",
    "noise and step": "the row of noise, its correlation, the mean and the optimizer's step",
    "commit": "waiting for the disk; where the next round is trained meanwhile, what is left of it",
    "evaluation": "of the released model, on the central test part",
}


class PhaseTimes:
    """Wall seconds by phase of the rounds that this process made. What is slow may follow from users' data.

    >>> times = PhaseTimes()
    >>> with times.measure(1, "commit"):
    ...     pass
    >>> list(times.rounds), times.rounds[1].keys()
    ([1], dict_keys(['commit']))
    """

    def __init__(self) -> None:
        self.rounds: dict[int, dict[str, float]] = {}

    @contextlib.contextmanager
    def measure(self, released: int, phase: str) -> Iterator[None]:
        """Add what passes to a phase, by rounds released then; 0 is the initial model."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            phases = self.rounds.setdefault(released, {})
            phases[phase] = phases.get(phase, 0.0) + time.perf_counter() - begun

    def write(self, path: Path) -> None:
        """Put them into a run directory, beside those of earlier processes, with mode 0600.

        A disk that fails loses them, which must not stop the run.
        """
        if not self.rounds:
            return
        with contextlib.suppress(OSError):
            rounds = {**read_phases(path), **self.rounds}
            write_durably(path / FILE, table_of_rounds(rounds, PHASES))


def read_phases(path: Path) -> dict[int, dict[str, float]]:
    """Seconds by phase and rounds released, of a run directory; nothing where they cannot be read."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        rows = parquet.ParquetFile(path / FILE).read(columns=["round", *PHASES]).to_pylist()
    except (OSError, ValueError, pa.ArrowException):
        return {}
    return {
        int(row["round"]): {phase: seconds for phase in PHASES if (seconds := row[phase]) is not None}
        for row in rows
        if isinstance(row["round"], int)
    }


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
