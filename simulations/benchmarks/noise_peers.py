"""A round of banded Toeplitz noise, p bands: this package against jax-privacy and pfl on the CPU.

    python simulations/benchmarks/noise_peers.py [--jax-python PATH] [--pfl-python PATH] [--elements N]
                                                 [--bands P] [--repeats R] [--threads T] [--json]

Each runs in a process of its own, one after the other, in an interpreter that has it (pip install jax
jax-privacy; pip install pfl torch); without an interpreter its rows are left out. Stored vectors are
float32 everywhere and count as memory. The others' noise is not cryptographically secure. A ratio is
their median seconds per round / ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

COMMON = """
import json, sys, time
d, p, repeats, threads = map(int, sys.argv[1:5])
coefficients = [1.0]
for j in range(1, p):
    coefficients.append(coefficients[-1] * (2 * j - 1) / (2 * j))
def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field))
def report(run):
    before = status("VmRSS")
    for _ in range(3):
        run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    print(json.dumps([seconds, (status("VmHWM") - before) / 1024]))
"""

OURS = """
import torch
from fedmf.noise import Domain, NoiseKey
from fedmf.noise.kernels import CpuKernels, RowPass
kernels, out = CpuKernels(NoiseKey.from_seed(0), Domain.TRAINING, threads), torch.ones(d)
kernels.add_(RowPass((0,), (1.0,), 1.0, (0,), (0.0,), (0,), (0.0,)), torch.zeros(9), 0, torch.zeros(1, 9))
ring = t = None
def run():
    global ring, t
    if ring is None:
        ring, t = torch.zeros(p - 1, d), 0
    places, weights = tuple((t - lag) % (p - 1) for lag in range(1, p)), tuple(coefficients[1:])
    kernels.add_(RowPass((t,), (1.0,), 1.0, places, weights, (t % (p - 1),), (0.0,)), out, 0, ring)
    t += 1
report(run)
"""

JAX = """
import jax, jax.numpy as jnp
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import toeplitz
inverse = toeplitz.inverse_as_streaming_matrix(jnp.array(coefficients, jnp.float32))
privatizer = noise_addition.matrix_factorization_privatizer(inverse, stddev=1.0, prng_key=0)
gradient = jnp.ones(d, jnp.float32)
update, state = jax.jit(privatizer.update), None
def run():
    global state
    if state is None:
        state = privatizer.init(gradient)
    noisy, state = update(gradient, state)
    jax.block_until_ready((noisy, state))
report(run)
"""

PFL = """
import numpy as np, torch
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
set_framework_module(pytorch_ops)
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism, ForwardSubstitution
torch.set_num_threads(threads)
n = 3 + repeats + p
C = sum(np.diag([c] * (n - j), -j) for j, c in enumerate(coefficients) if j < n)
substitution, gradient, t = ForwardSubstitution(C, p - 1), torch.ones(d), 0
def run():
    global t
    t += 1
    fresh = BandedMatrixFactorizationMechanism._generate_flattened_noise(d, 1.0, t)
    return gradient + substitution.step(fresh)
report(run)
"""


def measure(python: str, program: str, options: argparse.Namespace) -> tuple[list[float], float]:
    """Seconds of each round and MiB beyond what was there before the first."""
    numbers = [options.elements, options.bands, options.repeats, options.threads]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    if program is OURS:
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [python, "-c", COMMON + program, *map(str, numbers)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    seconds, memory = json.loads(done.stdout.splitlines()[-1])
    return seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jax-python", help="interpreter with jax-privacy")
    parser.add_argument("--pfl-python", help="interpreter with pfl")
    parser.add_argument("--elements", type=int, default=10**6)
    parser.add_argument("--bands", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=60, help="more than the bands")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    peers = (("jax-privacy", options.jax_python, JAX), ("pfl", options.pfl_python, PFL))
    seconds, memory = measure(sys.executable, OURS, options)
    full = slice(-max(1, options.repeats - options.bands), None)
    ours = statistics.median(seconds[full])
    rows = [("fedmf", ours, memory, 1.0)]
    for name, python, program in peers:
        if python is None:
            print(f"{name}: no interpreter given, left out", file=sys.stderr)
            continue
        seconds, memory = measure(python, program, options)
        rows.append((name, statistics.median(seconds[full]), memory, statistics.median(seconds[full]) / ours))
    case = f"banded p={options.bands}, d={options.elements:.0e}"
    for name, value, memory, ratio in rows:
        if options.json:
            row = {"name": f"{case}, {name}", "value": value, "unit": "s/round", "baseline": "fedmf"}
            print(json.dumps({**row, "ratio": ratio, "memory_mib": memory}))
        else:
            print(f"{case}: {name:<12}{value * 1e3:>9.1f} ms/round{memory:>9.0f} MiB{ratio:>8.1f} x fedmf")


if __name__ == "__main__":
    main()
