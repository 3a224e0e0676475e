"""Secure noise on the CPU against `Tensor.normal_`, per round and vector, with the memory it takes.

    python simulations/benchmarks/noise.py [--elements N] [--ring-elements N] [--repeats R] [--threads T ...]
                                           [--json]

Subjects take turns; a ratio is the median over repetitions of baseline seconds / seconds, so above 1 is
faster than the baseline. `normal_` overwrites a float32 vector and is not cryptographically secure;
everything of ours adds to one. Ratios mean little while other programs keep the cores busy.
Memory is what a fresh process takes beyond its input, output and stored vectors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from fedmf.noise.cpu import CpuKernels
from fedmf.noise.row_pass import RowPass

from fedmf.noise.key import Domain, NoiseKey

Job = Callable[[], object]

#: Rounds regenerated from the key (banded inverses), stored outputs (banded C), buffers (BLT).
REGENERATED, STORED, BUFFERS = (2, 4, 16), (16, 64), (4,)


def job(name: str, d: int, threads: int) -> Job:
    """One round of a mechanism, adding to a float32 vector."""
    kind, _, number = name.partition(" ")
    p = int(number) if number else 1
    kernels = CpuKernels(NoiseKey.from_seed(0), Domain.TRAINING, threads)
    out = torch.ones(d)
    places, weights = tuple(range(p)), tuple(-0.5 / (j + 1) for j in range(p))
    if kind in ("independent", "regenerated"):
        return lambda: kernels.add_(RowPass(places, weights), out, 0)
    stored = torch.ones(p, d, dtype=torch.float64)
    if kind == "stored":
        return lambda: kernels.add_(RowPass((7,), (1.0,), 1.0, places, weights, (0,), (0.0,)), out, 0, stored)
    decays = tuple(0.9**j for j in range(1, p + 1))
    return lambda: kernels.add_(RowPass((7,), (1.0,), 1.0, places, weights, places, decays), out, 0, stored)


def normal(out: torch.Tensor, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    out.normal_()
    torch.set_num_threads(before)


def seconds(jobs: dict[str, Job], repeats: int) -> dict[str, list[float]]:
    """Wall-clock seconds of each repetition, jobs taking turns after one warm-up each."""
    for run in jobs.values():
        run()
    measured: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, run in jobs.items():
            start = time.perf_counter()
            run()
            measured[name].append(time.perf_counter() - start)
    return measured


def ratio(measured: dict[str, list[float]], name: str, baseline: str) -> float:
    pairs = zip(measured[baseline], measured[name], strict=True)
    return statistics.median(base / own for base, own in pairs)


def kibibytes(field: str) -> int:
    """A line of /proc/self/status: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def print_memory(name: str, d: int, threads: int) -> None:
    """In a fresh process: most memory during one round, less what was there before it."""
    job(name, 1000, threads)()  # loads and compiles
    run = job(name, d, threads)
    before = kibibytes("VmRSS")
    run()
    print((kibibytes("VmHWM") - before) / 1024)


def extra_memory(name: str, d: int, threads: int) -> float:
    arguments = ["--memory-of", name, "--elements", str(d), "--threads", str(threads)]
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=True, timeout=600
    )
    return float(done.stdout)


def rows(d: int, ring_d: int, repeats: int, threads: list[int], note: Callable[..., None]) -> None:
    """Measure everything; `note` gets each row as soon as it is known."""
    vector = torch.ones(d)
    names = ["independent", *(f"regenerated {p}" for p in REGENERATED)]
    for count in threads:
        jobs = {f"normal_, {n} threads": partial(normal, vector, n) for n in {1, count}}
        jobs |= {f"independent, {n} threads": job("independent", d, n) for n in {1, count}}
        jobs |= {f"{name}, {count} threads": job(name, d, count) for name in names}
        measured = seconds(jobs, repeats)
        for name in names:
            own = f"{name}, {count} threads"
            value = statistics.median(measured[own]) / d * 1e9
            bases = [f"normal_, {n} threads" for n in sorted({1, count})]
            bases += [f"independent, {n} threads" for n in sorted({1, count})]
            for base in (base for base in bases if base != own):
                note(f"{own}, d={d:.0e}", value, "ns/element", base, ratio(measured, own, base))
        jobs = {f"independent, {count} threads": job("independent", ring_d, count)}
        jobs |= {f"stored {p}, {count} threads": job(f"stored {p}", ring_d, count) for p in STORED}
        jobs |= {f"buffers {p}, {count} threads": job(f"buffers {p}", ring_d, count) for p in BUFFERS}
        measured = seconds(jobs, repeats)
        base, *others = jobs
        for own in others:
            value = statistics.median(measured[own]) / ring_d * 1e9
            note(f"{own}, d={ring_d:.0e}", value, "ns/element", base, ratio(measured, own, base))
        stored = [*(f"stored {p}" for p in STORED), *(f"buffers {p}" for p in BUFFERS)]
        sizes = [(name, size) for name in names for size in (d // 4, d)]
        for name, size in [*sizes, *((name, ring_d) for name in stored)]:
            value, own = extra_memory(name, size, count), f"memory of {name}, {count} threads, d={size:.1e}"
            note(own, value, "MiB", "64 MiB", 64 / max(value, 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--elements", type=int, default=10**7)
    parser.add_argument("--ring-elements", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        print_memory(options.memory_of, options.elements, options.threads[0])
        return

    def note(name: str, value: float, unit: str, baseline: str, against: float) -> None:
        row = {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": against}
        line = f"{name:<48}{value:>8.2f} {unit:<12}{against:>7.2f} x {baseline}"
        print(json.dumps(row) if options.json else line, flush=True)

    rows(options.elements, options.ring_elements, options.repeats, options.threads, note)


if __name__ == "__main__":
    main()
