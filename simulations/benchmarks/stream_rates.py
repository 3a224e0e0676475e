"""Rows per second of private streams by dimension: with a durable state, without one, against plain NumPy.

    python simulations/benchmarks/stream_rates.py [--dimensions D ...] [--rows N] [--every R ...]
        [--repeats K] [--threads T]

Running averages of x and of x xᵀ (full) or x² (diagonal) under the default mechanism, of rows that lie in a
Parquet file, in one process. "with state" is what `fedmf stream` does once it has begun: read,
admit, clip, release, commit; "without" is `MomentStream.extend` on rows in memory. The baseline adds
independent noise of PCG64, which is neither secure nor correlated, and keeps nothing. Releases go to nobody.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as arrow
import torch
from pyarrow import parquet
from rich.console import Console
from rich.table import Table

from fedmf.noise import NoiseKey
from fedmf.streaming.outputs import Returned
from fedmf.streaming.plans import plan_stream
from fedmf.streaming.run import StreamRun
from fedmf.streaming.session import open_reader
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import StreamState


def with_state(source: Path, settings: Settings, folder: Path, rows: int) -> float:
    """Seconds to deal with all rows of a file, planning and opening excluded."""
    with open_reader(source, settings) as reader:
        plan = plan_stream(settings, reader.layout, rows)
        with StreamState.create(folder, plan, NoiseKey.from_seed(0)) as state:
            run, started = StreamRun(state, Returned()), time.perf_counter()
            run.feed(reader)
            return time.perf_counter() - started


def without_state(x: torch.Tensor, source: Path, settings: Settings) -> float:
    """Seconds of the numbers alone."""
    with open_reader(source, settings) as reader:
        stream = plan_stream(settings, reader.layout, len(x)).stream(NoiseKey.from_seed(0))
    together, started = max(1, (1 << 20) // x.shape[1] ** 2), time.perf_counter()
    for low in range(0, len(x), together):
        stream.extend(x[low : low + together])
    return time.perf_counter() - started


def by_numpy(x: np.ndarray, full: bool) -> float:
    """Seconds of running averages with independent noise, row by row."""
    rng, d = np.random.default_rng(0), x.shape[1]
    upper = np.triu_indices(d)
    first, second = np.zeros(d), np.zeros(len(upper[0]) if full else d)
    started = time.perf_counter()
    for t, row in enumerate(x, start=1):
        first += row + rng.standard_normal(d)
        second += (np.outer(row, row)[upper] if full else row * row) + rng.standard_normal(second.size)
        _ = first / t, second / t
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[3, 30, 300])
    parser.add_argument("--rows", type=int, default=0, help="by default 3,000 to 30,000, fewer of long ones")
    parser.add_argument("--every", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table = Table("d", "second moment", "every", "with state", "without", "NumPy", "with state / NumPy")
    for d in arguments.dimensions:
        rows = arguments.rows or (3_000 if d > 100 else 30_000)
        x = np.random.default_rng(0).standard_normal((rows, d)) / (2 * d**0.5)
        x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
        for second in ("full", "diagonal"):
            for every in arguments.every:
                rates = measured(x, second, every, arguments.repeats)
                cells = (f"{rate:,.0f} rows/s" for rate in rates)
                table.add_row(str(d), second, str(every), *cells, f"{rates[0] / rates[2]:.2f}")
    Console(width=110).print(table)


def measured(x: np.ndarray, second: str, every: int, repeats: int) -> tuple[float, float, float]:
    """Medians of rows a second: with a state, without, by NumPy."""
    settings = Settings(
        norm_bound=1.0,
        epsilon=1.0,
        delta=1e-6,
        rounds=len(x),
        workloads=("average",),
        second=second,
        every=every,
        seed=0,
    )
    taken: tuple[list[float], ...] = [], [], []
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "rows.parquet"
        parquet.write_table(arrow.table({f"x{i}": x[:, i] for i in range(x.shape[1])}), source)
        for repeat in range(repeats):
            taken[0].append(with_state(source, settings, Path(name) / f"state{repeat}", len(x)))
            taken[1].append(without_state(torch.from_numpy(x), source, settings))
            taken[2].append(by_numpy(x, second == "full"))
    with_it, without, plain = (len(x) / median(seconds) for seconds in taken)
    return with_it, without, plain


if __name__ == "__main__":
    main()
