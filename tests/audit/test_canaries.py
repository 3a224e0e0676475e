"""The audit catches mechanisms of the wrong scale and does not accuse right ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.pair_runs import RecordedPair
from support.small_runs import dotted

from fedmf.accounting import pair_release as pair_release_module
from fedmf.accounting import release as release_module
from fedmf.accounting.audit_bound import binomial_upper, leakage_bound
from fedmf.audit import audit
from fedmf.audit.canaries import worst_canary
from fedmf.cli.app import run as run_command
from fedmf.errors import ConfigError
from fedmf.factorization.matrices.toeplitz import InverseToeplitz, Toeplitz
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.moments.second_moment import DiagonalMoment
from fedmf.participation import Participation
from fedmf.parts import QuantileClipping
from fedmf.runs import Run, run_of
from fedmf.runs import server as server_module
from fedmf.runs.tables import render_toml
from fedmf.statements import Plan
from fedmf.statements import plan as plan_module
from fedmf.training.clipping import fixed_point

TINY = {"users": 8, "rounds": 3, "cohort_size": 4, "noise_seed": 7, "mechanism": "bisr", "bands": 2}
CANARIES, RUNS = 500, 2


def tiny(**changes: object) -> Run:
    return run_of(dotted(**{**TINY, **changes}))


def understate(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    true = release_module.stated_sensitivity

    def wrong(*arguments):
        found = true(*arguments)
        return dataclasses.replace(found, value=found.value / factor)

    monkeypatch.setattr(release_module, "stated_sensitivity", wrong)


def test_a_correct_mechanism_is_never_accused() -> None:
    """20 of 20 seeds at confidence 0.95: a seed fails with chance below 0.05, in fact some 0.003."""
    found = [audit(tiny(), CANARIES, RUNS, 0.95, seed) for seed in range(20)]
    assert sum(result.bound.mu > result.mu_claimed for result in found) == 0
    assert min(result.bound.mu for result in found) > 0.5 * found[0].mu_claimed, "the audit is too weak"


def test_noise_too_small_by_half_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensitivity is broken by 1.5, and so σ: at least 19 of 20 seeds see it."""
    understate(monkeypatch, 1.5)
    found = [audit(tiny(), CANARIES, RUNS, 0.95, seed) for seed in range(20)]
    assert sum(result.bound.epsilon_gdp > result.epsilon_claimed for result in found) >= 19
    assert sum(result.refuted for result in found) >= 19


@pytest.mark.parametrize("form", ["per-user", "squared-mean"])
def test_a_pair_is_audited_by_its_sums(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise covers both moments, so half of it is seen through the sums alone; the right one is not."""
    pair = RecordedPair(DiagonalMoment(CANARIES), form)  # type: ignore[arg-type]
    run = dataclasses.replace(tiny(), optimizer=pair)
    right = [audit(run, CANARIES, RUNS, 0.95, seed) for seed in range(5)]
    assert not any(found.refuted for found in right)
    assert min(found.bound.mu for found in right) > 0.2 * right[0].mu_claimed
    true = pair_release_module.joint_sensitivity

    def wrong(*arguments):
        found = true(*arguments)
        return dataclasses.replace(found, value=found.value / 4)

    monkeypatch.setattr(pair_release_module, "joint_sensitivity", wrong)
    assert all(audit(run, CANARIES, RUNS, 0.95, seed).refuted for seed in range(5))


@pytest.mark.parametrize("unit_steps", [False, True])
def test_a_moving_clip_norm_is_audited_by_the_noise_that_goes_with_it(
    unit_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every canary is above the norm, which therefore grows; noise that grows less is caught."""
    clipping = QuantileClipping(learning_rate=2.0, rounds_per_update=1, unit_steps=unit_steps)
    run = dataclasses.replace(tiny(), clipping=clipping)
    right = [audit(run, CANARIES, RUNS, 0.95, seed) for seed in range(5)]
    assert not any(found.refuted for found in right)
    assert min(found.bound.mu for found in right) > 0.5 * right[0].mu_claimed
    true = Plan.noise_std_at
    monkeypatch.setattr(Plan, "noise_std_at", lambda plan, zeta: true(plan, zeta) / 1.5)
    assert all(audit(run, CANARIES, RUNS, 0.95, seed).refuted for seed in range(5))


def test_replace_one_needs_its_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = tiny(adjacency="replace-one")
    assert not audit(replaced, CANARIES, RUNS, 0.95, 0).refuted
    monkeypatch.setattr(plan_module, "adjacency_factor", lambda _: 1)
    assert audit(replaced, CANARIES, RUNS, 0.95, 0).refuted


def test_a_clip_that_clips_too_late_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipped to 1.5 ζ; the canaries' updates are a thousand times longer than ζ."""
    true = fixed_point.add_scaled

    def late(rows, signs, into, counted):
        before = into.total.copy()
        true(rows, signs, into, counted)
        into.total[:] += (into.total - before) // 2  # canaries have no coordinate in common

    monkeypatch.setattr(fixed_point, "add_scaled", late)
    assert audit(tiny(), CANARIES, RUNS, 0.95, 0).refuted


def test_noise_is_stored_as_the_run_stores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past noise that is kept in float32 is rounded in the audit too."""
    stored, true = [], server_module.BlockedNoise

    def noted(*arguments, storage, **others):
        stored.append(storage.dtype)
        return true(*arguments, storage=storage, **others)

    monkeypatch.setattr(server_module, "BlockedNoise", noted)
    rounded = tiny(mechanism="banded-toeplitz", **{"storage-dtype": "float32"})
    assert not audit(rounded, CANARIES, RUNS, 0.95, 0).refuted
    assert stored == ["float32"] * RUNS


def test_the_worst_canary_attains_the_sensitivity() -> None:
    contract = Participation(9, 3, 3)
    for C in (InverseToeplitz([1.0, -0.5, -0.125], 9), Toeplitz([1.0, 0.5], 9)):
        pattern, signs = worst_canary(C, contract)
        shift = np.linalg.norm(C.materialize()[:, list(pattern)] @ signs)
        assert shift == pytest.approx(stated_sensitivity(C, contract).value, rel=1e-9)
    alternating = Toeplitz([1.0, 0.0, 0.0, -0.9], 9)
    pattern, signs = worst_canary(alternating, contract)
    assert sorted(set(signs)) == [-1.0, 1.0]
    plain = np.linalg.norm(alternating.materialize()[:, list(pattern)].sum(axis=1))
    assert np.linalg.norm(alternating.materialize()[:, list(pattern)] @ signs) > plain


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (3, 50), (50, 50), (49, 50)])
def test_clopper_pearson_is_the_inversion_of_the_binomial(successes: int, trials: int) -> None:
    upper = binomial_upper(successes, trials, 0.01)
    if successes < trials:
        assert stats.binom.cdf(successes, trials, upper) == pytest.approx(0.01, rel=1e-9)
    else:
        assert upper == 1.0


def test_the_bound_holds_with_its_confidence_on_gaussians() -> None:
    """500 audits of N(0, 1) against N(1.5, 1) at confidence 0.9; false alarm of this test below 1e-6."""
    rng = np.random.default_rng(0)
    failures, far = 0, 0
    for _ in range(500):
        bound = leakage_bound(rng.normal(1.5, 1, 200), rng.normal(0, 1, 200), 1e-5, 0.9)
        failures += bound.mu > 1.5
        far += bound.mu < 0.5
    assert failures <= stats.binom.isf(1e-6, 500, 0.1)
    assert far < 25
    assert bound.epsilon < bound.epsilon_gdp


def test_bad_requests() -> None:
    with pytest.raises(ConfigError, match="a run without noise claims nothing"):
        audit(tiny(private=False), 100)
    with pytest.raises(ConfigError, match="canaries must be at least 16"):
        audit(tiny(), 3)
    with pytest.raises(ValueError, match="confidence"):
        leakage_bound(np.zeros(9), np.zeros(9), 1e-5, 1.0)
    with pytest.raises(ValueError, match="at least 4 each"):
        leakage_bound(np.zeros(9), np.zeros(2), 1e-5, 0.9)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.toml"
    path.write_text(render_toml(tiny()))
    arguments = ["audit", str(path), "--canaries", "400", "--seed", "1"]
    assert run_command([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["refuted"] is False
    assert found["canaries"] == 400
    understate(monkeypatch, 3.0)
    assert run_command(arguments) == 1
    assert "REFUTED" in capsys.readouterr().out
