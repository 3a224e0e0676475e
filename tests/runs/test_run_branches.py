"""Copies of a run's directory that both went on: accounted for together, or refused in one line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.continuations import covariance, furthest, released_rows
from support.directories import PLAN, create, planned
from support.small_runs import small_run

from fedmf.accounting import gaussian_epsilon
from fedmf.cli.app import run as command
from fedmf.errors import LedgerError
from fedmf.noise.key import NoiseKey
from fedmf.records import State
from fedmf.runs import PrivateEvaluation, account, account_branches
from fedmf.runs.directory import RunDirectory

#: Who takes part in a round, by the letter that tells it from other rounds of its number.
USERS = {
    **{key: ["u0", "u1"] for key in "ace"},
    **{key: ["u2", "u3"] for key in "bdf"},
    **{"x": ["u1"], "y": ["u3"], "z": ["u0", "u1"], "r": ["u2"], "s": ["u2", "u3"]},
}


def commit(directory: RunDirectory, letters: str) -> None:
    """Release the next rounds of a directory."""
    directory.ledger.opening()
    state = {"velocity": torch.full((3,), 0.5)}
    for letter in letters:
        last = directory.ledger.last_round()
        t = 0 if last is None else last + 1
        directory.commit(t, USERS[letter], torch.full((3,), float(ord(letter))), state, {"t": t + 1})


def go_on(path: Path, letters: str) -> None:
    with RunDirectory.open(path) as directory:
        commit(directory, letters)


@pytest.fixture(autouse=True)
def another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Copies go on elsewhere, where nothing is known of the run."""
    monkeypatch.setattr("fedmf.records.guard.guards_folder", lambda: None)


@pytest.fixture
def branches(tmp_path: Path) -> list[Path]:
    """Rounds 0 and 1 shared, then four rounds here and three there."""
    with create(tmp_path / "a") as directory:
        commit(directory, "ab")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    go_on(tmp_path / "a", "cdef")
    go_on(tmp_path / "b", "xyz")
    return [tmp_path / "a", tmp_path / "b"]


def brute_mu(letters: list[str], user: str) -> float:
    """μ of a user from the covariance of all that both branches released."""
    C = PLAN.mechanism.factorization.materialize()
    cov = covariance(C, letters)
    rows = [i for i, (history, _) in enumerate(released_rows(letters)) if user in USERS[history[-1]]]
    return furthest(cov, rows) / PLAN.relative_noise_std


def test_every_user_is_charged_for_the_pair_of_releases(branches: list[Path]) -> None:
    joint = account_branches(branches)
    mus = sorted(brute_mu(["abcdef", "abxyz"], f"u{i}") for i in range(4))
    assert joint.realised.mu == pytest.approx(mus[-1], rel=1e-9)
    epsilons = [gaussian_epsilon(1 / mu, PLAN.privacy.delta) for mu in mus]
    assert joint.realised.epsilon == pytest.approx(epsilons[-1], rel=1e-9)
    assert joint.realised.quantiles[0.5] == pytest.approx(epsilons[1], rel=1e-9)
    assert (joint.shared, joint.released) == (2, 9)
    alone = [account(path).realised.epsilon for path in branches]
    assert [statement.realised.epsilon for statement in joint.statements] == alone
    assert max(alone) < joint.realised.epsilon < sum(alone)


def test_an_earlier_state_adds_nothing(branches: list[Path], tmp_path: Path) -> None:
    with create(tmp_path / "c") as directory:
        commit(directory, "ab")
        shutil.copytree(tmp_path / "c", tmp_path / "backup")
        commit(directory, "cde")
    joint = account_branches([tmp_path / "c", tmp_path / "backup"])
    assert joint.realised.mu == account(tmp_path / "c").realised.mu
    assert (joint.shared, joint.released) == (2, 5)


def test_three_branches_of_branches(branches: list[Path], tmp_path: Path) -> None:
    shutil.copytree(branches[1], tmp_path / "c")
    go_on(branches[1], "r")
    go_on(tmp_path / "c", "s")
    joint = account_branches([*branches, tmp_path / "c"])
    letters = ["abcdef", "abxyzr", "abxyzs"]
    assert joint.realised.mu == pytest.approx(max(brute_mu(letters, f"u{i}") for i in range(4)), rel=1e-9)
    assert (joint.shared, joint.released) == (2, 11)


def test_the_command_says_it_in_words_and_json(
    branches: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    joint = account_branches(branches)
    assert command(["account", *map(str, branches), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["epsilon_realised"] == joint.realised.epsilon
    assert told["epsilon_realised_median"] == joint.realised.quantiles[0.5]
    assert [entry["rounds_released"] for entry in told["branches"]] == [6, 5]
    assert [entry["epsilon_realised"] for entry in told["branches"]] == [
        statement.realised.epsilon for statement in joint.statements
    ]
    assert command(["account", *map(str, branches)]) == 0
    text = capsys.readouterr().out
    assert "2 branches of one run together" in text
    assert "9 released in all, of which 2 are shared" in text
    assert len(text.splitlines()) <= 12
    assert text.endswith("--full\n")
    assert command(["account", *map(str, branches), "--full"]) == 0
    whole = capsys.readouterr().out
    assert whole == joint.document().text() + "\n"
    assert "The promise is against whoever sees everything that was released" in whole


def refused(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> str:
    assert command(["account", *map(str, paths)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_other_runs_are_no_branches(
    branches: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another run has another noise key, and is joined with this one by users' ids."""
    create(tmp_path / "other").close()
    assert "must be named to join users by id" in refused([branches[0], tmp_path / "other"], capsys)
    with pytest.raises(LedgerError, match="must be a branch of the run"):
        account_branches([branches[0], tmp_path / "other"])
    assert "got one of them twice" in refused([branches[0], branches[0]], capsys)


def test_a_public_seed_has_no_branches_to_account_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with create(tmp_path / "a", NoiseKey.from_seed(3)) as directory:
        commit(directory, "ab")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    go_on(tmp_path / "a", "c")
    assert "public noise seed repeat its noise" in refused([tmp_path / "a", tmp_path / "b"], capsys)


def test_a_copy_of_a_living_process_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two branches whose rounds have their noise from the same random bits."""
    with create(tmp_path / "a") as directory:
        commit(directory, "ab")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr("fedmf.records.ledger.ledger.os.urandom", lambda size: b"s" * size)
    go_on(tmp_path / "a", "cd")
    go_on(tmp_path / "b", "xd")
    assert "from one opening" in refused([tmp_path / "a", tmp_path / "b"], capsys)


def test_options_for_one_directory_are_refused(
    branches: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*map(str, branches), "--users", str(tmp_path / "users.csv")]
    assert command(["account", *arguments]) == 2
    assert "take one run directory" in capsys.readouterr().err


def test_private_evaluations_of_both_branches_count(tmp_path: Path) -> None:
    """μ² of training and of evaluation add, each from the covariance of what both branches released."""
    run = small_run(users=4, cohort_size=2, rounds=6, noise_seed=-1)
    run = replace(run, evaluation=PrivateEvaluation(every=1))
    plan, key = planned(run), NoiseKey.from_os()
    (evaluation,) = plan.own_streams

    def judged(directory: RunDirectory, letters: str, asked: list[str]) -> None:
        commit(directory, letters)
        record = directory.own_records["evaluation"]
        assert record is not None
        record.opening()
        last = record.last_round()
        first = 0 if last is None else last + 1
        for e, _ in enumerate(letters, first):
            users = asked if e % evaluation.participation.min_separation == 0 else []
            state = State.of([b"what was released"])
            status = "released" if users else "empty"
            record.commit_round(e, users, "c", state.digest.hex(), status, state)

    with RunDirectory.create(tmp_path / "a", run, plan, key, 3) as directory:
        judged(directory, "ab", ["u0", "u2"])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name, letters, asked in (("a", "cd", ["u0", "u2"]), ("b", "xy", ["u0"])):
        with RunDirectory.open(tmp_path / name) as directory:
            judged(directory, letters, asked)
    joint = account_branches([tmp_path / "a", tmp_path / "b"])
    paths, b = ["abcd", "abxy"], evaluation.participation.min_separation
    cov = covariance(evaluation.mechanism.factorization.materialize(), paths)
    rows = [i for i, (_, e) in enumerate(released_rows(paths)) if e % b == 0]  # u0 in all of them
    noise = evaluation.relative_noise_std(plan.privacy.adjacency)
    assert joint.own_mus["evaluation"] == pytest.approx(furthest(cov, rows) / noise, rel=1e-9)
    C = plan.mechanism.factorization.materialize()
    training = max(
        furthest(
            covariance(C, paths),
            [i for i, (history, _) in enumerate(released_rows(paths)) if f"u{u}" in USERS[history[-1]]],
        )
        for u in range(4)
    )
    expected = np.hypot(training / plan.relative_noise_std, joint.own_mus["evaluation"])
    assert joint.realised.mu == pytest.approx(expected, rel=1e-9)
