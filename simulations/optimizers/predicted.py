"""Why blocks: predicted relative error of v by tensor on the problem with badly scaled blocks, from formulas.

    python simulations/optimizers/predicted.py [--output docs/results]

Signals are measured on the users' clipped updates at θ_0, without noise; errors are the standard deviation
of v̂ at the horizon (`fedmf.optim`) over the signal that the method estimates: the mean energy of the
users' updates for JME-Adam, the energy of their mean for all that square the mean.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from harness import PROBLEMS, Noise, calibrated
from methods import METHODS
from problems import Clipping, Problem
from relative_energy_error import (
    averaging_weights,
    released_variances,
    squared_biases,
    squared_variances,
)

from fedmf.cohorts import CyclicCohorts
from fedmf.optim.blocks import Blocks
from fedmf.optim.move import Move
from fedmf.workload.schedule import LearningRateSchedule

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
BETA2 = 0.99
ROWS = {
    "DP-Adam, debiased": "coordinate",
    "DP-Adam, debiased, by tensor": "tensor",
    "JME-Adam": "coordinate",
    "block JME-Adam, by channel": "channel",
    "block JME-Adam, by tensor": "tensor",
    "block JME-Adam, squared mean": "tensor",
}


def signals(problem: Problem) -> tuple[list[float], list[float]]:
    """Σ over a tensor of E_u x_u² and of (E_u x_u)² at θ_0, from one cohort."""
    blocks = Blocks.of(problem.shapes, "tensor")
    cohort = np.arange(problem.cohort)
    total, energies = problem.sums(problem.initial(), cohort, 0, Clipping(problem.clip_norm), blocks)
    assert energies is not None
    m = problem.cohort
    return (energies / m).tolist(), blocks.energies(total / m).tolist()


def relative_errors(
    name: str, which: str, noise: Noise, problem: Problem, users: list[float], means: list[float]
) -> list[float]:
    """std(v̂_B)/v_B at the horizon for an average block of each tensor."""
    weights, m = averaging_weights(BETA2, problem.rounds)[-1:], problem.cohort
    squared_mean = "squared mean" in name
    found = []
    for shape, user, mean in zip(problem.shapes, users, means, strict=True):
        count = {"coordinate": math.prod(shape), "channel": shape[0], "tensor": 1}[which]
        size = math.prod(shape) // count
        signal = (mean if squared_mean or noise.second is None else user) / count
        if noise.second is None:
            gram = np.full((problem.rounds, problem.rounds), mean / count)
            variance = squared_variances(weights, noise.first, noise.first_std / m, size, gram)[0]
        else:
            std = noise.second_std / (1 if squared_mean else m)
            variance = released_variances(weights, noise.second, std, size)[0]
        found.append(math.sqrt(variance) / (signal / size))
    return found


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    problem = PROBLEMS["scaled blocks"](0)
    contract = CyclicCohorts(rounds=problem.rounds, size=problem.cohort).participation(problem.users)
    users, means = signals(problem)
    zeta, shapes = problem.clip_norm, problem.shapes
    lines = [
        "Predicted std(v̂_B)/v_B at the horizon, by tensor; `noise ×` is the standard deviation of the noise",
        "of the mean relative to a run that releases the mean alone. Above 1, v̂ is noise.",
        "",
        "| tensor | " + " | ".join(str(tuple(shape)) for shape in shapes) + " | |",
        "|---|" + "---|" * (len(shapes) + 1),
        "| E_u‖x_B‖²/ζ² | " + " | ".join(f"{e / zeta**2:.2g}" for e in users) + " | |",
        "| ‖E_u x_B‖²/ζ² | " + " | ".join(f"{e / zeta**2:.2g}" for e in means) + " | |",
    ]
    for epsilon in (8.0, 2.0):
        plain = calibrated(
            METHODS["momentum"], METHODS["momentum"].make(_move(), shapes, 0.1), problem, contract, epsilon
        )
        bias = squared_biases(
            averaging_weights(BETA2, problem.rounds)[-1:], plain.first, plain.first_std / problem.cohort
        )
        cells = [
            f"{bias[0] * math.prod(shape) / mean:.2g}" for shape, mean in zip(shapes, means, strict=True)
        ]
        lines.append(f"| **ε = {epsilon:g}** | " + " | ".join([""] * len(shapes)) + " | noise × |")
        lines.append("| bias of DP-Adam over v | " + " | ".join(cells) + " | 1 |")
        for name, which in ROWS.items():
            optimizer = METHODS[name].make(_move(), shapes, 0.1)
            noise = calibrated(METHODS[name], optimizer, problem, contract, epsilon)
            errors = relative_errors(name, which, noise, problem, users, means)
            price = noise.first_std / plain.first_std
            lines.append(f"| {name} | " + " | ".join(f"{e:.2g}" for e in errors) + f" | {price:.3f} |")
    (options.output / "optimizers-predicted.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _move() -> Move:
    return Move(LearningRateSchedule("constant", 1.0, 1))


if __name__ == "__main__":
    main()
