"""Private evaluation on digits at ε = 8: the curve that is released, beside the true one.

    python simulations/evaluation/private_curve.py [--shares 0.02 0.1] [--seeds 3] [--out docs/results]

Runs configs/digits.toml with private evaluation by all users after every tenth round, for each share of μ²
and each seed, and once without. The true curve is each user's own accuracy, averaged over users, of the very
models that were released: it has no noise and is not private, which a public seed allows in a simulation.
Writes private-evaluation.md and private-evaluation.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fedmf
from fedmf.accounting import UserLevel, gaussian_epsilon
from fedmf.cohorts import CyclicCohorts
from fedmf.data import Digits
from fedmf.participation import Adjacency
from fedmf.parts import EvaluationPlan
from fedmf.rounds import run_in_process
from fedmf.runs import (
    CentralEvaluation,
    Classification,
    PrivateEvaluation,
    Run,
    Session,
    load_run,
    private_columns,
)
from fedmf.statements import Plan
from fedmf.training import judgements

ROOT = Path(__file__).resolve().parents[2]
ADJACENCIES: dict[Adjacency, float] = {"zero-out": 1.0, "replace-one": 2.0}
VALUE, SPREAD = private_columns("accuracy")
WORKLOADS = {"each alone": ("identity", "window:1"), "smoothed": ("banded-toeplitz", "exponential:0.8")}


def true_accuracy(session: Session) -> float:
    """The mean over users of each one's accuracy on its own examples: not private."""
    dataset = session.task.dataset
    rows, _ = judgements(session.task, session.server.parameters, dataset.user_ids, 5.0)
    return float((rows[:, 1].mean() + 1) / 2)


def finished(run: Run, seed: int) -> dict[str, Any]:
    """Metrics, true curve, plan and statement of one run."""
    privacy = dataclasses.replace(run.privacy, noise_seed=seed)
    run = dataclasses.replace(run, privacy=privacy)
    true: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder, fedmf.start(run, Path(folder) / "run") as session:

        def note(report: Any, row: Any) -> None:
            if session.server.t % 10 == 0:
                true[session.server.t] = true_accuracy(session)

        run_in_process(session, note)
        return {
            "metrics": dict(session.metrics),
            "true": true,
            "plan": session.plan,
            "statement": session.statement().to_dict(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.02, 0.1])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    base = load_run(ROOT / "configs" / "digits.toml")
    results: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for seed in range(1, options.seeds + 1):
        without = dataclasses.replace(base, evaluation=CentralEvaluation())
        results.setdefault(("none", 0.0), []).append(finished(without, seed))
        for name, (mechanism, workload) in WORKLOADS.items():
            for share in options.shares:
                asked = PrivateEvaluation(share=share, mechanism=mechanism, workload=workload)
                run = dataclasses.replace(base, evaluation=asked)
                results.setdefault((name, share), []).append(finished(run, seed))
    text = page(results, options)
    (options.out / "private-evaluation.md").write_text(text, encoding="utf-8")
    draw(results, options)
    print(text)


def page(results: dict[tuple[str, float], list[dict[str, Any]]], options: argparse.Namespace) -> str:
    command = f"--shares {' '.join(map(str, options.shares))} --seeds {options.seeds}"
    lines = [
        "# Private evaluation on digits",
        "",
        f"`python simulations/evaluation/private_curve.py {command}`: `configs/digits.toml`",
        "(ε = 8, δ = 10⁻⁵, 360 users, 240 rounds), private evaluation by all users after every tenth round",
        f"(E = 24, k = 24, b = 1), seeds 1 to {options.seeds} of the noise. Means over seeds; the true curve",
        "is the mean of users' own accuracies, computed without noise in the simulation. The deviation is",
        "the root mean square of (private − true) over all points and seeds, to be compared with the error",
        "bar; smoothed curves lag behind a rising true one, which the error bar does not contain.",
        "",
        "| curve | share of μ² | σ training | σ evaluation | error bar, first and last (%) "
        "| deviation from the true curve (%) | within ±2 bars | central test accuracy at the end (%) "
        "| true accuracy of users (%) | ε |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (name, share), runs in results.items():
        last = max(runs[0]["metrics"])
        central = 100 * float(np.mean([run["metrics"][last]["accuracy"] for run in runs]))
        true = 100 * float(np.mean([run["true"][last] for run in runs]))
        plan, epsilon = runs[0]["plan"], runs[0]["statement"]["epsilon_planned"]
        evaluation = EvaluationPlan.among(plan.own_streams)
        if evaluation is None:
            cells = [f"{plan.noise_multiplier:.4f}", "", "", "", ""]
        else:
            errors = [
                (run["metrics"][t][VALUE] - true_t, run["metrics"][t][SPREAD])
                for run in runs
                for t, true_t in run["true"].items()
            ]
            first, final = (100 * runs[0]["metrics"][t][SPREAD] for t in (10, last))
            inside = sum(abs(error) <= 2 * bar for error, bar in errors)
            cells = [
                f"{plan.noise_multiplier:.4f}",
                f"{evaluation.noise_multiplier:.4f}",
                f"{first:.2f}, {final:.2f}",
                f"{100 * math.sqrt(float(np.mean([error**2 for error, _ in errors]))):.2f}",
                f"{inside} of {len(errors)}",
            ]
        figures = [f"{central:.1f}", f"{true:.1f}", f"{epsilon:.6g}"]
        shown = f"{100 * share:g} %" if share else "0"
        lines.append(f"| {' | '.join([name, shown, *cells, *figures])} |")
    best = max(options.shares)
    lines += ["", f"Seed 1, share {100 * best:g} %, accuracy in percent:", ""]
    lines += ["| rounds | private | true | central test part | ε so far |", "|---|---|---|---|---|"]
    run = results["each alone", best][0]
    for t in sorted(run["true"]):
        row = run["metrics"][t]
        lines.append(
            f"| {t} | {100 * row[VALUE]:.1f} ± {100 * row[SPREAD]:.1f} | {100 * run['true'][t]:.1f} "
            f"| {100 * row['accuracy']:.1f} | {row['epsilon']:.3f} |"
        )
    lines += ["", "![curves](private-evaluation.png)", "", *pairs(), ""]
    return "\n".join(lines)


def pairs() -> list[str]:
    """ε of training and evaluation together against the largest shift over all patterns and signs."""
    lines = [
        "## ε of the pair, by brute force",
        "",
        "Small runs (n = 6, k = 2, b = 3, mechanism bisr; evaluations by half of the users, mechanism cgd",
        "for `exponential:0.8`): the planned ε, and that of the largest shift of both streams that one user",
        "can cause, over every pair of patterns and every choice of signs, by dense matrices.",
        "",
        "| adjacency | share of μ² | evaluations, k_e, b_e | ε planned | ε by brute force "
        "| relative difference |",
        "|---|---|---|---|---|---|",
    ]
    for adjacency, share, every in itertools.product(ADJACENCIES, (0.1, 0.5), (1, 2)):
        run = Run(
            task=Classification(Digits(users=24)),
            cohorts=CyclicCohorts(rounds=6, size=8),
            privacy=UserLevel(adjacency=adjacency),
            mechanism="bisr",
            evaluation=PrivateEvaluation(share, every, 12, mechanism="cgd", workload="exponential:0.8"),
        )
        plan = fedmf.plan(run)
        (evaluation,) = plan.own_streams
        part, planned = evaluation.participation, plan.epsilon_after(6)
        brute = gaussian_epsilon(1 / largest_shift(plan), plan.privacy.delta)
        contract = f"{part.rounds}, {part.max_participations}, {part.min_separation}"
        lines.append(
            f"| {adjacency} | {100 * share:g} % | {contract} | {planned:.9f} | {brute:.9f} "
            f"| {planned / brute - 1:.1e} |"
        )
    return lines


def largest_shift(plan: Plan) -> float:
    """max ‖J x‖ over patterns and signs, J the dense operator of both streams in units of their noise."""
    (evaluation,) = plan.own_streams
    factor = ADJACENCIES[plan.privacy.adjacency]
    largest = 0.0
    for C, std, contract in (
        (plan.mechanism.factorization, plan.relative_noise_std, plan.participation),
        (
            evaluation.mechanism.factorization,
            evaluation.relative_noise_std(plan.privacy.adjacency),
            evaluation.participation,
        ),
    ):
        dense = factor * C.materialize() / std
        shifts = [
            float(np.linalg.norm(dense[:, pattern] @ np.array(signs)))
            for length in range(1, contract.max_participations + 1)
            for pattern in itertools.combinations(range(contract.rounds), length)
            if all(j - i >= contract.min_separation for i, j in itertools.pairwise(pattern))
            for signs in itertools.product((-1.0, 1.0), repeat=length)
        ]
        largest += max(shifts) ** 2  # the blocks of J do not meet
    return math.sqrt(largest)


def draw(results: dict[tuple[str, float], list[dict[str, Any]]], options: argparse.Namespace) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0 * len(options.shares), 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(WORKLOADS), len(options.shares), squeeze=False, sharey=True)
    for row, name in enumerate(WORKLOADS):
        for column, share in enumerate(options.shares):
            axes, run = grid[row][column], results[name, share][0]
            rounds = sorted(run["true"])
            metrics = run["metrics"]
            axes.plot(
                rounds, [100 * run["true"][t] for t in rounds], color="black", label="true (not private)"
            )
            axes.plot(
                sorted(metrics),
                [100 * metrics[t]["accuracy"] for t in sorted(metrics)],
                color="tab:blue",
                alpha=0.5,
                label="central test part",
            )
            axes.errorbar(
                rounds,
                [100 * metrics[t][VALUE] for t in rounds],
                yerr=[100 * metrics[t][SPREAD] for t in rounds],
                fmt="o",
                markersize=3,
                capsize=2,
                color="tab:green",
                label="private (± 1 standard deviation)",
            )
            axes.set(title=f"{name}, {100 * share:g} % of μ²", xlabel="rounds", ylim=(0, 110))
            axes.grid(alpha=0.3)
        grid[row][0].set(ylabel="users' own accuracy (%)")
    grid[0][0].legend(loc="lower right")
    figure.savefig(options.out / "private-evaluation.png", dpi=110)


if __name__ == "__main__":
    main()
