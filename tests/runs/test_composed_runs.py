"""Runs and streams joined by user from their directories, refused where they cannot be."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from support.small_runs import run_small, small_run
from support.streams import BUDGET, run_once, sample, write_rows

from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.cli.app import run as command
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


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert command(arguments) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    return said.err


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
    planned = [part["epsilon"] for part in told["composed"]]
    assert all(most >= spent for most, spent in zip(planned, alone, strict=True))
    assert max(alone) < told["epsilon_spent"] <= sum(alone)
    assert told["epsilon_spent"] <= told["epsilon"]
    assert "statement of each directory holds" in told["assumptions"][0]
    assert told["not_covered"]


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
    ("names", "message"),
    [
        (["a", "open"], "adds no noise"),
        (["a", "b", "copy of a"], "noise keys must be different"),
        (["a", "nameless/state"], "names no users (--user-column)"),
        (["a", "a"], "noise keys must be different"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_one_line(
    names: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(["account", *(str(place / name) for name in names)], capsys)
