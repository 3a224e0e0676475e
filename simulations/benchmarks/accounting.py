"""Time and samples of the Balls-in-Bins accountant, beside plain sampling and jax-privacy.

    python simulations/benchmarks/accounting.py [--json] [--jax-python /path/to/python]

Noise of DP-λCGD (λ = 0.95) at n = 3900, k = 10, b = 390, ε = 8, δ = 1e-5 with a relative standard error of δ
of 1 %. The interpreter of --jax-python must have jax-privacy; its sampler is timed on 200 draws of the
privacy loss and extrapolated to the draws that plain sampling needs for the same error, for one noise level
only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time

from fedmf.accounting.amplification import BallsInBins, amplified_noise
from fedmf.factorization import cgd
from fedmf.participation import Participation

CONTRACT = Participation(3900, 10, 390)
PROBE = """
import json, sys, time
import numpy as np
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import sample_generation
noise, draws = float(sys.argv[1]), 200
strategy = batch_selection.BallsInBinsSampling(iterations=3900, cycle_length=390)
column = 0.95 ** np.arange(390)
start = time.perf_counter()
for seed in range(draws):
    sample_generation.get_privacy_loss_sample(strategy, noise, column, seed=seed)
print(json.dumps((time.perf_counter() - start) / draws))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jax-python", help="an interpreter that can import jax_privacy")
    options = parser.parse_args()
    start = time.perf_counter()
    found = amplified_noise(BallsInBins.of(cgd(0.95, 3900), CONTRACT), 8.0, 1e-5, 0.01)
    seconds = time.perf_counter() - start
    plain = found.estimate.gain * found.estimate.samples
    rows = [
        {"name": "noise", "value": found.value, "unit": "clip norms", "baseline": None, "ratio": None},
        {"name": "time", "value": seconds, "unit": "s", "baseline": None, "ratio": None},
        {
            "name": "samples",
            "value": found.estimate.samples,
            "unit": "draws",
            "baseline": plain,
            "ratio": plain / found.estimate.samples,
        },
    ]
    if options.jax_python:
        command = [options.jax_python, "-c", PROBE, str(found.value)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        baseline = json.loads(done.stdout.splitlines()[-1]) * plain
        rows.append({
            "name": "time beside jax-privacy",
            "value": seconds,
            "unit": "s",
            "baseline": baseline,
            "ratio": baseline / seconds,
        })  # fmt: skip
    for row in rows:
        print(json.dumps(row) if options.json else row)


if __name__ == "__main__":
    main()
