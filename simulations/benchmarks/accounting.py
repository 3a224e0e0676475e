"""Time and samples of the Balls-in-Bins accountant, beside plain sampling.

    python simulations/benchmarks/accounting.py [--json]

Noise of DP-λCGD (λ = 0.95) at n = 3900, k = 10, b = 390, ε = 8, δ = 1e-5 with a relative standard
error of δ of 1 %; seconds of CPU, the search for the noise included. "samples" compares the draws
of the final estimate with those that plain sampling needs for the same error; its variance is
estimated from the same draws.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from fedmf.accounting.balls_in_bins import BallsInBinsPair
from fedmf.accounting.monte_carlo import contributions
from fedmf.accounting.noise_level import Calibrated, amplified_noise
from fedmf.mechanisms.closed_forms import cgd
from fedmf.participation import Participation

CONTRACT = Participation(3900, 10, 390)
EPSILON = 8.0
DELTA = 1e-5
ERROR = 0.01


def result(name: str, value: float, unit: str, baseline: float | None = None) -> dict[str, object]:
    """A row: the figure, that of the baseline, and how many times the baseline is as large."""
    ratio = None if baseline is None else baseline / value
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio}


def plain_draws(pair: BallsInBinsPair, found: Calibrated) -> float:
    """Draws of P itself with the standard error of the estimate: their variance over its square."""
    side = found.estimate.side
    draws = pair.proposal(found.value, EPSILON, side).draw(np.random.default_rng(1), 2**13)
    losses = pair.losses(draws.state, found.value) * (1 if side == "remove" else -1)
    values = contributions(pair, draws, found.value, EPSILON, side)
    square = float((values * -np.expm1(np.minimum(EPSILON - losses, 0.0))).mean())
    return (square - found.estimate.delta**2) / found.estimate.standard_error**2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    options = parser.parse_args()
    pair = BallsInBinsPair.of(cgd(0.95, CONTRACT.rounds), CONTRACT)
    start = time.process_time()
    found = amplified_noise(pair, EPSILON, DELTA, ERROR)
    seconds = time.process_time() - start
    plain = plain_draws(pair, found)
    rows = [
        result("noise", found.value, "clip norms"),
        result("standard error of the noise", found.standard_error, "clip norms"),
        result("relative standard error of delta", found.estimate.relative_error, "1"),
        result("samples, beside plain sampling", found.estimate.samples, "draws", plain),
        result("time", seconds, "CPU s"),
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        beside = (
            ""
            if row["ratio"] is None
            else f"   baseline {row['baseline']:.4g}, {row['ratio']:.3g} times"
        )
        print(f"{row['name']:42} {row['value']:.4g} {row['unit']}{beside}")


if __name__ == "__main__":
    main()
