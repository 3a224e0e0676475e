"""What noisy counts of contributions cost and tell: docs/health.md.

    python simulations/health.py [--config configs/digits.toml] [--runs 1000] [--seeds 10]

*Power*: the noise of the counts of a planned run, drawn by the running stream of 1,000 keys, around a run in
which nobody contributes and one in which everybody planned does; how often each is called, at the round that
the plan states and at any round. *Cost*: the run trained with and without counts, by paired noise seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import fedmf
from fedmf.noise import Domain, GaussianSource, NoiseKey, NoiseStream
from fedmf.parts import Health
from fedmf.parts.health import Power
from fedmf.runs import Run


def power(run: Run, part: Health, runs: int) -> None:
    """Print how often dead and live runs are called."""
    plan = fedmf.plan(run)
    C, size, rounds = plan.mechanism.factorization, plan.cohorts.size, plan.participation.rounds
    std = plan.relative_noise_std * part.factors[0]
    told = Power.of(C, size, std)
    first = told.rounds
    print(f"planned: health {told.words()}")
    if first is None:
        return
    called = {"dead": np.zeros((runs, rounds), bool), "live": np.zeros((runs, rounds), bool)}
    for seed in tqdm(range(runs), desc="runs"):
        source = GaussianSource(NoiseKey.from_seed(seed), 1, Domain.of_part("health"))
        noise, total = NoiseStream(source, C.recurrence(), rounds), 0.0
        for t in range(rounds):
            row = torch.zeros(1, dtype=torch.float64)
            noise.add_(row, std)
            total += float(row)
            if t + 1 != first and (t + 1) % part.rounds_per_release:
                continue  # a run looks then
            called["dead"][seed, t] = told.is_dead(0, t + 1, total)
            called["live"][seed, t] = told.is_dead(0, t + 1, total + size * (t + 1))
    print(f"\n{'run':6} {f'called in round {first}':>22} {'ever called':>12} {'never called':>22}")
    for name, calls in called.items():
        at, ever, end = calls[:, first - 1].mean(), calls.any(axis=1).mean(), (~calls.any(axis=1)).mean()
        print(f"{name:6} {at:22.3f} {ever:12.3f} {end:22.3f}")


def cost(run: Run, part: Health, seeds: int) -> None:
    """Print accuracy with and without counts, and the paired difference."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in tqdm(range(seeds), desc="seeds"):
            seeded = dataclasses.replace(run, privacy=dataclasses.replace(run.privacy, noise_seed=seed))
            pair = seeded, dataclasses.replace(seeded, beside=(part,))
            found = [fedmf.simulate(one, Path(folder) / f"{seed}-{i}") for i, one in enumerate(pair)]
            last = [result.metrics[max(result.metrics)] for result in found]
            rows.append([100 * row[next(name for name in row if "accuracy" in name)] for row in last])
    without, with_counts = np.array(rows).T
    difference = with_counts - without
    error = difference.std(ddof=1) / np.sqrt(seeds)
    print(f"\naccuracy without {without.mean():.2f} %, with {with_counts.mean():.2f} %: ", end="")
    print(f"{difference.mean():+.2f} ± {error:.2f} points over {seeds} paired seeds")


def main() -> None:
    """Both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=Path("configs/digits.toml"))
    parser.add_argument("--runs", type=int, default=1000, help="of each kind, for the power")
    parser.add_argument("--seeds", type=int, default=10, help="of trained runs, for the cost")
    chosen = parser.parse_args()
    run, part = fedmf.load_run(chosen.config), Health()
    power(run, part, chosen.runs)
    if chosen.seeds:
        cost(run, part, chosen.seeds)


if __name__ == "__main__":
    main()
