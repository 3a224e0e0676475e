"""Robust design against the taper heuristic and BLT: RMSE over the separation that turns out to hold.

    python simulations/design/robust.py [--rounds 2000] [--participations 5] [--lower 200] [--upper 400]
        [--step 5] [--json]

The setting of McKenna (2024), Figure 10. Every mechanism is fixed before the separation b is known; its noise
is then calibrated to b with the exact sensitivity. "Known b" is the optimum for each b with p = b bands. The
BLT is the one with the lowest mean among those optimised for each b.
Writes docs/results/robust_design.png and .md unless --output names another path (without suffix).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pictures import RESULTS

from fedmf.factorization.matrices.strategy_matrix import Factorization
from fedmf.factorization.mechanisms import banded_toeplitz, blt
from fedmf.factorization.mechanisms.robust import Scenarios, robust_toeplitz, tapered
from fedmf.factorization.objectives.error import errors
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.workload.toeplitz import prefix

Curve = NDArray[np.float64]
KNOWN = "known b"
BUFFERS = 4


def curve(C: Factorization, scenarios: Scenarios) -> Curve:
    """RMSE of prefix sums for each contract, sensitivity included, noise multiplier left out."""
    queries, rmse = prefix(C.rounds), []
    for contract in scenarios.contracts:
        stated = stated_sensitivity(C, contract)
        assert stated.kind == "exact"
        rmse.append(errors(C, queries, stated).rmse)
    return np.array(rmse)


def compare(scenarios: Scenarios) -> dict[str, Curve]:
    """All curves by label."""
    contracts = scenarios.contracts
    lower, upper = contracts[0].min_separation, contracts[-1].min_separation
    single = [banded_toeplitz(contract.min_separation, contract) for contract in contracts]
    known = np.array(
        [
            curve(C, Scenarios((contract,), np.ones(1)))[0]
            for C, contract in zip(single, contracts, strict=True)
        ]
    )
    buffered = [
        curve(blt(BUFFERS, contract), scenarios) for contract in contracts[:: max(1, len(contracts) // 8)]
    ]
    regret = Scenarios(contracts, 1.0 / known)
    worst = robust_toeplitz(upper, regret, criterion="worst", start=robust_toeplitz(upper, scenarios))
    return {
        KNOWN: known,
        f"banded-toeplitz for b={upper}": curve(single[-1], scenarios),
        "taper heuristic": curve(tapered(single[-1], lower, upper), scenarios),
        f"BLT, {BUFFERS} buffers": min(buffered, key=np.mean),
        "robust, expected": curve(robust_toeplitz(upper, scenarios), scenarios),
        "robust, worst ratio": curve(worst, scenarios),
    }


def summary(curves: Mapping[str, Curve]) -> list[dict[str, float | str]]:
    """Mean and largest RMSE, and the largest ratio to the optimum for a known b."""
    return [
        {
            "mechanism": label,
            "mean_rmse": float(values.mean()),
            "largest_rmse": float(values.max()),
            "largest_ratio_to_known_b": float((values / curves[KNOWN]).max()),
        }
        for label, values in curves.items()
    ]


def table(rows: list[dict[str, float | str]], title: str) -> str:
    """The summary in Markdown."""
    lines = [
        f"# {title}",
        "",
        "| mechanism | mean RMSE | largest RMSE | largest ratio to known b |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['mechanism']} | {row['mean_rmse']:.4f} | {row['largest_rmse']:.4f} "
        f"| {row['largest_ratio_to_known_b']:.4f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def draw(path: Path, separations: list[int], curves: Mapping[str, Curve], title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for label, values in curves.items():
        ours = label.startswith("robust")
        style = "--" if label == KNOWN else "-"
        axis.plot(
            separations, values, style, linewidth=2.2 if ours else 1.3, label=f"{label} ({values.mean():.3f})"
        )
    axis.set(xlabel="min separation b", ylabel="RMSE without noise multiplier", title=title)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, title="mechanism (mean)")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (
        ("rounds", 2000),
        ("participations", 5),
        ("lower", 200),
        ("upper", 400),
        ("step", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output", type=Path, default=RESULTS / "robust_design")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, one object per line")
    args = parser.parse_args()
    separations = list(range(args.lower, args.upper + 1, args.step))
    scenarios = Scenarios.separations(args.rounds, separations, args.participations)
    curves = compare(scenarios)
    rows = summary(curves)
    title = f"n={args.rounds}, k={args.participations}, separation {args.lower} to {args.upper}"
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.with_suffix(".md").write_text(table(rows, f"Robust design: {title}"), encoding="utf-8")
    draw(args.output.with_suffix(".png"), separations, curves, title)
    print("\n".join(map(json.dumps, rows)) if args.json else table(rows, title), end="\n")


if __name__ == "__main__":
    main()
