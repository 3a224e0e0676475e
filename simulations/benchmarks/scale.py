"""Scaling study: what a round costs outside training, from 10³ to 10⁶ users and cohorts of 10 to 10⁴.

Every case is a real run in a process of its own: plan, directory, handshake, messages, clip, sum, noise,
ledger, checkpoint, evaluation, statement. "Outside training" is the time of a round less the time its client
app was at work (local training, clipping, summing). The baseline of a case is the first one of its table.

    python simulations/benchmarks/scale.py [--json] [--rounds 30]
    python simulations/benchmarks/scale.py --config configs/million.toml [--json]   a whole run
    python simulations/benchmarks/scale.py --server-step 100000000 [--json]         one big model
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fedmf

CASES = [(1_000, 100), (10_000, 100), (100_000, 100), (1_000_000, 100)]
COHORTS = [(1_000_000, 10), (1_000_000, 1_000), (1_000_000, 10_000)]
#: Of a big model's releases: normals an entry, and what is not as in the others.
STEPS = {
    "no noise": (0, {"privacy.kind": "none"}),
    "identity": (1, {"mechanism.kind": "identity"}),
    "bisr, 4 bands": (4, {"mechanism.kind": "bisr", "mechanism.bands": 4}),
    "bisr, 16 bands": (16, {"mechanism.kind": "bisr", "mechanism.bands": 16}),
}
TASK = {
    "data.kind": "synthetic",
    "model.kind": "logistic",
    "mechanism.kind": "bisr",
    "mechanism.bands": 4,
    "execution.evaluate-every": 10**6,
}


def measure(values: dict[str, Any], path: Path) -> dict[str, float]:
    """Run a configuration to its end; seconds, and bytes at the peak."""
    begin, before = time.perf_counter(), time.process_time()
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    from fedmf.flower import InProcessGrid, make_client_app, run_on_grid, worker_pool
    from fedmf.runs.tables.configuration import run_of
    from fedmf.training.local import LocalTrainer

    run = run_of(values)
    rounds: list[float] = []
    outside: list[float] = []
    outside_cpu: list[float] = []
    training = [0.0, 0.0]
    with fedmf.start(run, path) as session:
        trainer = LocalTrainer(session.task, run.local)
        inner, outer = make_client_app(lambda _: (trainer, session.sums)), ClientApp()

        @outer.query()
        def query(message: Message, context: Context) -> Message:
            return inner(message, context)

        @outer.train()
        def train(message: Message, context: Context) -> Message:
            wall, cpu = time.perf_counter(), time.process_time()
            reply = inner(message, context)
            training[0] += time.perf_counter() - wall
            training[1] += time.process_time() - cpu
            return reply

        last = [time.perf_counter(), time.process_time(), 0.0, 0.0]
        ready = last[0] - begin

        def note(*_: object) -> None:
            now = [time.perf_counter(), time.process_time(), *training]
            spent = [a - b for a, b in zip(now, last, strict=True)]
            rounds.append(spent[0])
            outside.append(spent[0] - spent[2])
            outside_cpu.append(spent[1] - spent[3])
            last[:] = now

        run_on_grid(session, InProcessGrid(outer), note, worker_pool(session))
        reported = time.perf_counter()
        epsilon = session.statement().to_dict()["epsilon_realised"]
        accuracy = session.metrics[max(session.metrics)]["accuracy"]
    later = slice(1, None)  # the first round compiles and shakes hands
    return {
        "set up": ready,
        "first round": rounds[0],
        "round": statistics.median(rounds[later]),
        "outside training": statistics.median(outside[later]),
        "outside training, processor": statistics.median(outside_cpu[later]),
        "statement": reported - last[0],
        "whole run": time.perf_counter() - begin,
        "whole run, processor": time.process_time() - before,
        "peak memory": 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "epsilon": epsilon if epsilon is not None else float("inf"),
        "accuracy": accuracy,
    }


def server_step(dimension: int, rounds: int) -> dict[str, float]:
    """Seconds of the parts of a release with one big model, of a plain copy and of as many normals."""
    import torch

    from fedmf.data.memory import InMemoryDataset
    from fedmf.runs.tables.configuration import run_of
    from fedmf.training import FixedPointSum
    from fedmf.training.kinds import classification

    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def median(body: Callable[[], object]) -> float:
        times = []
        for _ in range(rounds):
            wait()
            begin = time.perf_counter()
            body()
            wait()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    import numpy as np

    features = torch.zeros(2, 1)
    dataset = InMemoryDataset(
        features=features,
        labels=torch.zeros(2, dtype=torch.int64),
        owned=tuple(np.array([u]) for u in range(2)),
        user_ids=("a", "b"),
        test_features=features,
        test_labels=torch.zeros(2, dtype=torch.int64),
        classes=1,
    )
    model = torch.nn.Linear(1, dimension, bias=False)
    task = classification(dataset, model, lambda outputs, _labels: outputs[..., 0])
    found: dict[str, float] = {}
    for name, (normals, mechanism) in STEPS.items():
        values = {
            **{"data.users": 2, "cohorts.size": 1, "cohorts.rounds": 400, "optimizer.momentum": 0.9},
            **{"execution.checkpoint-every": 399, "execution.evaluate-every": 10**6},
            **mechanism,
        }
        with tempfile.TemporaryDirectory() as folder:
            run = dataclasses.replace(run_of(values), task=task)
            session = fedmf.start(run, Path(folder) / "run", device)
            with session:
                server = session.server
                summed = server.new_sum()
                summed.fixed_point.fill_(1)  # untouched pages would be read from the cache
                for _ in range(max(1, normals - 1)):  # rows before draw fewer
                    server.release(summed, [])
                _forget_peak()
                found[name] = median(lambda server=server, summed=summed: server.release(summed, []))
                del summed
                found["peak memory"] = max(_peak(), found.get("peak memory", 0.0))
                if name == "no noise":
                    keep = session.directory.keep_initial
                    begin = time.perf_counter()
                    keep(server.parameters, server._state, {"t": 0})
                    found["one checkpoint"] = time.perf_counter() - begin
    total, reply = FixedPointSum(dimension, 1.0, device), FixedPointSum(dimension, 1.0, device)
    reply.fixed_point.fill_(1)
    found["a reply's sum checked and added"] = median(lambda: total.add_clipped_sum(reply.fixed_point, 1))
    source, target = torch.zeros(dimension, device=device), torch.empty(dimension, device=device)
    found["copy of the model"] = median(lambda: target.copy_(source))
    found["as many normals on all cores"] = dimension / normals_per_second(device)
    return found


def normals_per_second(device: str) -> float:
    """How many normals of our keystream all cores draw in a second, into vectors that stay in a cache."""
    import torch

    from fedmf.noise import GaussianSource, NoiseKey
    from fedmf.noise.kernels import RowPass

    drawn = torch.zeros(1 << 22 if device == "cpu" else 1 << 26, dtype=torch.float64, device=device)
    kernels = GaussianSource(NoiseKey.from_seed(0), drawn.numel()).kernels(device)
    rounds, times = 8, []
    for _ in range(4):  # the first compiles
        begin = time.perf_counter()
        kernels.add_(RowPass(tuple(range(rounds)), (1.0,) * rounds), drawn, 0)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return rounds * drawn.numel() / min(times)


def _forget_peak() -> None:
    """Begin to look for the peak of memory anew, where the system lets us."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """Bytes at the peak since then."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return 1024.0 * float(line.split()[1])


def in_a_process(arguments: list[str]) -> dict[str, float]:
    """The same script for one case: memory and compiled code of another case do not count."""
    command = [sys.executable, __file__, "--case", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(name: str, found: dict[str, float], baseline: dict[str, float]) -> list[dict[str, Any]]:
    """A row for each measured value; memory in bytes."""
    units = {"peak memory": "B", "epsilon": "", "accuracy": ""}  # all others are times
    return [
        {
            "name": f"{name}: {key}",
            "value": value,
            "unit": units.get(key, "s"),
            "baseline": baseline[key],
            "ratio": value / baseline[key] if baseline[key] else None,
        }
        for key, value in found.items()
    ]


def study(rounds: int) -> list[dict[str, Any]]:
    """Two tables: growing populations with a cohort of 100, growing cohorts of a million."""
    rows: list[dict[str, Any]] = []
    for table in (CASES, [CASES[-1], *COHORTS]):
        baseline: dict[str, float] = {}
        for users, cohort in table:
            size = {
                "data.users": users,
                "cohorts.size": cohort,
                "cohorts.rounds": min(rounds, users // cohort),
            }
            values = {**TASK, **size}
            found = in_a_process([json.dumps(values)])
            baseline = baseline or found
            rows += rows_of(f"{users:,} users, cohort {cohort:,}", found, baseline)
    return rows


def step_rows(dimension: int, rounds: int) -> list[dict[str, Any]]:
    """The server step in bytes and as a share of what a copy moves in the same time.

    A release reads the int64 sum once, reads and writes the velocity and the model: 8 + 2·4 + 2·4 bytes an
    entry at the least. A copy of the model moves 8. The limit is the longer of moving as much at
    the bandwidth of a copy and of drawing the normals of a row at the rate of the generator.
    """
    found = in_a_process([f"step {dimension} {rounds}"])
    # Seconds beside those of a copy of the model, memory beside its bytes.
    baseline = {**dict.fromkeys(found, found["copy of the model"]), "peak memory": 4.0 * dimension}
    bandwidth = 8.0 * dimension / found["copy of the model"]
    rows = rows_of(f"d = {dimension:,}", found, baseline)
    for name, (normals, _) in STEPS.items():
        moving, drawing = 24.0 * dimension / bandwidth, normals * found["as many normals on all cores"]
        rows.append({"name": f"{name}: share of copy bandwidth", "value": moving / found[name], "unit": ""})
        limit = max(moving, drawing)
        rows.append({"name": f"{name}: share of the limit", "value": limit / found[name], "unit": ""})
    rows.append({"name": "copy bandwidth", "value": bandwidth, "unit": "B/s"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--server-step", type=int, metavar="D")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        if options.case.startswith("step "):
            _, dimension, rounds = options.case.split()
            print(json.dumps(server_step(int(dimension), int(rounds))))
            return
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(json.loads(options.case), Path(folder) / "run")))
        return
    if options.config:
        from fedmf.runs.tables.configuration import dotted_keys, load_run

        found = in_a_process([json.dumps(dotted_keys(load_run(options.config)))])
        rows = rows_of(options.config.name, found, found)
    elif options.server_step:
        rows = step_rows(options.server_step, min(options.rounds, 5))
    else:
        rows = study(options.rounds)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        ratio = f"{row['ratio']:8.2f}" if row.get("ratio") is not None else ""
        print(f"{row['name']:<70} {row['value']:14.6g} {row['unit']:<3} {ratio}")


if __name__ == "__main__":
    main()
