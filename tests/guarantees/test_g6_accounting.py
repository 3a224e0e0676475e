"""G6: every stated epsilon is that of dense matrices and enumerated users, or of quadrature if
amplified.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dp_accounting
import numpy as np
import pytest

import fedmf
from fedmf.cohorts import CyclicPoissonCohorts
from fedmf.errors import LedgerError
from fedmf.release.plan import Plan
from fedmf.runs import run_statement as run_statements
from fedmf.runs.run_statement import run_spent
from fedmf.statements.composition import UserLosses
from guarantees.small import (
    CLIP,
    COHORT,
    ROUNDS,
    USERS,
    aggregator,
    bisr,
    patterns,
    random_rows,
    run_of,
    stream,
    worst_norm,
)

DELTA = 1e-5
#: Stated figures are rounded up by searches with this tolerance.
CLOSE = 1e-6


def epsilon_of(mu: float) -> float:
    return dp_accounting.get_epsilon_gaussian(1.0 / mu, DELTA) if mu else 0.0


#: How far one user moves the sum of a round, in clip norms.
DISTANCE = {"zero-out": 1, "replace-one": 2}


def check_run(folder: Path, adjacency: Any = "zero-out") -> None:
    """Stopped after 7 of 12 rounds. One user of the cohort is left out now and then, and all are
    in two rounds, so that nobody has spent what the rounds so far allow.
    """
    stopped = 7
    missing = (4, 5)
    joined = dict[str, list[int]]()
    privacy = fedmf.UserLevel(
        epsilon=8.0, delta=DELTA, clip_norm=CLIP, noise_seed=7, adjacency=adjacency
    )
    with aggregator(folder / "run", privacy=privacy).begin(
        {"w": np.zeros(3, np.float32)}
    ) as opened:
        for t in range(stopped):
            present = [] if t in missing else opened.cohort(t)[t % 2 :]
            for user in present:
                opened.add(user, {"w": np.ones(3, np.float32)})
                joined.setdefault(user, []).append(t)
            opened.release()
        epsilons = {t: row["epsilon"] for t, row in opened.metrics.items() if "epsilon" in row}
    said = json.loads((folder / "run" / "statement.json").read_text())
    k = said["max_participations"]
    b = said["min_separation"]
    C = bisr(ROUNDS, said["params"]["bands"])
    assert (k, b) == (ROUNDS * COHORT // USERS, USERS // COHORT)
    assert said["sensitivity"] == pytest.approx(worst_norm(C, k, b), rel=1e-9)
    std = said["noise_std"] / CLIP / DISTANCE[adjacency]
    assert said["epsilon"] == pytest.approx(epsilon_of(worst_norm(C, k, b) / std), rel=CLOSE)
    assert said["epsilon"] == pytest.approx(8.0, rel=CLOSE)
    for t in range(1, stopped + 1):
        block = C[:t, :t]
        assert epsilons[t] == pytest.approx(epsilon_of(worst_norm(block, k, b) / std), rel=CLOSE), t
    norms = [float(np.linalg.norm(C[:stopped, rounds].sum(1))) for rounds in joined.values()]
    assert said["epsilon_spent"] == pytest.approx(epsilon_of(max(norms) / std), rel=CLOSE)
    assert said["epsilon_spent"] < said["epsilon_so_far"] * 0.99 < said["epsilon"] * 0.98


def check_stream(folder: Path) -> None:
    """Each user gives one row x and its energy ‖x‖²; both sums have noise of their own. 4 of 8
    steps.
    """
    n = 8
    steps = 4
    with stream(folder / "stream", n, dimension=3) as opened:
        for i in range(steps):
            opened.push([0.5, 0.1, 0.0], user=f"u{i}")
    said = json.loads((folder / "stream" / "statement.json").read_text())
    first, second = (
        bisr(n, one["params"].get("bands", n)) for one in (said, said["second_moment"])
    )

    def mu(released: int) -> float:
        columns = [np.linalg.norm(C[:released], axis=0) for C in (first, second)]
        stds = said["noise_std"], said["second_moment"]["noise_std"]
        return float(np.hypot(columns[0] / stds[0], columns[1] / stds[1]).max())

    assert said["epsilon"] == pytest.approx(epsilon_of(mu(n)), rel=CLOSE)
    assert said["epsilon"] == pytest.approx(8.0, rel=CLOSE)
    assert said["epsilon_spent"] <= said["epsilon"]
    # What one user may have spent by now is at most the plan; at least what was released of it.
    assert said["epsilon_spent"] >= epsilon_of(mu(steps)) * (1 - CLOSE)


def normal(x: np.ndarray, mean: float, std: float) -> np.ndarray:
    return np.exp(-(((x - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))


def delta_by_quadrature(
    epsilon: float, std: float, joint: Callable[[np.ndarray, np.ndarray], Any]
) -> float:
    """The larger hockey-stick divergence between a user's two rounds and noise alone, on a fine
    grid.
    """
    x = np.linspace(-9 * std, 1 + 9 * std, 2001)
    with_user = joint(x[:, None], x[None, :])
    without = normal(x, 0, std)[:, None] * normal(x, 0, std)[None, :]
    cell = (x[1] - x[0]) ** 2
    factor = math.exp(epsilon)
    pairs = ((with_user, without), (without, with_user))
    return max(float(np.maximum(p - factor * q, 0).sum() * cell) for p, q in pairs)


def sampled(kind: str) -> tuple[float, Callable[[float], float]]:
    """σ of an amplified run of two rounds without correlation, and δ by quadrature for any σ."""
    epsilon = 2.0
    delta = 1e-3
    cohorts = (
        CyclicPoissonCohorts(2, COHORT, min_separation=1)
        if kind == "Poisson"
        else fedmf.BallsInBinsCohorts(2, USERS // 2)
    )
    privacy = fedmf.UserLevel(
        epsilon=epsilon, delta=delta, clip_norm=CLIP, noise_seed=1, amplified=True
    )
    plan = fedmf.plan(
        run_of(random_rows(2), cohorts=cohorts, mechanism="identity", privacy=privacy)
    )
    p = COHORT / USERS

    def found(std: float) -> float:
        if kind == "Poisson":
            one = lambda x: (1 - p) * normal(x, 0, std) + p * normal(x, 1, std)  # noqa: E731
            return delta_by_quadrature(epsilon, std, lambda x, y: one(x) * one(y))
        first = lambda x, y: normal(x, 1, std) * normal(y, 0, std)  # noqa: E731
        return delta_by_quadrature(epsilon, std, lambda x, y: (first(x, y) + first(y, x)) / 2)

    return plan.noise_std / CLIP, lambda std: found(std) / delta


def check_amplification(kind: str, factor: float = 1.0) -> None:
    std, delta = sampled(kind)
    assert delta(factor * std) <= 1
    assert delta(0.85 * factor * std) > 1, "far more noise than is needed"


@pytest.mark.parametrize("adjacency", DISTANCE)
def test_a_run_is_accounted_for(adjacency: str, tmp_path: Path) -> None:
    check_run(tmp_path, adjacency)


def test_a_stream_is_accounted_for(tmp_path: Path) -> None:
    check_stream(tmp_path)


@pytest.mark.parametrize("kind", ["Poisson", "balls in bins"])
def test_amplified_noise_is_enough_and_not_far_too_much(kind: str) -> None:
    check_amplification(kind)
    with pytest.raises(AssertionError):
        check_amplification(kind, factor=0.85)


def test_patterns_are_enumerated() -> None:
    assert list(patterns(4, 2, 2)) == [(0,), (1,), (2,), (3,), (0, 2), (0, 3), (1, 3)]


@pytest.mark.parametrize("what", ["allowed", "recorded"])
def test_one_round_fewer_is_seen(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "allowed":
        right = Plan.multiplier_after
        monkeypatch.setattr(Plan, "multiplier_after", lambda self, t: right(self, max(1, t - 1)))
    else:
        monkeypatch.setattr(run_statements, "run_spent", without_the_last_round)
    with pytest.raises(
        (AssertionError, LedgerError)
    ):  # the statement compares ε and ε spent itself
        check_run(tmp_path)


def without_the_last_round(plan: Plan, ledger: Any) -> UserLosses:
    rounds, keys = ledger.participations()
    kept = rounds < ledger.released - 1
    fewer = SimpleNamespace(
        participations=lambda: (rounds[kept], keys[kept]),
        released=ledger.released - 1,
        histories=ledger.histories,
    )
    return run_spent(plan, fewer)  # type: ignore[arg-type]
