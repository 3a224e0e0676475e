"""Three runs and a stream on 100,000 people under one ε, and the best of a sweep.

    python simulations/accounting/composition.py

Ledgers and the stream are those that fedmf writes; nothing is trained, as who takes part decides ε. Who
answers follows from public seeds, so the figures can be computed again. Writes docs/results/composition.md.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from fedmf.accounting import (
    NegativeBinomialTrials,
    PoissonTrials,
    Trials,
    gaussian_epsilon,
    gaussian_sigma,
    odometer_epsilon,
    selection_epsilon,
)
from fedmf.accounting.gaussian import gaussian_epsilons
from fedmf.noise import NoiseKey
from fedmf.records import Ledger
from fedmf.runs import LEDGER, costs_of_run, run_of
from fedmf.runs.planning import plan_run
from fedmf.runs.recorded import header_of
from fedmf.statements import UserCosts, compose
from fedmf.streaming import Settings, open_run, stream_costs

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PEOPLE, DELTA, DIMENSION = 100_000, 1e-6, 1000
SPACE: Final = "customers"
RUNS: Final[dict[str, dict[str, Any]]] = {
    "next word": {
        "privacy.epsilon": 4.0, "cohorts.rounds": 400, "cohorts.size": 2500, "mechanism.kind": "blt",
    },
    "search": {
        "privacy.epsilon": 2.0, "cohorts.rounds": 200, "cohorts.size": 1000, "mechanism.kind": "bisr",
        "mechanism.bands": 4,
    },
    "speech": {
        "privacy.epsilon": 3.0, "cohorts.rounds": 300, "cohorts.size": 2000,
        "mechanism.kind": "banded-toeplitz", "mechanism.bands": 16,
    },
}  # fmt: skip
#: "speech" with cohorts that stay secret.
AMPLIFIED: Final = {"cohorts.kind": "cyclic-poisson", "privacy.amplified": True}
LAWS: Final[dict[str, Trials]] = {
    "logarithmic, 10": NegativeBinomialTrials(mean=10.0, shape=0.0),
    "geometric, 10": NegativeBinomialTrials(mean=10.0, shape=1.0),
    "Poisson, 10": PoissonTrials(mean=10.0),
    "logarithmic, 100": NegativeBinomialTrials(mean=100.0, shape=0.0),
    "geometric, 100": NegativeBinomialTrials(mean=100.0, shape=1.0),
}


def fill(place: Path, keys: dict[str, Any], seed: int, activity: np.ndarray) -> UserCosts:
    """The record of a whole run of which everybody answers as often as the person's activity says."""
    shared = {
        "data.kind": "synthetic", "data.users": PEOPLE, "privacy.delta": DELTA, "privacy.noise-seed": seed,
        "privacy.user-namespace": SPACE,
    }  # fmt: skip
    run = run_of({**shared, **keys})
    optimizer = run.optimizer_source.build([(DIMENSION,)], run.cohorts.rounds)
    plan, key = plan_run(run, optimizer, DIMENSION, {}), NoiseKey.from_seed(seed)
    schedule = run.cohorts.schedule(PEOPLE, run.participation, key.cohort_seed())
    rng = np.random.default_rng(seed)
    place.mkdir()
    header = header_of(run, plan, key, DIMENSION)
    with Ledger.create(place / LEDGER, run.participation, header.to_dict(), key) as ledger:
        ledger.opening()
        for t in range(run.cohorts.rounds):
            cohort = np.asarray(schedule.cohort(t))
            answered = cohort[rng.random(cohort.size) < activity[cohort]]
            users = [f"user-{u:05d}" for u in answered.tolist()]
            ledger.commit_round(t, users, f"{t}", "digest", "released" if users else "empty")
    return costs_of_run(place)


def streamed(place: Path, activity: np.ndarray) -> UserCosts:
    """Two rows of each of 30,000 people, of those that are sent."""
    rng, half = np.random.default_rng(9), 30_000
    people = np.tile(np.arange(half), 2)
    people = people[rng.random(people.size) < activity[people]]
    rows = zip(rng.random(people.size).tolist(), people.tolist(), strict=True)
    lines = ["x,user", *(f"{x:.3f},user-{u:05d}" for x, u in rows)]
    place.mkdir()
    (place / "rows.csv").write_text("\n".join(lines) + "\n")
    settings = Settings(
        1.0, 1.0, DELTA, rounds=60_000, user_column="user", max_participations=2, min_separation=10_000,
        mechanisms=("cgd",), second="diagonal", every=10_000, seed=9, user_namespace=SPACE,
    )  # fmt: skip
    files = place / "rows.csv", place / "out.jsonl"
    with open_run(place / "state", settings, *files, remembered=False) as (run, reader):
        run.feed(reader)
        run.conclude()
    return stream_costs(place / "state")


def joint_table(costs: dict[str, UserCosts], amplified: UserCosts) -> list[str]:
    together = compose([*costs.values()])
    odometer = odometer_epsilon(together.mu, DELTA)
    added = np.zeros(len(together.users))
    place = {user: i for i, user in enumerate(together.users)}
    lines = [
        "| | people | μ worst | ε worst | ε median | ε planned |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in costs.items():
        each = gaussian_epsilons(one.mu, DELTA)
        np.add.at(added, [place[user] for user in one.users], each)
        planned = gaussian_epsilon(1 / one.planned_mu, DELTA)
        lines.append(
            f"| {name} | {len(one.users)} | {one.mu.max():.3f} | {each.max():.3f} | {np.median(each):.3f} | "
            f"{planned:.3f} |"
        )
    plans = sum(gaussian_epsilon(1 / one.planned_mu, DELTA) for one in costs.values())
    many, worst = len(together.users), together.mu.max()
    joined = (together.quantiles[1.0], together.quantiles[0.5], together.planned)
    lines += [
        f"| all four, ε added up (δ = {4 * DELTA:.0e}) | {many} | | {added.max():.3f} | "
        f"{np.median(added):.3f} | {plans:.3f} |",
        f"| **all four, joined** | {many} | {worst:.3f} | **"
        + "** | **".join(f"{epsilon:.3f}" for epsilon in joined)
        + "** |",
        f"| all four, as an odometer | {many} | {worst:.3f} | {odometer.max():.3f} | "
        f"{np.median(odometer):.3f} | |",
    ]
    hidden = compose([*(one for name, one in costs.items() if name != "speech"), amplified])
    assert hidden.hidden is not None
    lines += [
        "",
        "With the cohorts of \"speech\" drawn in secret (cyclic Poisson, less noise for the same ε = 3):",
        "",
        "| all four | ε worst | ε median | ε planned |",
        "|---|---|---|---|",
        f"| ε added up (δ = {4 * DELTA:.0e}), ε = 3 for everybody | {added_with(hidden.costs):.3f} | | "
        f"{plans:.3f} |",
        f"| **joined, cohorts secret** | **{hidden.hidden[1.0]:.3f}** | **{hidden.hidden[0.5]:.3f}** | "
        f"**{hidden.planned:.3f}** |",
        f"| joined, towards those who know the cohorts | {hidden.quantiles[1.0]:.3f} | "
        f"{hidden.quantiles[0.5]:.3f} | |",
    ]  # fmt: skip
    return lines


def added_with(costs: tuple[UserCosts, ...]) -> float:
    """Σ ε of the worst person, where the amplified run costs everybody its ε."""
    total: dict[str, float] = {}
    for one in costs:
        if one.amplified is None:
            for user, epsilon in zip(one.users, gaussian_epsilons(one.mu, DELTA).tolist(), strict=True):
                total[user] = total.get(user, 0.0) + epsilon
    return max(total.values()) + RUNS["speech"]["privacy.epsilon"]


def best_table() -> list[str]:
    lines = [
        "| ε of one run | number of runs, mean | ε of the best | by dp-accounting | that many composed |",
        "|---|---|---|---|---|",
    ]
    for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
        sigma = gaussian_sigma(epsilon, 1e-5)
        for name, law in LAWS.items():
            other = RdpAccountant(orders=[*(1 + np.geomspace(1e-2, 1e3, 300))])
            shape = law.shape if isinstance(law, NegativeBinomialTrials) else math.inf
            other.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(sigma), law.mean, shape))
            found = selection_epsilon(law, 1 / sigma, 1e-5).epsilon
            composed = gaussian_epsilon(sigma / math.sqrt(law.mean), 1e-5)
            lines.append(
                f"| {epsilon:g} | {name} | **{found:.3f}** | {other.get_epsilon(1e-5):.3f} | {composed:.3f} |"
            )
    return lines


def main() -> None:
    activity = 0.3 + 0.7 * np.random.default_rng(1).random(PEOPLE) ** 0.5
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        costs = {
            name: fill(Path(folder) / name, keys, seed, activity)
            for seed, (name, keys) in enumerate(RUNS.items(), start=1)
        }
        costs["stream"] = streamed(Path(folder) / "stream", activity)
        amplified = fill(Path(folder) / "amplified", {**RUNS["speech"], **AMPLIFIED}, 4, activity)
    print(f"records: {time.perf_counter() - start:.0f} s")
    page = [
        "# Several runs under one ε",
        "",
        "`python simulations/accounting/composition.py`",
        "",
        f"Three runs and a stream of {PEOPLE:,} people with ids in common, δ = {DELTA:g}, zero-out "
        "adjacency; who answers a call",
        "follows from a public seed and a person's activity (30 to 100 %). ε of each alone is at the same δ; "
        "joined ε is at that δ",
        "too, added up it holds at four times as much. [Theorems](../composition.md).",
        "",
        *joint_table(costs, amplified),
        "",
        "## The best of a sweep",
        "",
        "δ = 1e-5. The number of runs is random and secret, and the best alone is released. In the last "
        "column all are, as",
        "many as the mean.",
        "",
        *best_table(),
        "",
    ]
    (RESULTS / "composition.md").write_text("\n".join(page), encoding="utf-8")
    print("\n".join(page))
    print(f"in all: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
