"""Runs and streams joined by user from their directories, refused where they cannot be."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from guarantees.small import ROUNDS, aggregator
from guarantees.small import stream as pushed_stream
from support.small_runs import run_small, small_run
from support.streams import BUDGET, run_once, sample, write_rows

import fedmf
from fedmf.accounting.gaussian import gaussian_epsilon, gaussian_sigma
from fedmf.cli.app import run as command
from fedmf.runs.directory import opened_record
from fedmf.runs.run_statement import account, costs_of_run
from fedmf.streaming import Settings, account_stream, stream_costs

DELTA = 1e-5


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one without noise, one with a public seed, and streams, on the same 24 ids."""
    folder = tmp_path_factory.mktemp("composed")
    runs = {
        "a": {"epsilon": 4.0},
        "b": {"epsilon": 2.0, "mechanism": "bisr"},
        "open": {"private": False},
        "seeded": {"noise_seed": 7},
        "seeded too": {"noise_seed": 7},
    }
    for name, changes in runs.items():
        run_small(folder / name, small_run(**{"noise_seed": -1, **changes}))
    shutil.copytree(folder / "a", folder / "copy of a")
    users = [f"user-{i % 26:02d}" for i in range(30)]  # two are in no run
    rows = write_rows(folder / "rows.csv", sample(), users)
    contract = {"user_column": "user", "max_participations": 2, "min_separation": 10, "seed": None}
    run_once(folder, Settings(**{**BUDGET, **contract}), rows)
    (folder / "nameless").mkdir()
    run_once(folder / "nameless", Settings(**{**BUDGET, "seed": None, "columns": ("x0",)}), rows)
    return folder


def test_squares_of_mu_add_for_each_user(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [place / "a", place / "b", place / "state"]
    assert command(["account", *map(str, names), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    squares: dict[str, float] = {}
    for one in (costs_of_run(names[0]), costs_of_run(names[1]), stream_costs(names[2])):
        for user, mu in zip(one.spent.users, one.spent.mu.tolist(), strict=True):
            squares[user] = squares.get(user, 0.0) + mu**2
    assert len(squares) == 26
    epsilons = sorted(gaussian_epsilon(1 / math.sqrt(square), DELTA) for square in squares.values())
    assert told["epsilon_spent"] == pytest.approx(epsilons[-1], rel=1e-8)
    assert told["epsilon_spent_quantiles"]["0.5"] == pytest.approx(epsilons[12], rel=1e-8)
    alone = [account(place / name)["epsilon_spent"] for name in ("a", "b")]
    alone.append(account_stream(place / "state")["epsilon_spent"])
    assert all(part["sampling"].startswith("none") for part in told["composed"])
    planned = [part["epsilon"] for part in told["composed"]]
    assert all(most >= spent for most, spent in zip(planned, alone, strict=True))
    assert max(alone) < told["epsilon_spent"] <= sum(alone)
    assert told["epsilon_spent"] <= told["epsilon"]
    assert "statement of each directory holds" in told["assumptions"][0]
    assert "public, or were released by another of them" in told["assumptions"][1]
    assert told["not_covered"]


def test_a_stream_of_periods_counts_in_full_for_every_user(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also for users of no run; who took part in which period is nowhere told."""
    budget = {"epsilon": 1.0, "delta": DELTA, "clip_norm": 1.0, "columns": ["x"]}
    weekly = {"release_every": "1w", "start": "2026-01-05", "rounds": 3, "max_participations": 2}
    for name, users in {"weekly": ["user-01", "nobody else"], "other": ["user-01"]}.items():
        with fedmf.PrivateStream(tmp_path / name, **budget, **weekly, mechanisms="bisr") as stream:
            stream.add([[0.5]] * len(users), users, ["2026-01-06"] * len(users))
            stream.close_period()
    parts = [stream_costs(tmp_path / name) for name in ("weekly", "other")]
    assert parts[0].spent.others == parts[1].spent.others == parts[0].statement["mu"]
    assert parts[0].spent.users == parts[1].spent.users == []
    names = [str(place / "a"), str(tmp_path / "weekly"), str(tmp_path / "other")]

    assert command(["account", *names[:2], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    spent = np.sort(np.hypot(costs_of_run(names[0]).spent.mu, parts[0].statement["mu"]))
    for quantile, mu in {"0.5": spent[11], "1": spent[-1]}.items():
        expected = gaussian_epsilon(1 / mu, DELTA)
        assert told["epsilon_spent_quantiles"][quantile] == pytest.approx(expected, rel=1e-8)

    letter = tmp_path / "letter.md"
    assert command(["account", *names[1:], "--json", "--public", str(letter)]) == 0
    assert "model" not in letter.read_text(), "these are two streams"
    told = json.loads(capsys.readouterr().out)
    assert told["mu"] == told["mu_spent"] == pytest.approx(math.sqrt(2) * parts[0].statement["mu"])
    assert told["users_participated"] is None
    assert [part["directory"] for part in told["composed"]] == ["weekly", "other"]
    assert str(tmp_path) not in json.dumps(told), "paths of the machine are not public"
    assert command(["account", *names, "--budget", "8"]) == 0
    shown = capsys.readouterr().out
    assert "in full for every user" in shown
    assert "took part  " not in shown
    assert "is left of epsilon 8" in shown


def continued(path: Path, stop: int) -> None:
    """Release the next rounds of a run with a secret key."""
    start = {"w": np.zeros(3, np.float32)}
    with aggregator(path, noise_seed=None).begin(start) as opened:
        while opened.t < stop:
            for user in opened.cohort(opened.t):
                opened.add(user, {"w": np.ones(3)})
            opened.release()


def branches(folder: Path, monkeypatch: pytest.MonkeyPatch, fork: int) -> tuple[Path, Path]:
    """A run and a copy of it, continued on two machines."""
    continued(folder / "a", fork)
    shutil.copytree(folder / "a", folder / "b")
    continued(folder / "a", ROUNDS)
    with monkeypatch.context() as other:
        other.setenv("XDG_STATE_HOME", str(folder / "other machine"))
        continued(folder / "b", ROUNDS - 1)
    return folder / "a", folder / "b"


def test_common_rounds_of_branches_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against the columns of C, row by row, for users with the pattern that the ledgers record."""
    fork = 5
    a, b = branches(tmp_path, monkeypatch, fork)
    assert command(["account", str(b), str(a), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    with opened_record(a) as (header, ledger):
        plan = header.plan
        C = plan.mechanism.factorization.materialize()
        rounds, keys = ledger.participations()
    moved = plan.moved(0.0)
    expected = []
    for key in np.unique(keys):
        joined = rounds[keys == key]
        whole = np.linalg.norm(C[:, joined].sum(axis=1))
        later = np.linalg.norm(C[fork : ROUNDS - 1, joined[joined < ROUNDS - 1]].sum(axis=1))
        expected.append(math.hypot(whole + moved, later + moved) / plan.relative_noise_std)
    assert told["mu_spent"] == pytest.approx(max(expected), rel=1e-9)
    alone = account(a)
    assert alone["mu"] < told["mu"] < math.sqrt(2) * alone["mu"]
    assert told["this_copy"] is None, "the other branch is among those named"
    shutil.copytree(a, tmp_path / "copy")
    assert command(["account", str(a), str(tmp_path / "copy"), "--json"]) == 0
    equal = json.loads(capsys.readouterr().out)
    assert equal["mu"] == pytest.approx(alone["mu"], rel=1e-12)
    assert equal["mu_spent"] == pytest.approx(alone["mu_spent"], rel=1e-12)


def test_an_older_copy_does_not_state_its_epsilon_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The statement names newer releases (FEDMF-2026-13)."""
    continued(tmp_path / "a", 4)
    shutil.copytree(tmp_path / "a", tmp_path / "old")
    continued(tmp_path / "a", 8)
    (tmp_path / "old" / "noise.key").unlink()
    for arguments in (["--full"], [], ["--public", str(tmp_path / "public.txt")]):
        assert command(["account", str(tmp_path / "old"), *arguments]) == 0
        assert "has seen 8 commits of this run" in capsys.readouterr().out
    assert "has seen 8 commits" in (tmp_path / "public.txt").read_text()
    assert command(["account", str(tmp_path / "a")]) == 0
    assert "has seen" not in capsys.readouterr().out
    branches(tmp_path / "forked", monkeypatch, 5)
    assert command(["account", str(tmp_path / "forked" / "b")]) == 0
    assert "this machine has seen" in capsys.readouterr().out


def test_branches_of_a_stream_compose_by_the_safe_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def push(path: Path, stop: int) -> None:
        with pushed_stream(path, 6, dimension=2, seed=None) as opened:
            while opened.t < stop:
                opened.push([0.3, 0.1], user=f"u{opened.t}")

    push(tmp_path / "a", 2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert command(["account", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    equal = json.loads(capsys.readouterr().out)
    push(tmp_path / "a", 5)
    assert command(["account", str(tmp_path / "b"), "--full"]) == 0
    assert "commits of this run or stream, and this copy" in capsys.readouterr().out
    with monkeypatch.context() as other:
        other.setenv("XDG_STATE_HOME", str(tmp_path / "other machine"))
        push(tmp_path / "b", 4)
    assert command(["account", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert equal["mu"] == pytest.approx(account_stream(tmp_path / "a")["mu"], rel=1e-12)
    assert both["mu"] == pytest.approx(math.sqrt(2) * equal["mu"], rel=1e-12)
    assert any("safe bound" in part["counted"] for part in both["composed"])


def test_a_record_without_its_key_is_read_with_a_warning(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(place / "b", tmp_path / "b")
    (tmp_path / "b" / "noise.key").unlink()
    assert costs_of_run(tmp_path / "b").statement == account(place / "b")
    assert (
        [line for line in caplog.messages if "cannot be authenticated" in line]
        == caplog.messages
        != []
    )


@pytest.mark.parametrize(
    ("names", "code", "message"),
    [
        (["a", "open"], 3, "adds no noise"),
        (["seeded", "b", "seeded too"], 3, "noise keys must be different"),
        (["a", "nameless/state"], 2, "names no users (--user-column)"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_one_line(
    names: list[str], code: int, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["account", *(str(place / name) for name in names)]) == code
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert message in said.err


def test_what_is_left_of_a_budget_can_be_spent(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mechanism with the ε that is shown, and all that was planned, has the ε of the budget."""
    names = [str(place / "a"), str(place / "b")]
    assert command(["account", *names, "--budget", "6", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    later = 1 / gaussian_sigma(told["epsilon_left"], DELTA)
    total = gaussian_epsilon(1 / math.hypot(told["mu"], later), DELTA)
    assert total <= 6
    assert total == pytest.approx(6, rel=1e-6)
    assert command(["account", *names, "--budget", "4"]) == 3
    assert "Budget: nothing is left of epsilon 4" in capsys.readouterr().out
