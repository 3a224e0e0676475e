"""Processor time and peak memory of a round of a Flower app's server: plain, Flower's wrapper,
ours.

    python simulations/benchmarks/wrapped_round.py [--sizes D ...] [--cohorts M ...] [--rounds N]
    [--json]

FedAvg over m clients that answer with one prepared model of d numbers (four arrays, float32), in
one process: what is timed is the server, its grid and the handing over of messages, no training.
Flower's wrapper is `DifferentialPrivacyServerSideFixedClipping`, ours `CorrelatedNoise` with banded
Toeplitz noise and a durable record of every round. Each cell is a process of its own: processor
seconds a round (median), and the largest memory of the process, in models of d float32 above what a
process without rounds has.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from rich.console import Console
from rich.table import Table

from fedmf import CyclicCohorts, UserLevel
from fedmf.flower import CorrelatedNoise, InProcessGrid

KINDS = ("plain", "Flower's wrapper", "CorrelatedNoise")
#: Rounds before those that are timed: code is loaded in them.
WARM = 2


def model(size: int, seed: int) -> ArrayRecord:
    """Four arrays of d numbers together."""
    parts = np.array_split(np.random.default_rng(seed).standard_normal(size).astype(np.float32), 4)
    return ArrayRecord({f"layer{place}": Array(part) for place, part in enumerate(parts)})


def one(kind: str, size: int, cohort: int, rounds: int) -> dict[str, float]:
    """Seconds a round and bytes at most, of this process."""
    logging.disable(logging.INFO)
    answer = model(size, 1)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content = {"arrays": answer, "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(content), reply_to=message)

    users = 4 * cohort if kind == KINDS[2] else cohort
    seconds = list[float]()
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    with tempfile.TemporaryDirectory() as folder:
        strategy: FedAvg | DifferentialPrivacyServerSideFixedClipping | CorrelatedNoise = inner
        if kind == KINDS[1]:
            strategy = DifferentialPrivacyServerSideFixedClipping(inner, 0.6, 1.0, cohort)
        elif kind == KINDS[2]:
            strategy = CorrelatedNoise(
                inner,
                UserLevel(epsilon=8.0, delta=1e-5, clip_norm=1.0),
                CyclicCohorts(rounds=rounds + WARM, users_per_round=cohort),
                users=users,
                run_dir=Path(folder) / "run",
            )

        def told(_number: int, _arrays: ArrayRecord) -> None:
            seconds.append(time.process_time())

        grid = InProcessGrid(app, nodes=users)
        start = model(size, 0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds + WARM, evaluate_fn=told)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = np.diff(seconds)[WARM:]
    return {"seconds": median(steps.tolist()), "models": 1024 * (after - before) / (4 * size)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[10**4, 10**6, 10**7])
    parser.add_argument("--cohorts", nargs="+", type=int, default=[10, 100])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true", help="one JSON object per cell")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.sizes[0], options.cohorts[0], options.rounds)))
        return
    table = Table(
        "d", "m", "server", "processor s a round", "of Flower's wrapper", "memory, models"
    )
    for size in options.sizes:
        for cohort in options.cohorts:
            found = {}
            for kind in KINDS:
                cell = ["--one", kind, "--sizes", str(size), "--cohorts", str(cohort)]
                command = [sys.executable, __file__, *cell, "--rounds", str(options.rounds)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[kind] = json.loads(done.stdout.splitlines()[-1])
            for kind, cell in found.items():
                ratio = cell["seconds"] / found[KINDS[1]]["seconds"]
                row = {"d": size, "m": cohort, "server": kind, **cell, "ratio": ratio}
                if options.json:
                    print(json.dumps(row), flush=True)
                shown = (f"{cell['seconds']:.4f}", f"{ratio:.2f}", f"{cell['models']:.1f}")
                table.add_row(f"{size:g}", str(cohort), kind, *shown)
    if not options.json:
        Console().print(table)


if __name__ == "__main__":
    main()
