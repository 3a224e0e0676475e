"""Time and memory of a step of Joint Moment Estimation beside a plain NumPy loop with independent noise.

    python simulations/benchmarks/moments.py [--only NAME]... [--repeats R] [--threads T] [--json]

The baseline keeps the same running averages of x and x xᵀ (or x²) and adds independent float64 noise from
NumPy's PCG64, which is neither secure nor correlated nor resumable. Both take turns in one process a case;
the ratio is the median of ratios of neighbouring repetitions, below 1 is faster than the baseline. Steps are
timed in the middle of the horizon, where every lag is in use. Extra memory is the growth of the peak RSS.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A row of the table: d, the horizon, steps in a repetition, the second moment and the mechanism."""

    d: int
    rounds: int
    steps: int
    second: str
    mechanism: str
    params: dict[str, int]
    block: bool = False  # many rows in one call of `extend` instead of one `update` a row


CASES = {
    "d=100 full, n=1e5, independent": Case(100, 100_000, 500, "full", "identity", {}),
    "d=100 full, n=1e5, BISR p=4": Case(100, 100_000, 500, "full", "bisr", {"bands": 4}),
    "d=100 full, n=1e5, BLT 3 buffers": Case(100, 100_000, 500, "full", "blt", {"buffers": 3}),
    "d=100 full, n=1e5, BISR p=4, 250 rows a call": Case(
        100, 100_000, 500, "full", "bisr", {"bands": 4}, block=True
    ),
    "d=1000 full, n=1e3, BISR p=4": Case(1000, 1000, 10, "full", "bisr", {"bands": 4}),
    "d=1e6 diagonal, n=1e3, BISR p=4": Case(1_000_000, 1000, 5, "diagonal", "bisr", {"bands": 4}),
    "d=1e6 diagonal, n=1e3, BLT 3 buffers": Case(1_000_000, 1000, 5, "diagonal", "blt", {"buffers": 3}),
}


def estimator(case: Case) -> Callable[[], object]:
    """Several steps of the running estimator."""
    import torch

    from fedmf.factorization.mechanisms.catalogue import build
    from fedmf.factorization.sensitivity.joint import UserRange
    from fedmf.moments.mechanism import jme
    from fedmf.moments.moment_stream import MomentStream
    from fedmf.moments.second_moment import DiagonalMoment, FullMatrix
    from fedmf.noise.key import NoiseKey
    from fedmf.participation import Participation
    from fedmf.workload.toeplitz import average

    once, work = Participation(case.rounds, 1, case.rounds), average(case.rounds)
    # Made for prefix sums, whose best strategy is good for averages too and is quick to find.
    C = build(case.mechanism, once, params=case.params).factorization
    second = (FullMatrix if case.second == "full" else DiagonalMoment)(case.d)
    made = jme(C, C, once, UserRange(1.0, case.d), 1.0)
    stream = MomentStream(made, second, work, key=NoiseKey.from_seed(0))
    row = torch.from_numpy(np.full(case.d, case.d**-0.5))
    for _ in range(70):
        stream.update(row)

    rows = row.expand(250, case.d).contiguous()

    def steps() -> None:
        for _ in range(case.steps):
            stream.update(row)

    def blocks() -> None:
        for _ in range(case.steps // len(rows)):
            stream.extend(rows)

    return blocks if case.block else steps


def plain_loop(case: Case) -> Callable[[], object]:
    """The same number of steps of the baseline."""
    rng, row = np.random.default_rng(0), np.full(case.d, case.d**-0.5)
    first = np.zeros(case.d)
    second = np.zeros((case.d, case.d) if case.second == "full" else case.d)
    t = 0

    def steps() -> None:
        nonlocal t, first, second
        for _ in range(case.steps):
            t += 1
            first += row + rng.standard_normal(case.d)
            square = np.outer(row, row) if case.second == "full" else row * row
            second += square + rng.standard_normal(second.shape)
            _released = first / t, second / t

    return steps


def measure(name: str, repeats: int, threads: int) -> dict[str, Any]:
    """One case, in a process of its own."""
    import torch

    torch.set_num_threads(threads)
    case = CASES[name]
    own = estimator(case)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    plain = plain_loop(case)
    plain()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        own()
        middle = time.perf_counter()
        plain()
        times.append((middle - start, time.perf_counter() - middle))
    mine, theirs = np.array(times).T / case.steps
    return {
        "name": name,
        "value": float(np.median(mine)) * 1e3,
        "unit": "ms per step",
        "baseline": "NumPy loop, independent noise",
        "baseline_value": float(np.median(theirs)) * 1e3,
        "ratio": float(np.median(mine / theirs)),
        "extra_mib": grown / 1024,
        "hours_for_horizon": float(np.median(mine)) * case.rounds / 3600,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", help="part of a row's name; may be given several times")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if not options.json:
        print(f"{'step':<46}{'ms':>9}{'NumPy ms':>10}{'ratio':>7}{'extra MiB':>11}{'n steps':>12}")
    context = mp.get_context("spawn")
    for name in CASES:
        if options.only and not any(part in name for part in options.only):
            continue
        with context.Pool(1) as pool:
            row = pool.apply(measure, (name, options.repeats, options.threads))
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            whole = f"{row['hours_for_horizon'] * 60:.1f} min"
            print(
                f"{name:<46}{row['value']:>9.3f}{row['baseline_value']:>10.3f}{row['ratio']:>7.2f}"
                f"{row['extra_mib']:>11.1f}{whole:>12}",
                flush=True,
            )


if __name__ == "__main__":
    main()
