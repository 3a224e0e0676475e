"""A clip norm that follows releases, seen from outside: its noise, its recursion, what it may
depend on.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from support.covariance import covariance_fits
from support.moving_norms import ROUNDS, RULE, Watched, moving_run, uneven_task, updates_of, watch
from support.normals import normals
from support.oracles import ltt
from support.small_runs import client_for, run_small

import fedmf
from fedmf.clipping.user_statistics import SIGNS
from fedmf.flower.clients import run_on_grid
from fedmf.flower.grid import InProcessGrid
from fedmf.noise.key import Domain
from fedmf.noise.units import IntegerNoise
from fedmf.release.plan import Plan
from fedmf.release.statistics import update_factor
from fedmf.runs.loop import RoundRecord
from fedmf.runs.run import Run
from fedmf.runs.run_statement import account
from fedmf.runs.statistics import FixedClipping, QuantileClipping
from fedmf.training import LocalTrainer

DIMENSION = 4000
TASK = uneven_task(DIMENSION)
UPDATES = updates_of(moving_run(TASK), TASK)
#: "bsr" with two bands for prefix sums: (1 − x)^{-1/2} cut off.
STRATEGY = ltt([1.0, 0.5] + [0.0] * (ROUNDS - 2), ROUNDS)
KEYS = {"mechanism": "bsr", "bands": 2}


def noise_fits(seen: Watched, statement: dict) -> bool:
    """Whether [θ_{t+1} − θ_t − Σ clip_t(x)/m]·m/ζ_t has covariance (σ·sens/a)²·C⁻¹C⁻ᵀ."""
    m = statement["users_per_round"]
    rule = statement["statistics"][0]
    updates_share = 1 - rule["budget_share"]
    level = statement["noise_multiplier"] * statement["sensitivity"] / math.sqrt(updates_share)
    noise = (seen.increments * m - seen.clipped_sums(UPDATES)) / seen.norms[:, None]
    return covariance_fits(noise, STRATEGY, level)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Watched, dict, Path]:
    path = tmp_path_factory.mktemp("moving") / "run"
    watched = watch(path, moving_run(TASK, **KEYS))
    return watched, json.loads((path / "statement.json").read_text()), path


def test_the_noise_goes_with_the_norm_and_its_covariance_is_that_of_the_statement(seen) -> None:
    watched, statement, _ = seen
    assert len(set(watched.norms)) == ROUNDS  # it moved after every round
    assert max(watched.norms) > 1.5 * min(watched.norms)
    assert noise_fits(watched, statement)


def test_noise_of_the_first_norm_is_rejected(seen) -> None:
    watched, statement, _ = seen
    still = dataclasses.replace(watched, models=watched.models.copy())
    sums = watched.clipped_sums(UPDATES)
    m = statement["users_per_round"]
    noise = watched.increments * m - sums
    first = noise * (watched.norms[0] / watched.norms)[:, None]
    still.models[1:] = watched.models[0] + np.cumsum((sums + first) / m, axis=0)
    assert not noise_fits(still, statement)


def test_noise_without_the_price_of_signs_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Plan.noise_of

    def cheap(self: Plan, index: int) -> IntegerNoise | None:
        noise = right(self, index)
        assert noise is not None
        return dataclasses.replace(noise, std=noise.std / update_factor(self.statistics))

    monkeypatch.setattr(Plan, "noise_of", cheap)
    watched = watch(tmp_path / "run", moving_run(TASK, **KEYS))
    assert not noise_fits(watched, json.loads((tmp_path / "run" / "statement.json").read_text()))


def recursion(seen: Watched, statement: dict, rule: QuantileClipping = RULE) -> np.ndarray:
    """ζ_0, … from the signs of earlier rounds and their noise (docs/theory/accounting.md)."""
    m = statement["users_per_round"]
    z = normals(7, Domain.of_statistic("clipping"), ROUNDS, 1)[:, 0]
    reach = statement["sensitivity"] + statement["rounding"]
    std = statement["noise_multiplier"] * reach / math.sqrt(rule.budget_share)
    shares = 0.5 + (seen.signs(UPDATES) + std * np.linalg.solve(STRATEGY, z)) / (2 * m)
    norms = []
    zeta = statement["clip_norm"]
    block = []
    for t, share in enumerate(shares):
        norms.append(zeta)
        block.append(share)
        if (t + 1) % rule.rounds_per_update == 0:
            zeta *= math.exp(-rule.learning_rate * (np.mean(block) - rule.quantile))
            block = []
    return np.array(norms)


def test_the_norm_is_the_recursion_of_noisy_shares_of_earlier_rounds(seen) -> None:
    watched, statement, _ = seen
    np.testing.assert_allclose(
        watched.norms, recursion(watched, statement), rtol=1e-8
    )  # noise is in units


def test_what_a_user_sends_moves_no_norm_before_the_round_after(seen, tmp_path: Path) -> None:
    """Two worlds, one key: one user of round 2 sends its update a thousand times as long."""
    watched, _, _ = seen
    user = watched.cohorts[2][int(np.argmin(np.linalg.norm(UPDATES[watched.cohorts[2]], axis=1)))]
    first = next(t for t, cohort in enumerate(watched.cohorts) if user in cohort)
    features = TASK.dataset.features.clone()
    features[user] *= 1000
    task = dataclasses.replace(TASK, dataset=dataclasses.replace(TASK.dataset, features=features))
    other = watch(tmp_path / "run", moving_run(task, **KEYS))
    np.testing.assert_array_equal(other.norms[: first + 1], watched.norms[: first + 1])
    assert other.norms[first + 1] > watched.norms[first + 1]


@pytest.mark.parametrize("wrong", ["not finite", "absent"])
def test_a_user_that_fails_has_no_sign(wrong: str, tmp_path: Path) -> None:
    features = TASK.dataset.features.clone()
    owned = list(TASK.dataset.owned)
    if wrong == "not finite":
        features[0] = float("nan")
    else:
        owned[0] = np.array([], dtype=np.int64)
    dataset = dataclasses.replace(TASK.dataset, features=features, owned=tuple(owned))
    run = moving_run(dataclasses.replace(TASK, dataset=dataset))
    with fedmf.start(run, tmp_path / "run") as session:
        trainer = LocalTrainer(session.task, run.client)
        total = session.server.new_sum()
        trainer.add_updates(session.server.parameters, ["u000"], 0, total)
    assert (total.scalar(SIGNS), total.users, int(total.fixed_point.abs().sum())) == (0, 1, 0)


class Stopped(Exception):
    """A process that ends between two rounds."""


def stopped_after(run: Run, path: Path, rounds: int) -> None:
    def stop(record: RoundRecord) -> None:
        if record.rounds == rounds:
            raise Stopped

    with fedmf.start(run, path) as session, pytest.raises(Stopped):
        run_on_grid(session, InProcessGrid(client_for(session)), stop)


@pytest.mark.parametrize("every", [1, 4])
def test_a_resumed_run_has_the_same_norms_and_models(every: int, seen, tmp_path: Path) -> None:
    watched, _, _ = seen
    run = moving_run(TASK, **KEYS, checkpoint_every=every)
    stopped_after(run, tmp_path / "run", 4)
    with fedmf.resume(run, tmp_path / "run") as session:
        assert session.server.clip_norm == watched.norms[4]
        run_on_grid(session, InProcessGrid(client_for(session)))
        model = session.server.parameters.numpy()
    np.testing.assert_array_equal(model, watched.models[-1].astype(np.float32))


def test_the_statement_tells_the_rule_and_the_epsilon_of_a_fixed_norm(seen, tmp_path: Path) -> None:
    _, statement, path = seen
    run_small(
        tmp_path / "run", dataclasses.replace(moving_run(TASK, **KEYS), clipping=FixedClipping())
    )
    fixed = json.loads((tmp_path / "run" / "statement.json").read_text())
    for name in ("epsilon", "epsilon_spent", "mu", "noise_multiplier", "sensitivity"):
        assert statement[name] == pytest.approx(fixed[name], rel=1e-12)
    reach = [each["sensitivity"] + each["rounding"] for each in (statement, fixed)]
    wanted = fixed["noise_std"] / math.sqrt(0.75) * reach[0] / reach[1]
    assert statement["noise_std"] == pytest.approx(wanted, rel=1e-12)
    text = account(path).render_text()
    assert "follows the noisy 0.4-quantile of norms, for 25 % of mu^2" in text
    assert "epsilon is the same as for a fixed clip norm" in text
