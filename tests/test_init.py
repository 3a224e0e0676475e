"""Configurations to start from: written once, valid, and they train; those that ship are found
anywhere.
"""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import numpy as np
import pytest
from support.command_line import one_line

import fedmf
from fedmf.cli.app import run
from fedmf.cli.configuration_options import APP, CASES
from fedmf.errors import ConfigError
from fedmf.runs.session import Session
from fedmf.runs.tables.configuration import configuration_path, load_run

ROOT = Path(__file__).resolve().parents[1]
#: What makes the runs of the two cases that need nobody's files short.
SHORT = {"cohorts.rounds": 2, "cohorts.users-per-round": 12, "data.users": 24, "mechanism.bands": 1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder without a configuration, but with the files that two of the cases name."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    users = [f"user {u}" for u in range(100)]
    (tmp_path / "users.txt").write_text("\n".join(users) + "\n")
    rows = [
        [user, *rng.normal(size=3).round(3), rng.choice(["no", "yes"])]
        for user in users
        for _ in range(2)
    ]
    (tmp_path / "schema.toml").write_text(
        '[columns.user]\nkind = "user"\n[columns.label]\nkind = "category"\ncategories = ["no",'
        ' "yes"]\n'
        + "".join(
            f'[columns.{name}]\nkind = "number"\nlower = -3\nupper = 3\nscale = 1\n'
            for name in ("age", "height", "weight")
        )
    )
    for name, header, content in (
        ("rows.csv", ["user", "age", "height", "weight", "label"], rows),
        ("texts.csv", ["user", "text"], [[user, "one and one is two"] for user in users]),
    ):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *content])
    return tmp_path


def test_each_case_is_written_once_and_valid(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {file.stem.replace("_app", "-app") for file in (ROOT / "configs/start").iterdir()} == {
        *CASES,
        APP,
    }
    for case in CASES:
        assert run(["init", case]) == 0
        file = folder / f"{case}.toml"
        assert capsys.readouterr().out.endswith(f"train: fedmf simulate {case}.toml\n")
        text = file.read_text()
        assert f"fedmf simulate {case}.toml" in text
        assert "FILE" not in text
        assert all(len(line) <= 120 for line in text.splitlines())
        made = load_run(file)
        assert made.is_private
        assert made.extra_releases == ()
        assert made.privacy.delta * made.task_source.users <= 1
        assert run(["init", case]) == 2
        assert f"{case}.toml exists already and is not overwritten" in one_line(capsys)
        assert file.read_text() == text


@pytest.mark.parametrize("case", ["text", "table"])
def test_cases_on_ones_own_files_open_as_they_are(case: str, folder: Path) -> None:
    """Task, plan and directory: everything but the rounds."""
    assert run(["init", case]) == 0
    with fedmf.start(
        load_run(f"{case}.toml", {"mechanism.kind": "identity"}), folder / "run"
    ) as session:
        assert session.task.dataset.users == session.plan.users == 80
        assert session.metrics[0]["loss"] > 0


def test_the_smallest_case_trains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "digits", "--output", "mine.toml"]) == 0
    assert run(["init", "digits", "--output", "mine.toml"]) == 2
    keys = [part for name, value in SHORT.items() for part in ("--set", f"{name}={value}")]
    assert run(["simulate", "mine.toml", *keys, "--out", "run"]) == 0
    assert "Every user has (8, 1e-05)-differential privacy" in capsys.readouterr().out
    with Session.resume(Path("run")) as session:
        assert session.server.t == 2


def test_what_ships_is_found_by_name_unless_there_is_such_a_file(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fedmf"):
        shipped = load_run("configs/digits.toml")
    assert "configs/digits.toml does not exist here" in caplog.text
    assert shipped.difference(load_run("digits.toml")) is None
    assert shipped.difference(load_run(ROOT / "configs/digits.toml")) is None
    assert (
        fedmf.Sweep.from_config("configs/sweeps/mechanisms.toml").baseline == "independent, Poisson"
    )
    (folder / "digits.toml").write_text("[data]\nkind = 'digits'\n[cohorts]\nrounds = 7\n")
    assert load_run("digits.toml").cohorts.rounds == 7
    for path in (
        "../configs/digits.toml",
        "/configs/digits.toml",
        "configs/../configs/digits.toml",
        "configs",
    ):
        assert configuration_path(Path(path)) == Path(path)
    with pytest.raises(ConfigError, match=r"cannot read configuration configs/none\.toml"):
        load_run("configs/none.toml")


def test_every_shipped_configuration_is_valid() -> None:
    for file in (ROOT / "configs").glob("*.toml"):
        assert load_run(file).cohorts.rounds > 0
