"""The ledger and its accounting at scale: write rate, time and memory of `fedmf account` and its export.

    python simulations/benchmarks/ledger.py [--users U] [--participations N] [--rounds n] [--json]
    python simulations/benchmarks/ledger.py --commits N [--json]

Fills a run directory with random cohorts (so that nearly every user has a pattern of its own, the hard case)
and runs ``fedmf account`` on it in a process of its own, without and with ``--users FILE.csv``. Targets for
10⁶ users and 2·10⁷ participations: 60 s and 2 GiB. A ratio below 1 meets the target.

With --commits: a round's commit, its state of parameters and momentum with it, against one append of as many
bytes and one flush, turn by turn in one process on one file system; target 2. Then a commit with and without
chain and code. Ratios are medians of the ratios of a turn, which other work on the machine moves least.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from fedmf.cohorts import CyclicCohorts
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation
from fedmf.records import Ledger, Seal, Sealed, pack_state
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


@dataclass
class BareFile:
    """What an append and a flush cost without any record."""

    descriptor: int
    size: int = 0

    def append(self, content: bytes) -> None:
        """Write, and wait for the disk."""
        os.pwrite(self.descriptor, content, self.size)
        getattr(os, "fdatasync", os.fsync)(self.descriptor)
        self.size += len(content)
        if self.size > 1 << 26:  # as a file of the ledger's tail, which is begun anew
            os.ftruncate(self.descriptor, 0)
            self.size = 0


def flush_rows(commits: int) -> list[tuple[str, float, str, float, float]]:
    """(name, median commit, unit, median of the bare append and flush, median ratio) for some sizes."""
    found = []
    for users, dimension in ((50, 1000), (50, 100_000), (1000, 100_000), (1000, 1_000_000)):
        ids = [f"user-{u:08d}" for u in range(users)]
        parameters, momentum = torch.randn(2, dimension)
        with tempfile.TemporaryDirectory(dir=".") as folder:
            bare = BareFile(os.open(Path(folder) / "bare", os.O_WRONLY | os.O_CREAT))
            content = os.urandom(8 * dimension + 4 * users + 1024)
            contract = Participation(commits, commits, 1)
            with Ledger.create(Path(folder) / "ledger", contract, {}, NoiseKey.from_os()) as ledger:
                ledger.opening()

                ours = partial(_commit, ledger, ids, parameters, momentum)
                turns = [(partial(ours, t), partial(bare.append, content)) for t in range(commits)]
                spent = _turn_by_turn(turns)[2:]
            os.close(bare.descriptor)
        commit, least = (statistics.median(values) for values in zip(*spent, strict=True))
        ratio = statistics.median(a / b for a, b in spent)
        name = f"commit of {users} users, {dimension} parameters and momentum, against a flush"
        found.append((name, commit, "ms", least, ratio))
    return found


def _commit(ledger: Ledger, ids: list[str], parameters: Tensor, momentum: Tensor, t: int) -> None:
    state = pack_state(parameters, {"momentum": momentum}, {"t": t})
    ledger.commit_round(t, ids, f"{t}", state.digest.hex(), state=state)


def _turn_by_turn(pairs: Sequence[tuple[Callable[[], object], Callable[[], object]]]) -> list[list[float]]:
    """Milliseconds of both of each pair; which comes first alternates."""
    found = []
    for t, pair in enumerate(pairs):
        spent = [0.0, 0.0]
        for which in (0, 1) if t % 2 else (1, 0):
            begun = time.perf_counter()
            pair[which]()
            spent[which] = 1000 * (time.perf_counter() - begun)
        found.append(spent)
    return found


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
            for ledger in ledgers:
                ledger.opening()
            turns = [
                tuple(partial(ledger.commit_round, t, ids, f"{t}", "0" * 64) for ledger in ledgers)
                for t in range(commits)
            ]
            spent = _turn_by_turn(turns)[1:]
            for ledger in ledgers:
                ledger.close()
        sealed, bare = (statistics.median(values) for values in zip(*spent, strict=True))
        ratio = statistics.median(a / b for a, b in spent)
        found.append((f"commit of {size} users, against one without chain", sealed, "ms", bare, ratio))
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
    parser.add_argument("--commits", type=int, default=0, help="time so many commits")
    options = parser.parse_args()
    if options.commits:
        torch.set_num_threads(1)
        for name, value, unit, baseline, ratio in [
            *flush_rows(options.commits),
            *commit_rows(options.commits),
        ]:
            row = {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio}
            plain = f"{name}: {value:.2f} and {baseline:.2f} {unit}, median ratio {ratio:.2f}"
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
    small = dataclasses.replace(run, cohorts=CyclicCohorts(rounds=1, size=1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        writing = fill(path, run)
        size = (path / LEDGER).stat().st_size
        (path / "small").mkdir()
        fill(path / "small", small)
        fixed = account(path / "small")
        seconds, processor, peak, statement = account(path)
        # The peak is that of all processes so far, so the larger one comes last.
        users = account(path, "--users", str(path / "users.csv"))
    written = cohort * run.cohorts.rounds
    rows = [
        ("write rate", written / writing, "participations/s", None, None),
        ("size on disk", size / written, "bytes/participation", None, None),
        ("fedmf account of one round, which is imports", fixed[0], "s", None, None),
        ("the same, processor time", fixed[1], "s", None, None),
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
