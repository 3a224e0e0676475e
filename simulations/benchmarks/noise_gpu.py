"""The noise passes on a GPU: bytes of output per second, against a device copy and `torch.randn` plus `add_`.

    python simulations/benchmarks/noise_gpu.py [--elements N]... [--repeats R] [--json]

Needs a CUDA device and Triton. Times are medians of R launches between CUDA events, subjects taking turns,
after a first launch that compiles. Every pass is compared with the kernels on CPUs on a slice, bit for bit.
A copy of n bytes reads n and writes n; its rate is given as the bytes written, like that of the passes.
The baseline of p rounds is p times `torch.randn` and `add_`, which is not cryptographically secure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from fedmf.noise.domain import Domain
from fedmf.noise.kernels.cpu import CpuKernels
from fedmf.noise.kernels.gpu import TritonKernels
from fedmf.noise.kernels.protocol import NoiseKernels
from fedmf.noise.kernels.row_pass import RowPass
from fedmf.noise.key import NoiseKey

KEY = NoiseKey.from_seed(0)
SLICE = 100_000
RING, BUFFERS = 16, 4

Pass = Callable[[NoiseKernels, torch.Tensor, torch.Tensor, int], None]


def regeneration(p: int) -> Pass:
    row = RowPass(tuple(range(100, 100 - p, -1)), tuple(0.9**j for j in range(p)))
    return lambda kernels, out, _, start: kernels.add_(row, out, start)


def ring(kernels: NoiseKernels, out: torch.Tensor, stored: torch.Tensor, start: int) -> None:
    places, weights = tuple(range(RING)), tuple(0.5 / (m + 1) for m in range(RING))
    kernels.add_(RowPass((100,), (1.0,), 1.0, places, weights, (0,), (0.0,)), out, start, stored)


def blt(kernels: NoiseKernels, out: torch.Tensor, stored: torch.Tensor, start: int) -> None:
    places, weights, decays = (0, 1, 2, 3), (0.2, 0.2, 0.1, 0.1), (0.99, 0.9, 0.5, 0.1)
    kernels.add_(RowPass((100,), (1.0,), 1.0, places, weights, places, decays), out, start, stored)


#: Pass, number of stored vectors, rounds regenerated.
PASSES: dict[str, tuple[Pass, int, int]] = {
    "independent": (regeneration(1), 0, 1),
    "regeneration, p = 2": (regeneration(2), 0, 2),
    "regeneration, p = 4": (regeneration(4), 0, 4),
    "regeneration, p = 16": (regeneration(16), 0, 16),
    f"ring of {RING}": (ring, RING, 1),
    f"state of {BUFFERS}": (blt, BUFFERS, 1),
}


def equal_to_cpu(run: Pass, rows: int, kernels: NoiseKernels, elements: int) -> bool:
    """On a slice that ends with the vector."""
    count = min(SLICE, elements)
    out, stored = torch.zeros(count), torch.ones(rows, count)
    on_gpu, stored_gpu = out.cuda(), stored.cuda()
    run(CpuKernels(KEY, Domain.TRAINING), out, stored, elements - count)
    run(kernels, on_gpu, stored_gpu, elements - count)
    return torch.equal(on_gpu.cpu(), out) and torch.equal(stored_gpu.cpu(), stored)


def random_sum(out: torch.Tensor, rounds: int) -> None:
    for _ in range(rounds):
        out.add_(torch.randn(out.shape, device=out.device))


def medians(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each subject."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + 1):
        for name, run in work.items():
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            run()
            last.record()
            last.synchronize()
            if repeat:
                times[name].append(first.elapsed_time(last) / 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(elements: int, repeats: int, as_json: bool) -> None:
    kernels = TritonKernels(KEY, Domain.TRAINING, torch.device("cuda"))
    out, other = torch.zeros(elements, device="cuda"), torch.zeros(elements, device="cuda")
    if not as_json:
        print(f"d = {elements:.0e}, float32, {torch.cuda.get_device_name()}")
        print(f"{'':<24}{'ms':>9}{'GB/s':>9}{'/ copy':>9}{'/ randn + add_':>16}  bits of the CPU")
    for name, (run, rows, rounds) in PASSES.items():
        stored = torch.zeros(rows, elements, device="cuda")
        seconds = medians(
            {
                "pass": lambda run=run, stored=stored: run(kernels, out, stored, 0),
                "copy": lambda: other.copy_(out),
                "randn": lambda rounds=rounds: random_sum(other, rounds),
            },
            repeats,
        )
        del stored
        same = equal_to_cpu(run, rows, kernels, elements)
        rate, spent = 4e-9 * elements / seconds["pass"], seconds["pass"]
        ratios = seconds["copy"] / spent, seconds["randn"] / spent
        if as_json:
            row = {"name": f"{name}, d = {elements}", "value": rate, "unit": "GB/s", "equal": same}
            print(json.dumps({**row, "baseline": "device copy", "ratio": ratios[0]}))
            print(json.dumps({**row, "baseline": "torch.randn + add_", "ratio": ratios[1]}))
        else:
            print(f"{name:<24}{1e3 * spent:>9.3f}{rate:>9.0f}{ratios[0]:>9.2f}{ratios[1]:>16.2f}  {same}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--elements", type=int, action="append")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "noise_gpu.py needs a CUDA device; noise_gpu_instructions.py does not.\n")
    for elements in options.elements or [10**8, 10**9]:
        measure(elements, options.repeats, options.json)


if __name__ == "__main__":
    main()
