"""A run that goes on from a backup: refused, or with what was lost counted as spent."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.continuations import covariance, furthest, released_rows
from support.directories import PLAN, create
from support.small_runs import client_for, small_run

import fedmf
from fedmf.accounting import UserLevel, gaussian_epsilon
from fedmf.cli.app import run as command
from fedmf.errors import ConfigError
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.noise.key import NoiseKey
from fedmf.runs import Session, account, opened_evidence
from fedmf.runs.directory import DATA_CHANGED, RunDirectory
from fedmf.statements import Plan, user_privacy

#: Who took part: fewer than were planned in some rounds.
USERS = [["u0", "u1"], ["u2", "u3"], ["u0", "u1"], ["u2"], ["u1"], ["u3"]]


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def planned(plan: Plan, key: NoiseKey, t: int) -> list[str]:
    return [["u0", "u1"], ["u2", "u3"]][t % 2]


def commit(directory: RunDirectory, first: int, stop: int) -> None:
    directory.ledger.opening()
    for t in range(first, stop):
        state = {"velocity": torch.full((3,), 0.5)}
        directory.commit(t, USERS[t], torch.full((3,), float(t)), state, {"t": t + 1})


def put_back(backup: Path, place: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(backup, place)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Two rounds in a backup, five in the run."""
    with create(tmp_path / "run") as directory:
        commit(directory, 0, 2)
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    with RunDirectory.open(tmp_path / "run") as directory:
        commit(directory, 2, 5)
    return tmp_path / "backup"


def test_a_backup_is_refused_in_one_line(backup: Path, tmp_path: Path) -> None:
    RunDirectory.open(tmp_path / "run").close()
    put_back(backup, tmp_path / "run")
    for place in (tmp_path / "run", backup):
        with pytest.raises(
            ConfigError, match="5 rounds of its run were released, of which it holds 2"
        ) as caught:
            RunDirectory.open(place)
        assert "--restored-from-backup" in str(caught.value)
        assert "\n" not in str(caught.value)
    account(tmp_path / "run")  # reading is free


def test_a_copy_that_went_on_is_refused_once_the_other_has(backup: Path, tmp_path: Path) -> None:
    """Copied to another machine, continued there as far as here, and brought back."""
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        with RunDirectory.open(backup) as directory:
            commit(directory, 2, 6)
    with pytest.raises(ConfigError, match="of which it holds 2"):
        RunDirectory.open(backup)
    RunDirectory.open(tmp_path / "run").close()


def test_a_run_that_went_on_elsewhere_may_come_back(backup: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        with RunDirectory.open(tmp_path / "run") as directory:
            commit(directory, 5, 6)
    RunDirectory.open(tmp_path / "run").close()


def brute_mu(letters: list[str], rounds_of: dict[str, list[str]], user: str) -> float:
    """From the covariance of all releases; `rounds_of` tells who took part by letter."""
    cov = covariance(PLAN.mechanism.factorization.materialize(), letters)
    rows = [i for i, (history, _) in enumerate(released_rows(letters)) if user in rounds_of[history[-1]]]
    return furthest(cov, rows) / PLAN.relative_noise_std


def test_lost_rounds_count_as_spent_by_all_that_were_planned(backup: Path, tmp_path: Path) -> None:
    with RunDirectory.open(backup, planned) as directory:
        commit(directory, 2, 6)
    RunDirectory.open(backup).close()  # said once
    took_part = dict(zip("abcdef", USERS, strict=True))
    lost = {letter: planned(PLAN, directory.key, t) for t, letter in enumerate("xyz", 2)}
    letters = ["abcdef", "abxyz"]
    mus = {f"u{i}": brute_mu(letters, took_part | lost, f"u{i}") for i in range(4)}
    statement = account(backup)
    assert statement.realised.mu == pytest.approx(max(mus.values()), rel=1e-9)
    without = max(brute_mu(["abcdef"], took_part, user) for user in mus)
    assert statement.realised.mu > 1.05 * without
    assert statement.planned.epsilon >= statement.realised.epsilon
    assert statement.planned.epsilon > PLAN.privacy.requested_epsilon
    with opened_evidence(backup) as evidence:
        table = user_privacy(*evidence.records)
    expected = [gaussian_epsilon(1 / mus[user], PLAN.privacy.delta) for user in table.users]
    assert table.epsilon == pytest.approx(expected, rel=1e-8)
    assert dict(zip(table.users, table.participations, strict=True))["u1"] == 3 + 2


def test_the_statement_says_so(backup: Path) -> None:
    with RunDirectory.open(backup, planned) as directory:
        commit(directory, 2, 4)
    statement = account(backup)
    told, text = statement.to_dict(), statement.render_text()
    assert told["rounds_lost"] == [{"first": 2, "released": 5}]
    assert "3 to 5: released before a backup was restored, counted as spent" in text
    assert any("went on from a backup" in entry for entry in told["assumptions"])
    assert statement.planned.so_far is not None
    assert statement.realised.epsilon <= statement.planned.so_far <= statement.planned.epsilon
    assert "u0" not in str(statement.public())


def test_a_second_restoration_counts_both(backup: Path, tmp_path: Path) -> None:
    shutil.copytree(backup, tmp_path / "again")
    with RunDirectory.open(backup, planned) as directory:
        commit(directory, 2, 4)
    with RunDirectory.open(tmp_path / "again", planned) as directory:
        commit(directory, 2, 3)
    lost = account(tmp_path / "again").to_dict()["rounds_lost"]
    assert lost == [{"first": 2, "released": 5}, {"first": 2, "released": 4}]


@pytest.mark.parametrize(
    ("privacy", "reason"), [({"max_epsilon": 3.0}, "max_epsilon"), ({"user_budgets": "x.csv"}, "budget")]
)
def test_limits_of_single_users_do_not_survive_a_loss(privacy, reason) -> None:
    assert isinstance(PLAN.privacy, UserLevel)
    limited = replace(PLAN, privacy=replace(PLAN.privacy, **privacy))
    assert limited.without_losses is not None
    assert reason in limited.without_losses
    assert PLAN.without_losses is None


def test_simulate_goes_on_from_a_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(noise_seed=-1, rounds=4, users=8, cohort_size=2)

    def stop_after(session: Session, rounds: int) -> None:
        grid = InProcessGrid(client_for(session))

        def count(report, _row) -> None:
            if session.server.t == rounds:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_on_grid(session, grid, count)

    with fedmf.start(run, tmp_path / "run") as session:
        stop_after(session, 1)
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    with fedmf.resume(run, tmp_path / "run") as session:
        stop_after(session, 3)
        before = session.metrics[3]["epsilon"]
    resumed = ["simulate", "--resume", str(tmp_path / "backup")]
    assert command(resumed) == 2
    assert "--restored-from-backup" in capsys.readouterr().err
    assert command([*resumed, "--restored-from-backup"]) == 0
    statement = account(tmp_path / "backup")
    assert statement.to_dict()["rounds_lost"] == [{"first": 1, "released": 3}]
    with opened_evidence(tmp_path / "backup") as evidence:
        _, ledger, _ = evidence.records
        epsilons = [ledger.metrics()[t]["epsilon"] for t in (2, 3, 4)]
        (lost,) = ledger.openings()[-1].note["restored"]
    assert np.diff(epsilons).min() > -1e-9
    assert epsilons[1] > before
    assert epsilons[2] == pytest.approx(statement.planned.epsilon, rel=1e-6)
    roster = session.task.dataset.user_ids
    with fedmf.resume(run, tmp_path / "backup") as session:
        schedule = session.cohort_schedule()
        cohorts = [[str(roster[int(user)]) for user in schedule.cohort(t)] for t in (1, 2)]
    assert lost["planned"] == cohorts
    assert command(["simulate", "configs/digits.toml", "--restored-from-backup"]) == 2


def test_changed_data_are_told_to_the_operator_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A user has more examples when the run goes on: in the secret file and the ledger, on no screen."""
    run = small_run(noise_seed=-1, rounds=3, users=8, cohort_size=2)
    path = tmp_path / "run"

    def one_round(session: Session) -> None:
        total = session.server.new_sum()
        session.server.release(total, [])

    with fedmf.start(run, path) as session:
        one_round(session)
    with fedmf.resume(run, path) as session:
        one_round(session)
    assert (path / "failures.jsonl").read_text() == ""
    with pytest.MonkeyPatch.context() as other:
        sizes = type(session.task.dataset).sizes
        other.setattr(
            type(session.task.dataset), "sizes", lambda self, users: sizes(self, users) + (users == 3)
        )
        capfd.readouterr()
        with fedmf.resume(run, path) as session:
            one_round(session)
    (line,) = (path / "failures.jsonl").read_text().splitlines()
    assert json.loads(line) == {"round": 3, "notice": DATA_CHANGED}
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    with opened_evidence(path) as evidence:
        _, ledger, _ = evidence.records
        first, second, third = (opening.note["data"] for opening in ledger.openings())
    assert first == second != third
