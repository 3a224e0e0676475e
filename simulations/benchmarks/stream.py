"""Rows per second and memory of `fedmf stream` on a large file, against one `MomentStream.update` a row.

    python simulations/benchmarks/stream.py [--rows N] [--dimension D] [--every R]
        [--only TEXT] [--json]

Each job is the command in a process of its own, start-up, design and the final Parquet file included, with a
public seed. The baseline of the rates is the loop over `MomentStream.update` without any input or output;
that of memory is 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pyarrow as arrow
import torch
from pyarrow import csv, parquet

from fedmf.factorization.mechanisms.catalogue import build
from fedmf.factorization.sensitivity.joint import UserRange
from fedmf.moments.mechanism import jme
from fedmf.moments.moment_stream import MomentStream
from fedmf.moments.second_moment import FullMatrix
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation
from fedmf.workload.toeplitz import average

PROJECT = Path(__file__).resolve().parents[2]
GIBIBYTE = float(1 << 30)


def write_input(folder: Path, rows: int, dimension: int) -> dict[str, Path]:
    x = np.random.default_rng(0).normal(size=(rows, dimension)) * (0.5 / dimension**0.5)
    columns = {f"x{i}": x[:, i].round(6) for i in range(dimension)}
    plain = arrow.table(columns)
    users = arrow.table({"user": [f"user-{i}" for i in range(rows)], **columns})
    paths = {name: folder / name for name in ("rows.csv", "rows.parquet", "users.csv", "rows.jsonl")}
    csv.write_csv(plain, paths["rows.csv"])
    csv.write_csv(users, paths["users.csv"], csv.WriteOptions(quoting_style="none"))
    parquet.write_table(plain, paths["rows.parquet"], row_group_size=1 << 16)
    with open(paths["rows.jsonl"], "w") as file:
        for start in range(0, rows, 1 << 16):
            block = x[start : start + (1 << 16)].round(6).tolist()
            file.writelines(json.dumps(row) + "\n" for row in block)
    return paths


def command(source: Path, output: Path, state: Path, *more: str) -> tuple[float, float]:
    """(seconds, largest resident bytes) of one run of the command."""
    budget = ["--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5", "--seed", "0"]
    names = ["--input", str(source), "--output", str(output), "--state", str(state)]
    started = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "fedmf", "stream", *names, *budget, *more],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the command failed with exit code {child.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - started, usage.ru_maxrss * float(unit)


def row_by_row(rows: int, dimension: int) -> float:
    """Rows per second of `MomentStream.update`, measured on the first few thousand rows."""
    part, work = Participation(rows, 1, rows), average(rows)
    C = build("banded-toeplitz", part, work, bands=32).factorization
    made = jme(C, C, part, UserRange(1.0, dimension), 0.6)
    stream = MomentStream(made, FullMatrix(dimension), work, key=NoiseKey.from_seed(0))
    x = torch.full((dimension,), 0.1, dtype=torch.float64)
    for _ in range(100):
        stream.update(x)
    count, started = min(3000, rows - 100), time.perf_counter()
    for _ in range(count):
        stream.update(x)
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--dimension", type=int, default=8)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--only", default="", metavar="TEXT", help="jobs whose name has it")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    thin = ("--every", str(options.every))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_input(folder, options.rows, options.dimension)
        by_user = ("--user-column", "user")
        jobs = {
            f"csv to parquet, every {options.every}": ("rows.csv", "a.parquet", thin),
            "csv to parquet, every 1": ("rows.csv", "b.parquet", ()),
            f"parquet to parquet, every {options.every}": ("rows.parquet", "c.parquet", thin),
            f"csv with users to parquet, every {options.every}": (
                "users.csv",
                "d.parquet",
                (*thin, *by_user),
            ),
            f"json lines to json lines, every {options.every}": ("rows.jsonl", "e.jsonl", thin),
            "csv to json lines, every 1": ("rows.csv", "f.jsonl", ()),
        }
        baseline = row_by_row(options.rows, options.dimension)
        for job, (source, output, more) in jobs.items():
            if options.only not in job:
                continue
            state = folder / f"state-{output}"
            seconds, memory = command(paths[source], folder / output, state, *more)
            (folder / output).unlink()
            rate = options.rows / seconds
            found = (
                (f"{job}: rate", rate, "rows/s", baseline),
                (f"{job}: memory", memory, "bytes", GIBIBYTE),
            )
            for title, value, unit, base in found:
                row = {"name": title, "value": value, "unit": unit, "baseline": base, "ratio": value / base}
                text = f"{title:<60}{value:>16,.0f} {unit:<8}{value / base:>8.2f} x {base:,.0f}"
                print(json.dumps(row) if options.json else text, flush=True)


if __name__ == "__main__":
    main()
