"""Seconds to design a mechanism, against the targets of this project.

    python simulations/benchmarks/design.py [--only NAME]... [--repeats R] [--json]
    python simulations/benchmarks/design.py --table [--rounds N]... [--only MECHANISM]... [--json]
    python simulations/benchmarks/design.py --command [--rounds N]... [--repeats R] [--json]

With --table every mechanism that `fedmf design --all` compares for N rounds is designed alone (b =
N/4, k = 4; from 10⁵ on b = N/10, k = 10), in CPU-seconds of one thread, and so is the amplified
search of four mechanisms at n = 2,048, b = 256 (`--rounds 0` for these alone). Its baseline is the
limit for a whole table or search.

With --command the whole of `fedmf design` (k = 4, b = N/4, ε = 2, δ = 10⁻⁵) is timed from outside,
on the cores that this process may use: medians of R runs, CPU-seconds of all its processes and
seconds waited.

The baseline is the target in seconds; a ratio below 1 is faster. The cache on disk is off. Other
libraries' times: simulations/design/neighbors.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["FEDMF_CACHE"] = "off"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from fedmf.matrices.banded import Banded
from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.factorization import Dense
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.registry import build, names
from fedmf.participation import Participation

Job = Callable[[], object]


def mechanism(name: str, n: int, k: int, b: int, **params: float) -> Job:
    return lambda: build(name, Participation(n, k, b), params=params)


def banded_toeplitz(n: int, bands: int) -> Job:
    return mechanism("banded-toeplitz", n, 1, n, bands=bands)


def general_sensitivity() -> None:
    C = np.tril(np.random.default_rng(0).random((2000, 2000)))
    sensitivity_of(Dense(C), Participation(2000, 10, 200))


def sensitivity_at_ten_thousand(kind: str) -> Job:
    """n = 10⁴, k = 10, b = 400: p-banded with p = b, a bumpy Toeplitz C of p = n, a BLT that rises
    first.
    """
    n = 10_000
    rng = np.random.default_rng(0)
    if kind == "banded":
        inside = np.add.outer(np.arange(n), np.arange(400)) < n
        C = Banded(np.where(inside, rng.random((n, 400)) + 0.01, 0.0))
    elif kind == "bumpy":
        C = Toeplitz(np.array([1.0, *rng.random(n - 1)]), n)
    else:
        C = BufferedToeplitz([0.999, 0.9], [0.5, 5.0], n)
    return lambda: sensitivity_of(C, Participation(n, 10, 400))


#: Name, mechanism it needs, target in seconds, job.
JOBS: tuple[tuple[str, str, float, Job], ...] = (
    *(
        (f"banded-toeplitz n={n:.0e} p={p}", "banded-toeplitz", target, banded_toeplitz(n, p))
        for n, p, target in ((10**4, 32, 1.0), (10**6, 64, 30.0), (10**7, 64, 10.0))
    ),
    ("banded n=2048 p=16", "banded", 60.0, mechanism("banded", 2048, 8, 256, bands=16)),
    ("dense n=1024", "dense", 120.0, mechanism("dense", 1024, 4, 256)),
    ("blt n=2000, 3 buffers", "blt", 10.0, mechanism("blt", 2000, 5, 400, buffers=3)),
    ("sensitivity of a random C >= 0, n=2000", "identity", 5.0, general_sensitivity),
    *(
        (
            f"sensitivity n=1e4 k=10 b=400, {kind}",
            "identity",
            10.0,
            sensitivity_at_ten_thousand(kind),
        )
        for kind in ("banded", "buffered", "bumpy")
    ),
)


def seconds(job: Job) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


#: CPU-seconds for a whole table at n rounds (a search, from 10⁵ on), and for an amplified search.
_TABLE_LIMITS = {1000: 3.0, 10_000: 10.0}
_SEARCH_LIMIT = 10.0
_AMPLIFIED = ("bfr", "bifr", "cgd", "one-parameter")


def table(rounds: Sequence[int], only: Sequence[str], as_json: bool) -> None:
    """A row for each mechanism and n."""
    from fedmf.mechanisms.design import design
    from fedmf.mechanisms.registry import names_to_compare

    def timed(label: str, contract: Participation, limit: float, name: str, **more: Any) -> None:
        start = time.process_time()
        (row,) = design(contract, [name], 2.0, 1e-5, **more)
        spent = time.process_time() - start
        line = {
            "name": f"{name} {label}",
            "value": spent,
            "unit": "CPU s",
            "baseline": "limit",
            "ratio": spent / limit,
            "rmse": row["rmse"],
        }
        print(
            (
                json.dumps(line)
                if as_json
                else f"{line['name']:<44}{spent:>9.2f} s  rmse {row['rmse']:.8g}"
            ),
            flush=True,
        )

    for n in rounds:
        k = 4 if n < 100_000 else 10
        for name in names_to_compare(n) if n else ():
            if name.startswith(tuple(only) or ""):
                timed(
                    f"n={n}", Participation(n, k, n // k), _TABLE_LIMITS.get(n, _SEARCH_LIMIT), name
                )
    for name in _AMPLIFIED if 0 in rounds else ():
        if name.startswith(tuple(only) or ""):
            timed(
                "balls-in-bins n=2048 b=256",
                Participation(2048, 8, 256),
                _SEARCH_LIMIT,
                name,
                sampling="balls-in-bins",
            )


def command(rounds: Sequence[int], repeats: int, as_json: bool) -> None:
    """Medians for the whole command."""
    for n in rounds:
        given = {
            "rounds": n,
            "max-participations": 4,
            "min-separation": n // 4,
            "epsilon": 2,
            "delta": 1e-5,
        }
        options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
        taken = []
        for _ in range(repeats):
            before = os.times()
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "fedmf", "design", *options, "--json"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            waited = time.perf_counter() - start
            after = os.times()
            cpu = (
                after.children_user
                + after.children_system
                - before.children_user
                - before.children_system
            )
            taken.append((cpu, waited))
        limit = _TABLE_LIMITS.get(n, _SEARCH_LIMIT)
        for unit, values in zip(("CPU s", "s"), zip(*taken, strict=True), strict=True):
            value = statistics.median(values)
            line = {
                "name": f"fedmf design n={n}",
                "value": value,
                "unit": unit,
                "baseline": "limit",
                "ratio": value / limit,
            }
            print(
                json.dumps(line) if as_json else f"{line['name']:<44}{value:>9.2f} {unit}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", action="append", default=[], help="jobs whose name starts so; repeatable"
    )
    parser.add_argument("--repeats", type=int, default=1, help="fresh builds; the best counts")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument(
        "--table", action="store_true", help="every mechanism of a comparison, and searches"
    )
    parser.add_argument("--command", action="store_true", help="the whole command, from outside")
    parser.add_argument(
        "--rounds", type=int, action="append", help="n of --table or --command; repeatable"
    )
    options = parser.parse_args()
    if options.command:
        command(options.rounds or [10**3, 10**4, 10**5, 10**6], options.repeats, options.json)
        return
    if options.table:
        table(options.rounds or [10**3, 10**4, 10**5, 10**6, 0], options.only, options.json)
        return
    for name, needed, target, job in JOBS:
        if needed not in names() or not name.startswith(tuple(options.only) or ""):
            continue
        # The catalogue keeps recent optima in memory, so only the first build of a process counts.
        value = (
            min(seconds(job) for _ in range(options.repeats))
            if needed == "identity"
            else seconds(job)
        )
        row = {
            "name": name,
            "value": value,
            "unit": "s",
            "baseline": "target",
            "ratio": value / target,
        }
        against = f"target {target:>8.1f} s  ratio {row['ratio']:.3f}"
        print(
            json.dumps(row) if options.json else f"{name:<40}{value:>9.2f} s  {against}", flush=True
        )


if __name__ == "__main__":
    main()
