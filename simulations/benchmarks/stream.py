"""Rows per second and memory of `fedmf stream` on a large file, against two NumPy programs for such
releases.

    python simulations/benchmarks/stream.py [--rows N] [--dimension D] [--every R]
        [--only TEXT] [--json]

Each job is the command in a process of its own, start-up, design and the final file included, with
a public seed. The baselines of the rates are `numpy_stream.py`, processes of their own as well, on
the same Parquet file with as many releases: prefix sums with independent noise, row by row and in
blocks of 4,096 rows. They keep no record, no histories and no key, and their noise grows with the
rows. The baseline of memory is 1 GiB. One thread each.
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

import numpy as np
import pyarrow as arrow
from pyarrow import csv, parquet

PROJECT = Path(__file__).resolve().parents[2]
PEER = Path(__file__).resolve().parent / "numpy_stream.py"
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
GIBIBYTE = float(1 << 30)


def write_input(folder: Path, rows: int, dimension: int) -> dict[str, Path]:
    x = np.random.default_rng(0).normal(size=(rows, dimension)) * (0.5 / dimension**0.5)
    columns = {f"x{i}": x[:, i].round(6) for i in range(dimension)}
    plain = arrow.table(columns)
    users = arrow.table({"user": [f"user-{i}" for i in range(rows)], **columns})
    paths = {
        name: folder / name for name in ("rows.csv", "rows.parquet", "users.csv", "rows.jsonl")
    }
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
    budget = ["--clip-norm", "1", "--epsilon", "8", "--delta", "1e-5", "--seed", "0"]
    names = ["--input", str(source), "--output", str(output), "--state-dir", str(state)]
    return process([sys.executable, "-m", "fedmf", "stream", *names, *budget, *more])


def process(words: list[str]) -> tuple[float, float]:
    """(seconds, largest resident bytes) of a process."""
    started = time.perf_counter()
    child = subprocess.Popen(
        words, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ALONE
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the command failed with exit code {child.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - started, usage.ru_maxrss * float(unit)


def numpy_rates(
    source: Path, folder: Path, rows: int, dimension: int, every: int
) -> dict[str, float]:
    """Rows per second of the NumPy programs; blocks of at most 4,096 rows and 32 MiB of squares."""
    words = [
        sys.executable,
        str(PEER),
        str(source),
        str(folder / "peer.parquet"),
        "--every",
        str(every),
    ]
    most = max(2, min(4096, (1 << 22) // dimension**2))
    blocks = {"NumPy, row by row": "1", "NumPy, in blocks": str(most)}
    return {name: rows / process([*words, "--block", block])[0] for name, block in blocks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--dimension", type=int, default=8)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--only", default="", metavar="TEXT", help="jobs whose name has it")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    thin = ("--release-every", str(options.every))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_input(folder, options.rows, options.dimension)
        by_user = ("--user-column", "user")
        columns = ",".join(f"x{i}" for i in range(options.dimension))
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
        rates = {
            every: numpy_rates(
                paths["rows.parquet"], folder, options.rows, options.dimension, every
            )
            for every in dict.fromkeys((options.every, 1))
        }
        for job, (source, output, more) in jobs.items():
            if options.only not in job:
                continue
            state = folder / f"state-{output}"
            told = () if by_user[0] in more else ("--row-level",)
            named = () if source == "rows.jsonl" else ("--columns", columns)
            seconds, memory = command(paths[source], folder / output, state, *more, *told, *named)
            (folder / output).unlink()
            every = options.every if thin[0] in more else 1
            found = [
                (f"{job}: rate", options.rows / seconds, "rows/s", against, rate)
                for against, rate in rates[every].items()
            ]
            found.append((f"{job}: memory", memory, "bytes", "1 GiB", GIBIBYTE))
            for title, value, unit, against, base in found:
                row = {
                    "name": title,
                    "value": value,
                    "unit": unit,
                    "against": against,
                    "baseline": base,
                    "ratio": value / base,
                }
                text = (
                    f"{title:<60}{value:>16,.0f} {unit:<8}{value / base:>8.2f} x {against}"
                    f" ({base:,.0f})"
                )
                print(json.dumps(row) if options.json else text, flush=True)


if __name__ == "__main__":
    main()
