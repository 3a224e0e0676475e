"""Normals per second: the keyed source and correlated streams against `Tensor.normal_`.

    python simulations/benchmarks/noise_source.py [--elements N] [--repeats R] [--threads T] [--json]

Each rate is the best of R alternating repetitions. A ratio above 1 is faster than the baseline, which
draws into an existing tensor and is not cryptographically secure.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

from fedmf.factorization import Recurrence
from fedmf.noise import CorrelatedNoise, GaussianSource, NoiseKey

BASELINES = ("torch normal_ float64", "torch normal_ float32")


def recurrence(feedforward: list[float], feedback: list[float], rounds: int) -> Recurrence:
    return Recurrence(np.array(feedforward), np.array(feedback), np.ones(rounds))


def streaming(
    source: GaussianSource, feedforward: list[float], feedback: list[float]
) -> Callable[[], object]:
    """One round of a stream, again and again; it starts past its first rounds, where every lag is in use."""
    noise = CorrelatedNoise(source, recurrence(feedforward, feedback, 100_000), 100_000)
    out = torch.zeros(source.dimension)
    noise.seek(max(len(feedforward), len(feedback)))
    return lambda: noise.add_(out, 1.0)


def subjects(elements: int) -> dict[str, Callable[[], object]]:
    source = GaussianSource(NoiseKey.from_seed(0), elements)
    zeros, buffer = bytes(8 * elements), bytearray(8 * elements)
    wide, narrow = torch.empty(elements, dtype=torch.float64), torch.empty(elements)
    halving = [-0.5 / 2**j for j in range(4)]
    return {
        BASELINES[0]: wide.normal_,
        BASELINES[1]: narrow.normal_,
        "keystream only": lambda: NoiseKey.from_seed(0).keystream(bytes(12), 0).update_into(zeros, buffer),
        "GaussianSource.block": lambda: source.block(0, 0, elements),
        "stream, independent": streaming(source, [1.0], []),
        "stream, feedforward of 2": streaming(source, [1.0, -0.9], []),
        "stream, feedforward of 5": streaming(source, [1.0, *halving], []),
        "stream, feedback of 4": streaming(source, [1.0], halving),
    }


def rates(elements: int, repeats: int) -> dict[str, float]:
    """Normals per second of each subject: the best repetition, subjects taking turns."""
    work = subjects(elements)
    best = dict.fromkeys(work, float("inf"))
    for _ in range(repeats + 1):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: elements / seconds for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    measured = rates(options.elements, options.repeats)
    if not options.json:
        print(f"{'10^6 normals/s':<28}{'rate':>8}" + "".join(f"{'/ ' + base:>26}" for base in BASELINES))
    for name, rate in measured.items():
        if options.json:
            for base in BASELINES:
                row = {"name": name, "value": rate, "unit": "normals/s", "baseline": base}
                print(json.dumps({**row, "ratio": rate / measured[base]}))
        else:
            ratios = "".join(f"{rate / measured[base]:>26.2f}" for base in BASELINES)
            print(f"{name:<28}{rate / 1e6:>8.1f}{ratios}")


if __name__ == "__main__":
    main()
