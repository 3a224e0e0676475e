"""Running mean and covariance of real measurements: JME beside post-processing over ε, at true privacy.

    python simulations/moments/real_data.py [--seeds S]

The ten mean measurements of the breast cancer data that ships with scikit-learn (569 rows, one per patient),
mapped from fixed public ranges to [-1, 1] and clipped to norm ζ = 1.5. Each patient is a user with one row,
replace-one adjacency, δ = 1e-5. Error: ‖Σ̂ − Σ‖_F / ‖Σ‖_F of the covariance after the last row, debiased, not
projected; median over seeds. Strategies: independent noise and banded Toeplitz (p = 64) for running averages.
Writes docs/results/moments-real-data.{md,png}.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from sklearn.datasets import load_breast_cancer

from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.mechanisms.closed_forms import identity
from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import average
from fedmf.moments import METHODS, FullMatrix, MomentStream
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "design"))
from pictures import RESULTS, draw
from theory import gaussian_estimate, mean_noise_variances

#: Public, round ranges of the ten measurements; not computed from the data.
LOW = (5, 8, 40, 100, 0.05, 0, 0, 0, 0.1, 0.04)
HIGH = (30, 40, 200, 2600, 0.17, 0.4, 0.5, 0.2, 0.3, 0.1)
ZETA, EPSILONS, DELTA = 1.5, (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 1e-5


def patients() -> torch.Tensor:
    low, high = np.array(LOW), np.array(HIGH)
    scaled = 2 * (load_breast_cancer().data[:, :10] - low) / (high - low) - 1
    rows = torch.from_numpy(np.clip(scaled, -1, 1))
    return rows * (ZETA / rows.norm(dim=1, keepdim=True).clamp_min(ZETA))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    rows = patients()
    n, d = rows.shape
    once, work, users = Participation(n, 1, n), average(n), UserRange(ZETA, d, "replace-one")
    strategies = {
        "independent": identity(n),
        "banded": build("banded-toeplitz", once, work, bands=64).factorization,
    }
    truth = rows.mT.cov(correction=0)
    curves: dict[str, list[tuple[float, float]]] = {}
    cases = [(e, c, m) for e in EPSILONS for c in strategies for m in ("JME", "PP debiased")]
    for epsilon, noise, method in track(cases, description="cases"):
        C, sigma = strategies[noise], gaussian_sigma(epsilon, DELTA)
        made = METHODS["jme" if method == "JME" else "pp"].mechanism([C], once, users, sigma)
        variance = float(mean_noise_variances(made, work)[-1])
        errors = []
        for seed in range(seeds):
            stream = MomentStream(made, FullMatrix(d), work, key=NoiseKey.from_seed(seed))
            for row in rows:
                release = stream.update(row)
            estimate = gaussian_estimate(release, variance).covariance
            errors.append(float((estimate - truth).norm() / truth.norm()))
        curves.setdefault(f"{method}, {noise} noise", []).append((epsilon, float(np.median(errors))))
    panel = (curves, "ε", "relative error of the covariance")
    draw("moments-real-data", {f"breast cancer, n = {n}, d = {d}": panel}, logy=True)
    lines = ["# Covariance of real measurements", "", "`python simulations/moments/real_data.py`", ""]
    lines += [f"Median of {seeds} seeds of ‖Σ̂ − Σ‖_F/‖Σ‖_F after {n} rows, δ = {DELTA:g}.", ""]
    lines += [
        "| method | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |",
        "|---|" + "---|" * len(EPSILONS),
    ]
    for label, points in curves.items():
        lines.append(f"| {label} | " + " | ".join(f"{y:.3f}" for _, y in points) + " |")
    (RESULTS / "moments-real-data.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
