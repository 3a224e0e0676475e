"""Noisy counts of contributions: what they release, what they can tell, and when they call."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from support.amplified_runs import ACCOUNTANTS, keys
from support.moving_norms import RULE, moving_run, uneven_task, updates_of, watch
from support.small_runs import client_for, small_run

import fedmf
from fedmf.factorization import Toeplitz
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.noise import Domain, GaussianSource, NoiseKey
from fedmf.parts import Health, update_factor
from fedmf.parts.health import Power
from fedmf.records import Ledger
from fedmf.rounds import RoundReport
from fedmf.runs import NoiseAndSignal

HEALTH = Health(share=0.2, rounds_per_release=3)
TASK = uneven_task(20)


def noted(path: Path) -> dict[int, dict[str, float]]:
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        return {
            t: {name: row[name] for name in HEALTH.columns if name in row}
            for t, row in ledger.metrics().items()
        }


def test_it_releases_means_of_blocks_with_noise_of_its_shares(tmp_path: Path) -> None:
    """By the definition: C⁻¹ as a matrix, z from the key, counts and signs of users' updates."""
    run = dataclasses.replace(moving_run(TASK, mechanism="bsr", bands=2), beside=(HEALTH,))
    watched = watch(tmp_path / "run", run)
    statement = fedmf.account(tmp_path / "run").to_dict()
    rounds, C = len(watched.norms), np.eye(12) + 0.5 * np.eye(12, k=-1)
    std = statement["noise_multiplier"] * statement["sensitivity"]
    sums = np.array(
        [[len(cohort) for cohort in watched.cohorts], watched.signs(updates_of(run, TASK))], float
    )
    for i, (share, domain) in enumerate(((0.15, "health"), (0.05, "health signs"))):
        source = GaussianSource(NoiseKey.from_seed(7), 1, Domain.of_part(domain))
        z = np.array([float(source.block(t, 0, 1)[0]) for t in range(rounds)])
        sums[i] += std / math.sqrt(share) * np.linalg.solve(C, z)
    found = noted(tmp_path / "run")
    assert not found[1]
    assert not found[2]  # nothing is shown within a block
    for t in range(3, rounds + 1):
        end = t - t % 3
        contributions, signs = sums[:, end - 3 : end].mean(axis=1)
        assert found[t]["health_contributions"] == pytest.approx(contributions, abs=1e-9)
        if "health_clipped" in found[t]:
            share = (1 - signs / contributions) / 2
            assert found[t]["health_clipped"] == pytest.approx(min(1.0, max(0.0, share)), abs=1e-9)
    left = 1 - RULE.share - HEALTH.share
    assert statement["noise_std"] == pytest.approx(std * statement["clip_norm"] / math.sqrt(left), rel=1e-12)


def test_no_user_moves_models_and_counts_together_by_more_than_the_sums_alone() -> None:
    """Every allowed pattern, update and sign of a small contract: ‖C·(a·x, b₁, b₂·s)‖ is at most sens(C)."""
    n, C = 4, np.linalg.inv(np.eye(4) - np.diag([0.5] * 3, -1))
    a, (b1, b2) = 1 / update_factor([HEALTH]), [1 / factor for factor in HEALTH.factors]
    patterns = [p for k in (1, 2) for p in itertools.combinations(range(n), k) if k == 1 or p[1] - p[0] >= 2]
    alone = max(np.linalg.norm(C[:, list(p)].sum(axis=1)) for p in patterns)
    largest = 0.0
    for p in patterns:
        for moves in itertools.product([(x, s) for x in (-1.0, 0.3, 1.0) for s in (-1, 1)], repeat=len(p)):
            G = np.zeros((n, 3))
            for t, (x, s) in zip(p, moves, strict=True):
                G[t] = a * x, b1, b2 * s
            largest = max(largest, float(np.linalg.norm(C @ G)))
    assert alone * (1 - 1e-9) <= largest <= alone


def test_power_is_that_of_the_prefix_sums_of_the_noise() -> None:
    """σ_t from C⁻¹ as a matrix; errors of both kinds at the first round by the normal law."""
    C = Toeplitz([1.0, 0.5, 0.25], 40)
    inverse = np.linalg.inv(sum(np.eye(40, k=-j) * 0.5**j for j in range(3)))
    power = Power.of(C, 10, 7.0)
    np.testing.assert_allclose(power.stds, 7.0 * np.linalg.norm(np.tri(40) @ inverse, axis=1), rtol=1e-10)
    first = power.rounds
    assert first is not None
    for t, enough in ((first, True), (first - 1, False)):
        missed = NormalDist(0, float(power.stds[t - 1])).cdf(-10 * t / 2)
        assert (missed <= 0.01) == enough
    assert power.is_dead(0, first, 4.9 * first)
    assert not power.is_dead(0, first, 5.1 * first)
    assert not power.is_dead(0, first - 1, -100.0)
    assert power.std(3, 9) == power.stds[8] + power.stds[2]
    assert not power.is_dead(3, 3 + first, 0.0)  # noise of two totals: it can be told later
    assert power.is_dead(3, 30, 0.0)
    assert not power.tells(3, 3)
    assert not power.tells(0, 0)
    assert power.words() == f"can tell 0 from 10 contributions a round after {first} rounds, with 99 %"
    assert "cannot tell 0 from 10 contributions a round within 40 rounds" in Power.of(C, 10, 7000.0).words()


@pytest.mark.parametrize("named", [keys(ACCOUNTANTS[0]), {"server_optimizer": "jme-adam"}])
def test_it_stands_beside_nothing_that_no_theorem_covers(named: dict, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"health must be left out with .*: no theorem"):
        fedmf.start(dataclasses.replace(small_run(**named), beside=(HEALTH,)), tmp_path / "run")


def test_a_run_whose_contributions_are_all_zero_is_called_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that are no numbers train nobody; the line is a function of what was released."""
    task, part = uneven_task(5), Health(share=0.5, rounds_per_release=2)
    data = dataclasses.replace(task.dataset, features=torch.full_like(task.dataset.features, math.nan))
    for dead in (True, False):
        asked = dataclasses.replace(task, dataset=data) if dead else task
        run = dataclasses.replace(small_run(asked, epsilon=200.0, mechanism="bisr"), beside=(part,))
        with fedmf.start(run, tmp_path / f"{dead}") as session:
            (line,) = session.server.beforehand
            assert line.startswith("health can tell 0 from ")
        caplog.clear()
        fedmf.simulate(run, tmp_path / f"{dead}")
        said = [record.message for record in caplog.records if "health: about" in record.message]
        assert len(said) == dead
        if dead:
            assert re.match(
                r"health: about -?[0-9.]+ of \d+ planned contributions a round were not zero", said[0]
            )


def test_rounds_whose_work_was_lost_are_in_no_total(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run whose users all contribute is not called dead because counts of some rounds are gone."""
    part = Health(share=0.5, rounds_per_release=2)
    run = small_run(uneven_task(5), epsilon=200.0, mechanism="bisr", checkpoint_every=5)
    run = dataclasses.replace(run, beside=(part,))

    class Killed(Exception):
        """The process ends."""

    def kill(report: RoundReport, _row: object) -> None:
        if report.t == 3:
            raise Killed

    with fedmf.start(run, tmp_path / "run") as session, pytest.raises(Killed):
        run_on_grid(session, InProcessGrid(client_for(session)), kill)
    with fedmf.resume(run, tmp_path / "run") as session:
        assert session.server.lost == range(4)
    caplog.clear()
    fedmf.simulate(run, tmp_path / "run")
    assert not [record for record in caplog.records if "health: about" in record.message]
    found = noted(tmp_path / "run")
    assert found[6]["health_contributions"] == pytest.approx(small_run().cohorts.size, abs=1)


def test_noise_against_updates_is_that_of_the_matrices() -> None:
    """Root mean squares of C⁻¹ and of its prefix sums, for d parameters, in units of ζ."""
    run = small_run(TASK, mechanism="bsr", bands=2)
    plan, C = fedmf.plan(run), np.eye(12) + 0.5 * np.eye(12, k=-1)
    found, inverse = NoiseAndSignal.of(plan, 20), np.linalg.inv(C)
    unit = math.sqrt(20) * plan.noise_multiplier * plan.sensitivity.value / plan.cohorts.size
    assert found.of_a_round == pytest.approx(unit * np.linalg.norm(inverse) / math.sqrt(12), rel=1e-9)
    assert found.of_all_rounds == pytest.approx(unit * np.linalg.norm(inverse.sum(axis=0)) / 12, rel=1e-9)
    assert found.warning is None or found.of_all_rounds > 1
    hopeless = NoiseAndSignal.of(plan, 10**9)
    assert hopeless.warning is not None
    assert "nothing can be learnt" in hopeless.warning
