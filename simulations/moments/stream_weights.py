"""`--weight best` against the default λ: expected squared errors of what a stream releases last, exactly.

    python simulations/moments/stream_weights.py

n = 1,000 rows in the unit ball, each another user's, ε = 8, δ = 1e-5, full second moment, both moments with
the same workload. The error of the covariance depends on the true mean, which --weight best takes at
‖μ‖² = ζ²/2; the table says what it is at others, and what the mean pays.
Writes docs/results/stream-weights.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from released_moments import planned

from fedmf.streaming import StreamPlan

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
ROWS, DIMENSIONS, MEANS = 1_000, (2, 10, 100), (0.1, 0.5, 1.0)
WORKLOADS = ("average", "prefix", "exponential:0.99", "window:100", "momentum:0.9")


def errors(plan: StreamPlan) -> tuple[float, list[float]]:
    """E‖μ̂ − μ‖² and E‖Σ̂ − Σ‖² at each ‖μ‖² of `MEANS`, after the last row."""
    d, at = plan.layout.dimension, np.array([plan.rounds])
    weight = float(plan.row_sums(0, at)[0])
    v, v2 = (float(plan.variances(moment, at)[0]) / weight**2 for moment in (0, 1))
    return d * v, [d * (d + 1) * (v2 / 2 + v**2) + 2 * (d + 1) * v * square for square in MEANS]


def main() -> None:
    lines = [
        "# The weight of the second moment",
        "",
        "`python simulations/moments/stream_weights.py`",
        "",
        "`--weight best` over the default: ratios of expected squared errors after the last of 1,000 rows in",
        "the unit ball, ε = 8, δ = 1e-5; below 1 best is better. Of the covariance at ‖μ‖² = 0.1, 0.5 and 1,",
        "of the mean, and of both (errors summed, in units of ζ⁴ and ζ², at ‖μ‖² = 0.5).",
        "",
        "| adjacency | workload | d | λ default → best | covariance 0.1 | 0.5 | 1 | mean | both |",
        "|" + 9 * "---|",
    ]
    for adjacency in ("zero-out", "replace-one"):
        for workload in WORKLOADS:
            for d in DIMENSIONS:
                asked = {"adjacency": adjacency, "workloads": (workload,)}
                plans = [planned(ROWS, d, **asked, weight=weight) for weight in (None, "best")]
                (mean, own), (paid, best) = map(errors, plans)
                weights = " → ".join(f"{plan.mechanism.weight:.2f}" for plan in plans)
                ratios = [b / a for a, b in zip(own, best, strict=True)]
                ratios += [paid / mean, (best[1] + paid) / (own[1] + mean)]
                cells = [adjacency, workload, str(d), weights, *(f"{ratio:.2f}" for ratio in ratios)]
                lines.append("| " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
    (RESULTS / "stream-weights.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
