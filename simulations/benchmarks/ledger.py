"""The ledger and its accounting at scale: write rate, time and memory of `fedmf account` and its export.

    python simulations/benchmarks/ledger.py [--users U] [--participations N] [--rounds n] [--json]
    python simulations/benchmarks/ledger.py --commits N [--json]

Fills a run directory with random cohorts (so that nearly every user has a pattern of its own, the hard case)
and runs ``fedmf account`` on it in a process of its own, without and with ``--users FILE.csv``. Targets for
10⁶ users and 2·10⁷ participations: 60 s and 2 GiB. A ratio below 1 meets the target.

With --commits: a round's commit with and without chain and code, turn by turn in one process, for cohorts of
100, 1,000 and 10,000 users. A ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation
from fedmf.records import Ledger, Seal, Sealed
from fedmf.runs.planning import plan_run
from fedmf.runs.recorded import LEDGER, header_of
from fedmf.runs.run import Run
from fedmf.runs.tables.configuration import parse_assignments, run_of

SECONDS, BYTES = 60.0, 2 * 2**30


def fill(path: Path, run: Run) -> float:
    """Write the ledger of a whole run; returns the seconds spent in commits, disk included."""
    users, dimension = run.task_source.users, 1000
    schedule = run.cohorts.schedule(users, run.participation, secret_seed=0)
    ids = [f"user-{u:08d}" for u in range(users)]
    plan = plan_run(run, run.optimizer_source.build([(dimension,)], run.cohorts.rounds), dimension, {})
    key = NoiseKey.from_os()
    header = header_of(run, plan, key, dimension)
    spent = 0.0
    with Ledger.create(path / LEDGER, run.participation, header.to_dict(), key) as ledger:
        ledger.opening()
        for t in track(range(run.cohorts.rounds), "writing", console=Console(stderr=True)):
            cohort = [ids[u] for u in schedule.cohort(t)]
            begun = time.perf_counter()
            ledger.commit_round(t, cohort, f"{t}.npz", "digest")
            spent += time.perf_counter() - begun
    return spent


class _NoSeal(Seal):
    """Writes rows that nothing binds: what a commit would cost without."""

    def sealed(self, row: bytes, *parts: int | str | bytes | None) -> Sealed:
        return bytes(32), bytes(32)


def commit_rows(commits: int) -> list[tuple[str, float, str, float, float]]:
    """(name, median with, unit, median without, their ratio) for each size of a cohort."""
    found, key = [], NoiseKey.from_os()
    for size in (100, 1000, 10_000):
        contract = Participation(commits, commits, 1)
        ids = [f"user-{u:08d}" for u in range(size)]
        with tempfile.TemporaryDirectory(dir=".") as folder:
            ledgers = [Ledger.create(Path(folder) / name, contract, {}, key) for name in ("with", "without")]
            ledgers[1]._seal = _NoSeal(b"", bytes(32))
            spent: list[list[float]] = [[], []]
            for ledger in ledgers:
                ledger.opening()
            for t in range(commits):
                for which in (0, 1) if t % 2 else (1, 0):
                    begun = time.perf_counter()
                    ledgers[which].commit_round(t, ids, f"{t}.npz", "0" * 64)
                    spent[which].append(1000 * (time.perf_counter() - begun))
            for ledger in ledgers:
                ledger.close()
        sealed, bare = (statistics.median(values[1:]) for values in spent)
        found.append((f"commit of {size} users", sealed, "ms", bare, sealed / bare))
    return found


def account(path: Path, *options: str) -> tuple[float, float, int, dict]:
    """(seconds, processor seconds, peak bytes, statement) of ``fedmf account --json`` in a new process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    command = [sys.executable, "-m", "fedmf", "account", str(path), "--json", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return seconds, processor, used.ru_maxrss * 1024, json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--users", type=int, default=10**6)
    parser.add_argument("--participations", type=int, default=2 * 10**7)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--mechanism", default="cgd")
    parser.add_argument("--param", default="lambda=0.9")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--commits", type=int, default=0, help="time so many commits with and without chain")
    options = parser.parse_args()
    if options.commits:
        for name, value, unit, baseline, ratio in commit_rows(options.commits):
            row = {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio}
            plain = f"{name}: {value:.2f} {unit} with, {baseline:.2f} without, ratio {ratio:.3f}"
            print(json.dumps(row) if options.json else plain)
        return
    cohort = options.participations // options.rounds
    run = run_of(
        {
            "data": {"users": options.users},
            "cohorts": {
                "kind": "random",
                "rounds": options.rounds,
                "size": cohort,
                "min-separation": max(1, options.users // cohort // 2),
            },
            "mechanism": {"kind": options.mechanism, **parse_assignments([options.param])},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        writing = fill(path, run)
        size = (path / LEDGER).stat().st_size
        seconds, processor, peak, statement = account(path)
        # The peak is that of all processes so far, so the larger one comes last.
        users = account(path, "--users", str(path / "users.csv"))
    written = cohort * run.cohorts.rounds
    rows = [
        ("write rate", written / writing, "participations/s", None, None),
        ("size on disk", size / written, "bytes/participation", None, None),
        ("fedmf account", seconds, "s", SECONDS, seconds / SECONDS),
        ("fedmf account, processor time", processor, "s", SECONDS, processor / SECONDS),
        ("peak memory", peak / 2**30, "GiB", BYTES / 2**30, peak / BYTES),
        ("fedmf account --users", users[0], "s", SECONDS, users[0] / SECONDS),
        ("fedmf account --users, processor time", users[1], "s", SECONDS, users[1] / SECONDS),
        ("peak memory with --users", users[2] / 2**30, "GiB", BYTES / 2**30, users[2] / BYTES),
    ]
    if options.json:
        for name, value, unit, target, ratio in rows:
            print(
                json.dumps({"name": name, "value": value, "unit": unit, "baseline": target, "ratio": ratio})
            )
        return
    table = Table(
        title=f"{options.users} users, {written} participations, {statement['realised_patterns']} patterns"
    )
    for heading in ("", "measured", "unit", "target"):
        table.add_column(heading, justify="right")
    for name, value, unit, target, _ in rows:
        table.add_row(name, f"{value:.3g}", unit, "" if target is None else f"{target:g}")
    Console().print(table)
    print(f"worst user {statement['epsilon_realised']:.4f} of {statement['epsilon_planned']:.4f} planned")


if __name__ == "__main__":
    main()
