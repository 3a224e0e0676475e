"""Runs whose stored noise is rounded: what is accounted, and F times the noise in what is released."""

from __future__ import annotations

import json
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from support.headers import CONTRACT, DELTA, FACTORIZATION, PLANNED, make_header, read, record
from support.oracles import patterns
from support.pair_runs import RecordedPair, pair_run
from support.small_runs import Recorder, client_for, linear_task, run_small, small_run

import fedmf
from fedmf.accounting import PairRelease
from fedmf.accounting.release import RoundedRelease
from fedmf.errors import ConfigError
from fedmf.factorization import rounding_shift
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.moments import DiagonalMoment
from fedmf.records import Ledger
from fedmf.runs import Run, account, read_header
from fedmf.statements import Plan, RunHeader, user_privacy

MECHANISMS = {"bsr": {"bands": 4}, "blt": {"buffers": 2}, "banded-toeplitz": {"bands": 4}}
#: So large that F − 1 is far above the errors of float32 once they are averaged over coordinates.
DIMENSION = 20_000
TASK = linear_task(24, DIMENSION)


def rounded(name: str, **words: object) -> Run:
    return small_run(TASK, **{"mechanism": name, "storage_dtype": "float32", **MECHANISMS[name], **words})


def exact_norms(plan: Plan, released: int) -> dict[tuple[int, ...], float]:
    """‖C_{:T,π}·1‖ of every pattern of the contract, densely."""
    part, dense = plan.participation, plan.mechanism.factorization.materialize()[:released]
    allowed = patterns(released, part.max_participations, part.min_separation)
    return {pattern: float(np.linalg.norm(dense[:, list(pattern)].sum(axis=1))) for pattern in allowed}


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_pattern_is_counted_with_the_shift_of_rounding(name: str, adjacency: str) -> None:
    """μ_π = s_π/(Fσs) + W with W as proved; the worst pattern has what was planned."""
    plan = fedmf.plan(rounded(name, adjacency=adjacency))
    F, s, sigma = plan.inflation, plan.sensitivity.value, plan.noise_multiplier
    C = plan.mechanism.factorization
    W = rounding_shift(C.recurrence(), plan.participation, DIMENSION, sigma)
    assert F > 1 + 1e-6
    assert pytest.approx(1 / (1 - W * sigma), rel=1e-12) == F
    assert plan.release.stated(plan.participation).value == pytest.approx(s, rel=1e-12)
    assert plan.release.stated(plan.participation).kind == "upper_bound"
    for released in (1, 5, 12):
        norms = exact_norms(plan, released)
        for pattern, norm in norms.items():
            found = plan.release.of_equal_length(np.array([pattern]), released)[0]
            assert found == pytest.approx(norm / F + (1 - 1 / F) * s, rel=1e-12)
            assert found / (sigma * s) == pytest.approx(norm / (F * sigma * s) + W, rel=1e-12)
            assert norm <= found * (1 + 1e-12)
            assert found <= s * (1 + 1e-12)
        worst = max(norms.values()) / F + (1 - 1 / F) * s
        assert plan.spent_sensitivity(released) == pytest.approx(worst, rel=1e-12)
    assert plan.release.of_patterns([[], [3], [0, 4, 8]])[0] == 0.0


def test_the_inflation_is_no_rounding_error_of_the_formula() -> None:
    """The same with F = 1.25, where s_π alone would be a fifth too small."""
    header = make_header(inflation=1.25)
    assert isinstance(header.plan.release, RoundedRelease)
    found = header.plan.release.of_patterns([[0], [5], [0, 3], []])
    dense = FACTORIZATION.materialize()
    alone = [np.linalg.norm(dense[:, rounds].sum(axis=1)) for rounds in ([0], [5], [0, 3])]
    np.testing.assert_allclose(found[:3], np.array(alone) / 1.25 + 0.2 * PLANNED.value, rtol=1e-12)
    assert found[3] == 0.0
    assert header.plan.release.rounds == CONTRACT.rounds
    assert header.plan.release.leading(2).of_patterns([[1]])[0] == pytest.approx(
        np.linalg.norm(dense[:2, 1]) / 1.25 + 0.2 * PLANNED.value
    )


def test_statement_and_single_users_count_rounding(tmp_path: Path) -> None:
    header = make_header(inflation=1.25)
    record(tmp_path / "ledger", header, [["a"], ["b"], [], ["c"], [], []])
    statement = read(tmp_path / "ledger").to_dict()

    def epsilon(t: int) -> float:
        shift = np.linalg.norm(FACTORIZATION.materialize()[:, t]) / 1.25 + 0.2 * PLANNED.value
        return dp_accounting.get_epsilon_gaussian(0.7 * PLANNED.value / shift, DELTA)

    assert statement["epsilon_realised"] == pytest.approx(max(map(epsilon, (0, 1, 3))), rel=1e-9)
    assert statement["epsilon_planned"] == pytest.approx(
        dp_accounting.get_epsilon_gaussian(0.7, DELTA), rel=1e-9
    )
    with Ledger.open(tmp_path / "ledger", read_only=True) as ledger:
        found = user_privacy(RunHeader.from_dict(ledger.header), ledger)
    spent = dict(zip(found.users, found.epsilon.tolist(), strict=True))
    assert spent == pytest.approx({"a": epsilon(0), "b": epsilon(1), "c": epsilon(3)}, rel=1e-8)


@pytest.mark.parametrize(
    "words",
    [
        {"mechanism": "bisr", "bands": 4},
        {"mechanism": "identity"},
        {"mechanism": "bsr", "bands": 4, "private": False},
        {"mechanism": "bsr", "bands": 4, "storage_dtype": "float64"},
    ],
    ids=["past z only", "nothing stored", "no noise", "float64"],
)
def test_where_nothing_is_rounded_nothing_is_added(words: dict[str, object]) -> None:
    plan = fedmf.plan(small_run(TASK, **{"storage_dtype": "float32", **words}))
    assert plan.inflation == 1.0
    assert not isinstance(plan.release, RoundedRelease)


def test_rounding_is_refused_where_no_theorem_covers_it() -> None:
    words = {"schedule": "balls-in-bins", "amplified": True, "epsilon": 1.0, "delta": 1e-2}
    with pytest.raises((ConfigError, ValueError), match=r"F \(inflation\) must be 1 with amplification"):
        fedmf.plan(rounded("bsr", min_separation=4, **words))


def noise_of(path: Path, run: Run, silent: np.ndarray) -> np.ndarray:
    """What noise adds to each released model, shape (rounds, d): its steps less those of a run without."""
    return steps_of(path, run) - silent


def steps_of(path: Path, run: Run) -> np.ndarray:
    recorder = Recorder()
    final = run_small(path, run, lambda session: client_for(session, recorder))
    models = [recorder.models[t] for t in range(run.cohorts.rounds)]
    return np.diff(np.stack([*models, final]).astype(np.float64), axis=0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_released_models_have_f_times_the_accounted_noise(name: str, tmp_path: Path) -> None:
    """Against the same run with stored noise in float64, whose level other tests measure."""
    words = {"server_momentum": 0.0, "server_learning_rate": 1.0}
    narrow, wide = rounded(name, **words), rounded(name, **words, storage_dtype="float64")
    silent = steps_of(tmp_path / "silent", rounded(name, **words, private=False))
    reference = noise_of(tmp_path / "wide", wide, silent)
    found = noise_of(tmp_path / "narrow", narrow, silent)
    plan = read_header(tmp_path / "narrow").plan
    F, inverse = plan.inflation, np.linalg.inv(plan.mechanism.factorization.materialize())
    assert F > 1 + 5e-6
    ratios = np.sum(found * reference, axis=1) / np.sum(reference**2, axis=1)
    np.testing.assert_allclose(ratios, F, atol=0.02 * (F - 1))
    accounted = np.linalg.norm(inverse, axis=1) * plan.noise_std / 6
    np.testing.assert_allclose(np.std(reference, axis=1), accounted, rtol=0.04)  # 8 standard errors


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_run_is_stated_resumed_and_accounted_for(name: str, tmp_path: Path) -> None:
    run = rounded(name)
    final = run_small(tmp_path / "whole", run)
    with fedmf.start(run, tmp_path / "halves") as session:
        session.plan.__dict__["allowed_rounds"] = 5
        run_on_grid(session, InProcessGrid(client_for(session)))
    half = account(tmp_path / "halves").to_dict()
    plan = read_header(tmp_path / "halves").plan
    worst = max(exact_norms(plan, 5).values()) / plan.inflation
    worst += (1 - 1 / plan.inflation) * plan.sensitivity.value
    noise = plan.noise_multiplier * plan.sensitivity.value
    assert half["epsilon_planned_so_far"] == pytest.approx(
        dp_accounting.get_epsilon_gaussian(noise / worst, plan.privacy.delta), rel=1e-9
    )
    with fedmf.resume(fedmf.load(tmp_path / "halves", TASK), tmp_path / "halves") as session:
        assert session.server.t == 5
        run_on_grid(session, InProcessGrid(client_for(session)))
        assert torch.equal(session.server.parameters, torch.from_numpy(final))
        session.write_reports()
    statement = account(tmp_path / "halves").to_dict()
    written = json.loads((tmp_path / "halves" / "statement.json").read_text())
    assert statement == written == account(tmp_path / "whole").to_dict()
    assert statement["epsilon_planned"] == pytest.approx(8.0, rel=1e-6)
    assert statement["epsilon_realised"] == pytest.approx(statement["epsilon_planned"], rel=1e-9)
    other = rounded(name, storage_dtype="float64")
    with pytest.raises(ConfigError, match=r"its mechanism\.storage\.dtype is 'float32', not 'float64'"):
        fedmf.resume(other, tmp_path / "halves")


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_both_noises_of_a_pair_are_larger(adjacency: str, tmp_path: Path) -> None:
    """Else the worst user's rounding would come on top: √((A/F + W)² + B²) > √(A² + B²)."""
    words = {"mechanism": "bsr", "bands": 4, "second_moment_importance": 20.0, "adjacency": adjacency}
    shown, plans = {}, {}
    for dtype in ("float32", "float64"):
        optimizer = RecordedPair(DiagonalMoment(DIMENSION))
        run = pair_run(optimizer, TASK, **words, storage_dtype=dtype)
        with fedmf.start(run, tmp_path / dtype) as session:
            for _ in range(session.server.horizon):
                session.server.release(session.server.new_sum(), [])
        shown[dtype], plans[dtype] = optimizer, session.plan
    plan, F = plans["float32"], plans["float32"].inflation
    assert isinstance(plan.release, RoundedRelease)
    assert isinstance(plan.release.exact, PairRelease)
    assert F > 1 + 5e-6
    assert plan.second_noise_std == plans["float64"].second_noise_std
    np.testing.assert_allclose(shown["float32"].seconds(), F * shown["float64"].seconds(), rtol=1e-12)
    for field in ("mean_variance", "second_variance"):
        narrow, wide = ([getattr(release, field) for release in shown[dtype].seen] for dtype in shown)
        np.testing.assert_allclose(narrow, F**2 * np.array(wide), rtol=1e-12)
    # W/σ₁ of the sums' own stream, with which the shift of the pair stays within what is planned.
    sums = plan.mechanism.factorization
    alone = max(exact_norms(plan, 12).values())
    sigma = plan.noise_multiplier * plan.sensitivity.value / alone
    W = rounding_shift(sums.recurrence(), plan.participation, DIMENSION, sigma)
    s, exact = plan.sensitivity.value, plan.release.exact.of_patterns([[0], [0, 4, 8]])
    found = plan.release.of_patterns([[0], [0, 4, 8]])
    assert (exact / F + W * sigma * alone <= found * (1 + 1e-12)).all()
    assert (found <= s * (1 + 1e-12)).all()
