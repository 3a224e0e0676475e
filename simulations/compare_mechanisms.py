"""Test accuracy of mechanisms at equal privacy: the table and picture of the README.

    python simulations/compare_mechanisms.py            # all of it, a few minutes on 2 cores
    python simulations/compare_mechanisms.py --seeds 1 --rounds 40 --output /tmp/quick

Every run has the same (ε, δ, n, k, b), data split, initial model and cohorts for a seed; only the mechanism
differs. The server learning rate is tuned for each mechanism and ε on seeds that are not used for the
table. Noise keys come from public seeds so that the table can be reproduced; such runs are simulations
and protect nobody.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.progress import track
from scipy import stats

MECHANISMS: dict[str, dict[str, object]] = {
    "no noise": {"privacy.kind": "none", "mechanism.kind": "identity"},
    "identity": {"mechanism.kind": "identity"},
    "cgd": {"mechanism.kind": "cgd"},
    "bisr p=4": {"mechanism.kind": "bisr", "mechanism.bands": 4},
    "bifr p=4": {"mechanism.kind": "bifr", "mechanism.bands": 4},
    "banded-toeplitz": {"mechanism.kind": "banded-toeplitz"},
}
EPSILONS = (2.0, 8.0)
RATES = (0.025, 0.05, 0.1, 0.2, 0.4)
TUNING_SEEDS = (1000, 1001, 1002)
BASELINE = "identity"


def accuracy(keys: dict[str, object]) -> float:
    """Final test accuracy of one run, in percent; its ledger is replayed on the way."""
    import torch

    torch.set_num_threads(1)
    from fedmf.runs.tables.configuration import run_of

    run = run_of(keys)
    with tempfile.TemporaryDirectory() as folder:
        result = run.simulate(Path(folder) / "run")
    statement = result.statement.to_dict()
    assert statement["rounds_released"] == run.cohorts.rounds
    if run.is_private:
        epsilon = statement["epsilon_requested"] * (1 + 1e-9)
        assert statement["epsilon_realised"] <= statement["epsilon_planned"] <= epsilon
    return 100.0 * result.metrics[run.cohorts.rounds]["accuracy"]


def settings(name: str, epsilon: float, rate: float, seed: int, rounds: int) -> dict[str, object]:
    """The configuration of one run."""
    return {
        **MECHANISMS[name],
        **({} if name == "no noise" else {"privacy.epsilon": epsilon}),
        "optimizer.learning-rate": rate,
        "data.seed": seed,
        "privacy.noise-seed": seed,
        "cohorts.rounds": rounds,
        "execution.evaluate-every": rounds,
    }


def cells() -> Iterable[tuple[str, float]]:
    """Mechanism and ε of each column pair; without noise ε plays no part."""
    return [(name, epsilon) for epsilon in EPSILONS for name in MECHANISMS if name != "no noise"] + [
        ("no noise", EPSILONS[-1])
    ]


def compare(seeds: int, rounds: int, workers: int) -> dict[str, object]:
    """Tune, run, and summarise."""
    with ProcessPoolExecutor(workers) as pool:
        grid = [(c, rate, seed) for c in cells() for rate in RATES for seed in TUNING_SEEDS]
        jobs = [settings(*c, rate, seed, rounds) for c, rate, seed in grid]
        tuned = _collect(grid, pool.map(accuracy, jobs), "tuning")
        best = {
            c: max(RATES, key=lambda rate: statistics.mean(tuned[c, rate, s] for s in TUNING_SEEDS))
            for c in cells()
        }
        final = [(c, seed) for c in cells() for seed in range(seeds)]
        jobs = [settings(*c, best[c], seed, rounds) for c, seed in final]
        results = _collect(final, pool.map(accuracy, jobs), "seeds ")
    rows = []
    for name, epsilon in cells():
        values = [results[(name, epsilon), seed] for seed in range(seeds)]
        row = {
            "mechanism": name,
            "epsilon": None if name == "no noise" else epsilon,
            "server_learning_rate": best[name, epsilon],
            "accuracies": values,
            "median": statistics.median(values),
            "low": min(values),
            "high": max(values),
        }
        if name not in ("no noise", BASELINE):
            base = [results[(BASELINE, epsilon), seed] for seed in range(seeds)]
            row["difference"], row["difference_low"], row["difference_high"] = paired(values, base)
        rows.append(row)
    return {"rounds": rounds, "seeds": seeds, "rows": rows}


def _collect(keys: list, values: Iterable[float], what: str) -> dict:
    return dict(zip(keys, track(values, total=len(keys), description=what), strict=True))


def paired(values: list[float], base: list[float]) -> tuple[float, float, float]:
    """Mean of the differences by seed and its 95 % Student interval."""
    differences = [a - b for a, b in zip(values, base, strict=True)]
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return mean, float("-inf"), float("inf")
    half = stats.t.ppf(0.975, len(differences) - 1) * statistics.stdev(differences) / len(differences) ** 0.5
    return mean, mean - half, mean + half


def markdown(result: dict) -> str:
    """The table of the README."""
    rows = {(row["mechanism"], row["epsilon"]): row for row in result["rows"]}
    lines = [
        "| mechanism | "
        + " | ".join(f"ε = {e:g}: accuracy | paired gain over identity" for e in EPSILONS)
        + " |",
        "|---|" + "---|---|" * len(EPSILONS),
    ]
    for name in MECHANISMS:
        line = [name]
        for epsilon in EPSILONS:
            row = rows[name, None if name == "no noise" else epsilon]
            line.append(f"{row['median']:.1f} ({row['low']:.1f}–{row['high']:.1f})")
            gain = "difference" in row
            line.append(
                f"{row['difference']:+.1f} [{row['difference_low']:+.1f}, {row['difference_high']:+.1f}]"
                if gain
                else ""
            )
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


def draw(result: dict, path: Path) -> None:
    """Accuracies of all seeds, by mechanism and ε."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, epsilon in zip(figure.subplots(1, 2, sharey=True), EPSILONS, strict=True):
        for x, name in enumerate(MECHANISMS):
            wanted = None if name == "no noise" else epsilon
            row = next(r for r in result["rows"] if (r["mechanism"], r["epsilon"]) == (name, wanted))
            axes.plot([x] * len(row["accuracies"]), row["accuracies"], "o", color="tab:blue", alpha=0.4)
            axes.hlines(row["median"], x - 0.3, x + 0.3, color="tab:red", linewidth=2)
        axes.set_xticks(range(len(MECHANISMS)), MECHANISMS, rotation=30, ha="right")
        axes.set_title(f"user-level ε = {epsilon:g}, δ = 1e-5")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("test accuracy (%)")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=240)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "docs" / "results")
    options = parser.parse_args()
    result = compare(options.seeds, options.rounds, options.workers)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "compare_mechanisms.json").write_text(json.dumps(result, indent=1) + "\n")
    table = markdown(result)
    (options.output / "compare_mechanisms.md").write_text(table + "\n")
    draw(result, options.output / "compare_mechanisms.png")
    print(table)


if __name__ == "__main__":
    main()
