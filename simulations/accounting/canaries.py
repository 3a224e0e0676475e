"""Canaries in real runs: correct ones, and ones whose noise is divided by 1.5.

    python simulations/accounting/canaries.py [--runs 20] [--canaries 300] [--out DIR]

Every run is `fedmf.simulate` on digits at epsilon = 8 with simulated users in its sums. What so many
canaries refute at 95 % confidence is counted for fewer of them too: the first m of each run, since canaries
do not see each other. Writes canaries.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy.special import ndtr

import fedmf
from fedmf.accounting import at_least, at_most, gaussian_mu
from fedmf.noise import KeySchedule, NoiseStream
from fedmf.parts import CanaryTeam, canary_bound, canary_power
from fedmf.runs import read_header
from fedmf.runs.recorded import key_of, read_of_part
from fedmf.statements import Plan

ROOT: Final = Path(__file__).resolve().parents[2]
ROUNDS: Final = 60
TOO_SMALL: Final = 1.5
#: Of a few bands, and one whose noise is correlated over all rounds.
MECHANISMS: Final = ("banded-toeplitz", "bisr")
SHARES: Final = (25, 50, 75, 100, 125, 150, 200, 250, 300)


def run_of(seed: int, canaries: int, mechanism: str) -> fedmf.Run:
    """Digits, 360 users, 36 a round, each in 6 rounds that are 10 apart."""
    return fedmf.Run(
        task=fedmf.Classification(fedmf.Digits(users=360), fedmf.Mlp(hidden_units=(64,))),
        cohorts=fedmf.CyclicCohorts(rounds=ROUNDS, size=36),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.3, noise_seed=seed),
        mechanism=mechanism,
        canaries=fedmf.Canaries(canaries),
        execution=fedmf.Execution(evaluate_every=ROUNDS, checkpoint_every=ROUNDS),
    )


@contextmanager
def noise_divided_by(factor: float) -> Iterator[None]:
    """Every row of noise is smaller than its stream was asked for."""
    true = NoiseStream.add_
    with mock.patch.object(NoiseStream, "add_", lambda self, into, std: true(self, into, std / factor)):
        yield


@dataclass(frozen=True, eq=False)
class Measured:
    """A run: which coins are guessed rightly, its plan and dimension, μ of a canary, accuracy at the end."""

    right: NDArray[np.bool_]
    plan: Plan
    dimension: int
    canary_mu: float
    accuracy: float


def measured(run: fedmf.Run) -> Measured:
    """Carry a run out and guess the coins of its canaries."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        result = fedmf.simulate(run, path)
        header = read_header(path)
        stage = header.plan.stage(KeySchedule.constant(key_of(path)), header.dimension)
        team = run.canaries.open(stage)
        assert isinstance(team, CanaryTeam)
        scores = team.scores(ROUNDS, partial(read_of_part, path))
        right = scores.guesses() == team.coins
        assert result.statement.to_dict()["canaries"]["guessed"] == right.sum(), "the statement says the same"
        mu = float(scores.shifts.max()) * header.plan.privacy.clip_norm / header.plan.noise_std
        return Measured(right, header.plan, header.dimension, mu, result.metrics[ROUNDS]["accuracy"])


def section(mechanism: str, correct: list[Measured], broken: list[Measured]) -> list[str]:
    """What so many canaries refute of one mechanism."""
    plan, runs = correct[0].plan, len(correct)
    mu, canary, delta = gaussian_mu(plan.noise_multiplier), correct[0].canary_mu, plan.privacy.delta
    lines = [
        f"## {mechanism}",
        "",
        f"Claimed μ = {at_least(mu, 4)}; a canary's coin moves {at_most(canary, 4)} standard deviations.",
        "",
        "| canaries | correct refuted | noise/1.5 refuted | without other users | ε at least, correct: "
        "median, largest | noise/1.5: median |",
        "|---|---|---|---|---|---|",
    ]
    for m in (share for share in SHARES if share <= correct[0].right.size):
        right, wrong = (
            [canary_bound(int(run.right[:m].sum()), m, delta) for run in each] for each in (correct, broken)
        )
        epsilons = sorted(bound.epsilon for bound in right)
        lines.append(
            f"| {m} | {sum(bound.mu > mu for bound in right)} of {runs} | "
            f"{sum(bound.mu > mu for bound in wrong)} of {runs} | "
            f"{100 * canary_power(m, mu, TOO_SMALL * canary):.0f} % | "
            f"{at_most(float(np.median(epsilons)), 3)}, {at_most(epsilons[-1], 3)} | "
            f"{at_most(float(np.median([bound.epsilon for bound in wrong])), 3)} |"
        )
    shares = [100 * float(np.mean([run.right.mean() for run in each])) for each in (correct, broken)]
    best = [100 * float(ndtr(canary / 2)), 100 * float(ndtr(TOO_SMALL * canary / 2))]
    return [
        *lines,
        "",
        f"Coins guessed rightly: {shares[0]:.1f} % in correct runs, where {best[0]:.1f} % can be without "
        f"other users, {shares[1]:.1f} % with the smaller noise, where {best[1]:.1f} % can be.",
        "",
    ]


def cost(correct: list[Measured], without: list[float]) -> list[str]:
    """What canaries do to the model of the first mechanism."""
    plan, count = correct[0].plan, correct[0].right.size
    present = count * plan.participation.max_participations / ROUNDS / 2
    variance = float(plan.mechanism.factorization.noise_row_variances().mean())
    noise = plan.noise_std * np.sqrt(correct[0].dimension * variance)
    ratio = plan.privacy.clip_norm * np.sqrt(present) / noise
    accuracy = float(np.mean([run.accuracy for run in correct]))
    return [
        "## What they cost",
        "",
        f"Of {count} some {present:.0f} send something in a round, which is {100 * ratio:.1f} % as long as "
        f"the round's noise. Accuracy at the end ({MECHANISMS[0]}):",
        f"{100 * accuracy:.1f} %, without canaries {100 * float(np.mean(without)):.1f} % (means of "
        f"{len(correct)} runs).",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--canaries", type=int, default=300)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    began, count = time.monotonic(), options.canaries
    lines, costs = list[str](), list[str]()
    plan, dimension = None, 0
    for mechanism in MECHANISMS:
        correct, broken = list[Measured](), list[Measured]()
        for seed in track(range(options.runs), mechanism, console=Console(stderr=True)):
            correct.append(measured(run_of(seed, count, mechanism)))
            with noise_divided_by(TOO_SMALL):
                broken.append(measured(run_of(1000 + seed, count, mechanism)))
        lines += section(mechanism, correct, broken)
        if not costs:
            with tempfile.TemporaryDirectory() as folder:
                bare = [
                    fedmf.simulate(run_of(seed, 0, mechanism), Path(folder) / str(seed))
                    for seed in range(options.runs)
                ]
            costs = cost(correct, [run.metrics[ROUNDS]["accuracy"] for run in bare])
        plan, dimension = correct[0].plan, correct[0].dimension
    assert plan is not None
    text = "\n".join(
        [
            "# Canaries in training",
            "",
            f"`python simulations/accounting/canaries.py`: {options.runs} correct runs and {options.runs} "
            f"whose noise is divided by {TOO_SMALL:g} where it is drawn,",
            f"for each of two mechanisms: digits, {ROUNDS} rounds, {plan.users} users, {plan.cohorts.size} a "
            f"round, d = {dimension}, ε = 8 at δ = 1e-5, {count} canaries a run, 95 % confidence.",
            "Rows with fewer canaries are the first of the same runs, not independent of each other. "
            '"Without other users" is the probability of a',
            "refutation if nothing but noise were in the way (`canary_power`). Theorems: "
            "[canaries](../canaries.md).",
            "",
            *lines,
            *costs,
        ]
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "canaries.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
