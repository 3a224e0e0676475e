"""Canaries in real runs: what they add, what they leave alone, what they find, where they are refused."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import small_run

import fedmf
from fedmf.cli.app import run as command
from fedmf.cohorts import CheckInCohorts
from fedmf.errors import ConfigError, LedgerError
from fedmf.optim import RoundRelease, ServerSGD
from fedmf.optim.move import Move
from fedmf.parts import CANARY_ROWS, Canaries, FileRow, FixedClipping, QuantileClipping, coins_of
from fedmf.runs import ObserverError, Run, canary_finding, read_header, run_of
from fedmf.runs.recorded import keep_of_part
from fedmf.runs.tables import dotted_keys
from fedmf.statements import Plan, summarise
from fedmf.training import FixedPointSum
from fedmf.training.clipping import fixed_point
from fedmf.workload import LearningRateSchedule

COUNT = 100


def watched(count: int = COUNT, **named: object) -> Run:
    """24 users, 12 rounds, d = 610, evaluated at the end alone."""
    run = small_run(**{"mechanism": "banded-toeplitz", "noise_seed": 1, **named})
    execution = dataclasses.replace(run.execution, evaluate_every=12)
    return dataclasses.replace(run, canaries=Canaries(count), execution=execution)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A correct run: its directory, and the operator's statement."""
    path = tmp_path_factory.mktemp("canaries") / "run"
    return path, fedmf.simulate(watched(), path).statement.to_dict()


def rows_of(path: Path) -> bytes:
    return (path / CANARY_ROWS).read_bytes()


def test_a_correct_run_is_not_refuted_and_says_what_was_found(whole: tuple[Path, dict], capsys) -> None:
    path, statement = whole
    found = canary_finding(path)
    assert (found.rounds, found.bound.judged) == (12, COUNT)
    assert not found.refuted
    assert found.bound.guessed > 62, "coins are guessed at all: 62 of 100 by chance are one in 100"
    said = statement["canaries"]
    assert (said["judged"], said["guessed"]) == (found.bound.judged, found.bound.guessed)
    assert (said["mu_at_least"], said["epsilon_at_least"]) == (found.bound.mu, found.bound.epsilon)
    assert command(["audit", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bound"]["guessed"] == found.bound.guessed
    assert command(["audit", str(path)]) == 0
    assert "no contradiction" in capsys.readouterr().out
    assert command(["account", str(path), "--full"]) == 0
    assert "at 95 % confidence from 100 canaries in this run after 12 rounds" in capsys.readouterr().out
    assert command(["report", str(path), "--output", str(path.parent / "report.html")]) == 0
    assert "from 100 canaries in this run" in (path.parent / "report.html").read_text()


def test_noise_that_is_too_small_is_refuted(tmp_path: Path, monkeypatch, capsys) -> None:
    true = Plan.noise_std_at
    monkeypatch.setattr(Plan, "noise_std_at", lambda plan, norm: true(plan, norm) / 3)
    statement = fedmf.simulate(watched(), tmp_path / "run").statement.to_dict()
    assert statement["canaries"]["refuted"]
    assert canary_finding(tmp_path / "run").refuted
    assert command(["audit", str(tmp_path / "run")]) == 1
    assert "REFUTED" in capsys.readouterr().out
    assert command(["account", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("REFUTED: ")


def test_a_screen_holds_a_run_with_everything(whole: tuple[Path, dict]) -> None:
    _, statement = whole
    lost = {
        "rounds_lost": [{"first": 1, "released": 3}],
        "canaries": {**statement["canaries"], "refuted": True},
    }
    model = [("quality", "loss 1"), ("trend", "level")]
    text = summarise({**statement, **lost, "evaluation": {}, "second_moment": {}}, "--full", model, "runs/a")
    assert len(text.splitlines()) == 12
    assert "second moment, private evaluations, canaries\n" in text
    assert "; 2 lost rounds count\n" in text


def test_a_clip_that_clips_too_late_is_refuted(tmp_path: Path, monkeypatch) -> None:
    """To 4 ζ: canaries send ten times the clip norm. Behind the merge, which would leave such users out."""
    true = fixed_point.add_clipped

    def late(rows, step, origin, clip_norm, scale, into, counted):
        for u in range(counted.size):
            before = into.total.copy()
            row = rows[u * step : u * step + into.total.size]
            true(row, 0, origin, clip_norm, scale, into, counted[u : u + 1])
            into.total[:] += 3 * (into.total - before)

    monkeypatch.setattr(fixed_point, "add_clipped", late)
    assert fedmf.simulate(watched(), tmp_path / "run").statement.to_dict()["canaries"]["refuted"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_replace_one_sends_the_opposite_for_any_optimizer(
    optimizer: str, tmp_path: Path, monkeypatch
) -> None:
    run = watched(adjacency="replace-one", server_optimizer=optimizer)
    statement = fedmf.simulate(run, tmp_path / "run").statement.to_dict()
    assert not statement["canaries"]["refuted"]
    assert statement["canaries"]["guessed"] > 62
    true = Plan.noise_std_at
    monkeypatch.setattr(Plan, "noise_std_at", lambda plan, norm: true(plan, norm) / 3)
    assert fedmf.simulate(run, tmp_path / "broken").statement.to_dict()["canaries"]["refuted"]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_sum_has_the_users_integers_and_those_of_each_canary(adjacency: str, tmp_path: Path) -> None:
    """Theorem 3, step 1: the users' part is untouched, and each canary's is clipped like any user's."""
    run = watched(adjacency=adjacency)
    with fedmf.start(run, tmp_path / "run") as session:
        team = run.canaries.open(session.plan.stage(session.server.keys, 610))
        rounds = {t for pattern in team.patterns for t in pattern.rounds}
        total = session.server.new_sum()
        users = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 610)).astype(np.float32))
        total.add_updates(users)
        alone = total.fixed_point.clone()
        for t in range(12):
            added = team.join(t, total).fixed_point - alone
            assert (total.fixed_point == alone).all()
            expected, present = torch.zeros(610, dtype=torch.int64), team.present(t)
            for i, sign in present.items():
                pattern = team.patterns[i % len(team.patterns)]
                assert sign == pattern.signs[pattern.rounds.index(t)] * (1 if team.coins[i] else -1)
                one = FixedPointSum(610, total.clip_norm)
                row = np.zeros(610)
                row[team._order[i::COUNT]] = sign * team._signs[i::COUNT]
                one.add_updates(torch.from_numpy(1e4 * row)[None])
                exact = sum(int(entry) ** 2 for entry in one.fixed_point.tolist())
                assert 0.999 * 2**80 < exact <= 2**80, "norm zeta, exactly not more"
                assert (one.fixed_point * expected == 0).all(), "disjoint supports"
                expected += one.fixed_point
            assert (added - expected).abs().max() <= 2**18, "the same but for float32 of the canary's row"
            assert ((added != 0) == (expected != 0)).all()
            heads = {i for i, coin in enumerate(team.coins) if coin}
            if adjacency == "zero-out":
                assert set(present) <= heads
            assert bool(present) == (t in rounds)
        for pattern in team.patterns:
            assert len(pattern.rounds) == session.plan.participation.max_participations


def test_the_guarantee_of_users_is_that_without_canaries(whole: tuple[Path, dict], tmp_path: Path) -> None:
    """Nothing but canaries' own entries differs in plan and statement; without them nothing is recorded."""
    _, statement = whole
    without = watched(0)
    other = fedmf.simulate(without, tmp_path / "run").statement.to_dict()
    assert other.pop("canaries") is None
    assert {name for name in other if other[name] != statement[name]} == set()
    assert "canaries" not in read_header(tmp_path / "run").run
    assert not (tmp_path / "run" / CANARY_ROWS).exists()
    with pytest.raises(ConfigError, match="a run without canaries"):
        canary_finding(tmp_path / "run")


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(whole: tuple[Path, dict], tmp_path: Path) -> None:
    run, cut = watched(), tmp_path / "cut"

    def stop(standing) -> None:
        if standing.rounds == 5:
            raise ValueError("enough")

    with pytest.raises(ObserverError):
        fedmf.simulate(run, cut, observers=[stop])
    found = canary_finding(cut)
    assert 0 < found.rounds < 12
    assert np.isnan(np.frombuffer(rows_of(cut)).reshape(12, COUNT)[found.rounds :]).all()
    result = fedmf.simulate(run, cut)
    assert result.statement.to_dict() == whole[1]
    assert rows_of(cut) == rows_of(whole[0])


def test_rounds_without_users_and_rounds_that_were_lost_are_released_all_the_same(tmp_path: Path) -> None:
    """Of 7 rounds the last two are lost with the process; what they released is still known."""
    run, path = watched(), tmp_path / "run"
    run = dataclasses.replace(run, execution=dataclasses.replace(run.execution, checkpoint_every=5))
    for rounds in (7, 5):
        with (fedmf.resume if path.exists() else fedmf.start)(run, path) as session:
            assert session.server.lost == (range(5, 7) if rounds == 5 else range(0))
            for _ in range(rounds):
                session.server.release(session.server.new_sum(), [])
    found = canary_finding(path)
    assert (found.rounds, found.bound.judged) == (12, COUNT)
    assert found.bound.guessed > 62
    assert not found.refuted
    (path / CANARY_ROWS).write_bytes(rows_of(path)[:-8])
    assert command(["audit", str(path)]) == 2


def test_coins_follow_from_the_key_alone_and_are_fair() -> None:
    from fedmf.noise import NoiseKey

    key = NoiseKey.from_seed(3)
    coins = coins_of(key, 4000)
    assert (coins == coins_of(key, 4000)).all()
    assert (coins[:10] == coins_of(key, 10)).all()
    assert abs(int(coins.sum()) - 2000) < 5 * np.sqrt(1000), "one in 10^6"
    assert (coins != coins_of(NoiseKey.from_seed(4), 4000)).any()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_mean_is_read_off_two_models(momentum: float, nesterov: bool, decay: float) -> None:
    """To the rounding of float32 models: 1e-6 of their entries over the learning rate."""
    rule = ServerSGD(
        Move(LearningRateSchedule("constant", 0.5, 10), decay), momentum, nesterov and momentum > 0
    )
    rng = np.random.default_rng(0)
    parameters = torch.from_numpy(rng.standard_normal(50).astype(np.float32))
    state = rule.init(parameters)
    for t in range(4):
        mean = torch.from_numpy(rng.standard_normal(50).astype(np.float32))
        after, new = rule.step(t, parameters, RoundRelease(mean, 1.0, None, None), state)
        found = rule.update_between(t, parameters, state, after)
        assert float((found - mean).abs().max()) < 1e-5
        parameters, state = after, new


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"private": False}, "in a run without noise"),
        ({"amplified": True, "schedule": "balls-in-bins"}, "in an amplified run"),
        ({"storage_dtype": "float32"}, "stored as float32"),
        ({"server_optimizer": "jme-adam"}, "needs a second moment"),
        ({"hidden_units": "none", "dataset": "digits", "count": 700}, "at most d=650"),
    ],
)
def test_what_no_theorem_covers_is_refused(changes: dict, reason: str, tmp_path: Path) -> None:
    changes = dict(changes)
    count = changes.pop("count", COUNT)
    with pytest.raises(ConfigError, match=rf"count \(of canaries\) must .*{reason}"):
        fedmf.start(watched(count, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_moving_norms_and_check_ins_are_refused() -> None:
    run = watched()
    with pytest.raises(ConfigError, match="where the clip norm adapts"):
        dataclasses.replace(run, clipping=QuantileClipping())
    come = CheckInCohorts(rounds=12, size=6, min_separation=3, max_participations=4, probability=0.5)
    with pytest.raises(ConfigError, match="with check-in cohorts"):
        dataclasses.replace(run, cohorts=come)
    assert dataclasses.replace(run, clipping=FixedClipping()).canaries.count == COUNT


def test_a_configuration_says_it() -> None:
    run = run_of({"canaries.count": 7, "canaries.seed": 5})
    assert run.canaries == Canaries(7, 5)
    assert run_of(dotted_keys(run)).canaries == run.canaries
    assert Run.from_dict(run.to_dict()).canaries == run.canaries
    assert "canaries" not in run_of({"canaries.seed": 5}).to_dict()


@pytest.mark.parametrize("options", [["--set", "cohorts.rounds=3"], ["--runs", "2"], ["--seed", "1"]])
def test_options_of_a_configuration_are_refused_for_a_directory(
    options: list[str], whole: tuple[Path, dict], capsys
) -> None:
    assert command(["audit", str(whole[0]), *options]) == 2
    assert "take a configuration; got a run directory" in capsys.readouterr().err


def test_a_row_that_cannot_be_written_whole_stops_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes some of it, and then no more."""
    (tmp_path / "rows").write_bytes(bytes(48))
    row, true = FileRow("rows", 24, b"\x01" * 24), os.pwrite

    def full(file: int, content: bytes, at: int) -> int:
        if len(content) < 24:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return true(file, content[:8], at)

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(LedgerError, match=r"cannot write rows: No space left.*Nothing was released"):
        keep_of_part(tmp_path, row)
    monkeypatch.undo()
    keep_of_part(tmp_path, row)
    assert (tmp_path / "rows").read_bytes() == bytes(24) + row.content
