"""Noise on a processor: a round's release, beside another version of the package and
`Tensor.normal_`.

    python simulations/benchmarks/noise.py [--before TREE] [--elements N] [--turns R] [--threads T]
    [--json]

Each version has a process of its own, and versions take turns case by case; a ratio is the median
over turns of seconds / seconds of the version before. Seconds are processor time of the process. A
release is the sum of clipped updates, its noise, and the mean in float32. `normal_` overwrites a
float32 vector and is not cryptographically secure. The load of the machine is printed first: ratios
mean little while other programs keep the cores busy. Memory is what the process takes beyond sum,
mean and stored vectors, at most.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

TREE: Final = Path(__file__).resolve().parents[2]
HORIZON: Final = 512
STD: Final = 2.0**35
USERS: Final = 100
Job = Callable[[], object]


def matrices() -> dict[str, Any]:
    """What each case streams through; no entry for a release without noise."""
    from fedmf.matrices.blt import BufferedToeplitz
    from fedmf.matrices.toeplitz import Toeplitz
    from fedmf.mechanisms.closed_forms import bisr, cgd, identity

    bands = [1.0, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1]
    return {
        "release, 0 normals": None,
        "release, 1 normal": identity(HORIZON),
        "regenerated rows, 2 (λ-CGD)": cgd(0.9, HORIZON),
        "regenerated rows, 8 (banded inverse)": bisr(8, HORIZON),
        "stored rows, 7 (banded C)": Toeplitz(bands, HORIZON),
        "stored sums, 3 (BLT)": BufferedToeplitz([0.99, 0.9, 0.5], [0.05, 0.1, 0.2], HORIZON),
    }


def releases(C: Any, d: int) -> Job:
    """A round: sum to mean."""
    import torch

    from fedmf.noise.key import Domain, NoiseKey
    from fedmf.noise.noise_stream import NoiseStream
    from fedmf.release.noisy_sum import NoisySum

    total = torch.ones(d, dtype=torch.int64)
    stream = None
    if C is not None:
        stream = NoiseStream(
            NoiseKey.from_seed(0), Domain.TRAINING, C.streaming_inverse(), HORIZON, d, STD
        )

    def one() -> None:
        if stream is not None:
            stream.release(total)
        NoisySum(total, 1.0).mean(USERS, torch.float32)

    return one


def normals(d: int) -> Job:
    """Independent variables alone: keystream, rounding and settling."""
    from fedmf.noise.innovations import Innovations
    from fedmf.noise.key import Domain, NoiseKey

    innovations = Innovations(NoiseKey.from_seed(0), Domain.TRAINING)
    return lambda: innovations.row(3, STD, d)


def job(case: str, d: int) -> Job:
    """One of the cases, in whichever version is imported."""
    import torch

    if case == "normal_":
        return torch.empty(d).normal_
    if case == "normals":
        return normals(d)
    return releases(matrices()[case], d)


def serve(d: int, threads: int) -> None:
    """Answer a line for each name of a case: seconds of a turn, and MiB beyond what lies there."""
    import torch

    torch.set_num_threads(threads)
    held: dict[str, Job] = {}
    for line in sys.stdin:
        case = line.strip()
        if case not in held:
            held.clear()
            warm = job(case, 1000)
            warm()
            held[case] = job(case, d)
            for _ in range(9):  # past rounds are there
                held[case]()
        begun = time.process_time()
        held[case]()
        taken = time.process_time() - begun
        print(json.dumps({"seconds": taken, "peak": peak()}), flush=True)


def peak() -> float:
    """MiB that the process has taken at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Version:
    """A process that runs cases with the package of a tree."""

    def __init__(self, tree: Path, d: int, threads: int) -> None:
        arguments = ["--serve", "--elements", str(d), "--threads", str(threads)]
        path = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env={**os.environ, **path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, case: str) -> dict[str, float]:
        """Do a turn."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(case, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(case: str, trees: dict[str, Path], d: int, threads: int, turns: int) -> dict[str, Any]:
    """A case in turns; fresh processes, so that the memory is its own."""
    versions = {name: Version(tree, d, threads) for name, tree in trees.items()}
    for version in versions.values():
        version.ask(case)
    answers: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
    for _ in range(turns):
        for name, version in versions.items():
            answers[name].append(version.ask(case))
    for version in versions.values():
        version.close()
    row: dict[str, Any] = {"case": case, "elements": d, "threads": threads, "turns": turns}
    for name, given in answers.items():
        row[f"ns, {name}"] = statistics.median(answer["seconds"] for answer in given) / d * 1e9
        row[f"peak MiB, {name}"] = given[-1]["peak"]
    if "before" in answers:
        pairs = zip(answers["now"], answers["before"], strict=True)
        row["ratio"] = statistics.median(now["seconds"] / old["seconds"] for now, old in pairs)
    return row


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="a tree of another version")
    parser.add_argument("--elements", type=int, default=10**7)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.elements, options.threads)
        return
    trees = {"now": TREE}
    if options.before:
        trees["before"] = options.before
    if not options.json:
        print("load of the machine:", " ".join(f"{value:.1f}" for value in os.getloadavg()))
    for case in ("normal_", "normals", *matrices()):
        row = measure(case, trees, options.elements, options.threads, options.turns)
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        told = ", ".join(f"{k} {v:.2f}" for k, v in row.items() if isinstance(v, float))
        print(f"{case:38s} {told}", flush=True)


if __name__ == "__main__":
    main()
