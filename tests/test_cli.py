"""The command line: what it shows, exit codes, and what scripts may rely on."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.command_line import one_line
from support.small_runs import write_config
from typer.models import CommandInfo

import fedmf
from fedmf.accounting import at_least, at_most
from fedmf.addresses import linked
from fedmf.cli.app import application, run
from fedmf.runs import load_run
from fedmf.training import LocalTrainer, UserFailure

REQUIRED_STATEMENT = {
    "unit", "adjacency", "mechanism", "params", "rounds", "max_participations", "min_separation",
    "actual_max_participations", "actual_min_separation", "sampling", "users", "users_per_round", "clip_norm",
    "noise_multiplier", "sensitivity", "sensitivity_kind", "delta", "epsilon", "epsilon_spent",
    "not_covered",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(pictures: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    config = write_config(folder / "run.toml")
    assert run(["simulate", str(config), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_a_run_directory_holds_all_reports(finished: Path) -> None:
    names = {entry.name for entry in finished.iterdir()}
    assert {
        "config.toml",
        "ledger.sqlite",
        "metrics.parquet",
        "noise.key",
        "statement.json",
        "statement.txt",
    } <= names
    assert (finished / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "noise.key").stat().st_mode & 0o077 == 0
    statement = json.loads((finished / "statement.json").read_text())
    assert statement.keys() >= REQUIRED_STATEMENT
    metrics = pd.read_parquet(finished / "metrics.parquet")
    assert metrics["round"].tolist() == list(range(13))
    assert metrics["epsilon"].is_monotonic_increasing
    assert metrics["epsilon"].iloc[-1] == pytest.approx(8.0, rel=1e-6)
    assert metrics["accuracy"].between(0, 1).all()


def test_account_repeats_the_statement_from_disk(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", str(finished), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((finished / "statement.json").read_text())
    assert run(["account", str(finished), "--full"]) == 0
    text = capsys.readouterr().out
    assert text.startswith((finished / "statement.txt").read_text())
    assert "epsilon spent" in text
    assert "Does not cover" in text


def test_a_screen_is_the_end_of_a_run_and_of_account(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve lines: what a run is worth, to whom, how good the model is, and where the rest is."""
    assert run(["account", str(finished)]) == 0
    text = capsys.readouterr().out
    statement = json.loads((finished / "statement.json").read_text())
    lines = text.splitlines()
    assert len(lines) <= 12
    assert lines[0] == (finished / "statement.txt").read_text().splitlines()[0]
    said = {line[:13].strip(): line[13:].strip() for line in lines[1:]}
    assert said["epsilon"] == f"{at_least(statement['epsilon'])} for all 12 rounds, delta 1e-05"
    assert said["unit"] == "user: 24, 6 a round, each in 3 rounds at most"
    assert said["mechanism"].startswith("bisr bands=4, noise multiplier 0.600229")
    accuracy = pd.read_parquet(finished / "metrics.parquet")["accuracy"].iloc[-1]
    assert f"accuracy {accuracy:.4g} after round 12" in said["quality"]
    median = at_least(statement["epsilon_spent_quantiles"]["0.5"])
    assert said["worst user"] == f"epsilon {at_least(statement['epsilon_spent'])} (not private)"
    assert said["median user"] == f"epsilon {median} (not private)"
    counts = [len(statement[name]) for name in ("assumptions", "not_covered", "secret")]
    left = "{} assumptions, {} things not covered, {} secrets to keep".format(*counts)
    assert said["statement"] == f"{left}: fedmf account {finished} --full"


def test_a_run_without_noise_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path / "run.toml", private=False)
    assert run(["simulate", str(config), "--out", str(tmp_path / "run")]) == 0
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["epsilon"] is None
    assert statement["noise_multiplier"] == 0
    assert "No privacy" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["none", "user-level"])
def test_failed_users_are_told_of_where_there_is_no_privacy_to_lose(
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = LocalTrainer.add_updates

    def failing(trainer: LocalTrainer, parameters: Any, users: Any, t: int, total: Any) -> list[UserFailure]:
        failures = trained(trainer, parameters, users, t, total)
        if "A" in users:  # who is made up before the run begins
            return failures
        return [*failures, UserFailure(users[0], "training", "no luck")]

    monkeypatch.setattr(LocalTrainer, "add_updates", failing)
    config = write_config(tmp_path / "run.toml", private=kind == "user-level")
    assert run(["simulate", str(config), "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    told = "contributions could not be used" in caplog.text
    assert told == (kind == "none")
    assert "no luck" in (tmp_path / "run" / "failures.jsonl").read_text()
    assert "no luck" not in captured.out


def test_a_terminal_that_cannot_show_epsilon_ends_nothing() -> None:
    plan = ["--rounds", "9", "--max-participations", "1", "--min-separation", "9", "--mechanism", "identity"]
    done = subprocess.run(
        [sys.executable, "-m", "fedmf", "design", *plan, "--epsilon", "1", "--delta", "1e-5"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u03b5 = 1" in done.stdout


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"fedmf {fedmf.__version__}\n", "")
    done = subprocess.run([sys.executable, "-m", "fedmf", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fedmf {fedmf.__version__}\n", "")


def test_a_dry_run_says_what_a_run_promises_and_costs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "run.toml", mechanism="bsr")
    before = config.read_bytes()
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", str(config), "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = dict(re.split(r"  +", line, maxsplit=1) for line in captured.out.splitlines())
    plan = fedmf.plan(load_run(config))
    assert shown["epsilon"] == "8 at delta 1e-05, zero-out adjacency"
    assert shown["participation"] == "12 rounds, at most 3 a user, 4 apart; 6 of 24 users a round"
    multiplier, std = plan.noise_multiplier, plan.noise_std
    assert shown["noise"] == f"multiplier {at_most(multiplier)}, standard deviation {at_most(std)}"
    assert shown["sensitivity"] == f"{at_least(plan.sensitivity.value)} (exact)"
    assert re.fullmatch(r"[\d.]+ MiB: 3 stored vectors", shown["memory of noise"])
    assert re.fullmatch(
        r"[\d,]+ ms: local training [\d,]+ on made-up users, noise [\d.,]+", shown["time of a round"]
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.toml"]
    assert config.read_bytes() == before
    assert run(["simulate", str(config), "--dry-run", "--set", "mechanism.bands=13"]) == 2
    assert "bands (p)" in one_line(capsys)
    config = write_config(tmp_path / "run.toml", private=False)
    assert run(["simulate", str(config), "--dry-run"]) == 0
    assert re.search(r"^epsilon +infinite: no noise$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("command", application.registered_commands, ids=lambda command: command.name)
def test_help_shows_the_docstring_whole_an_example_and_what_every_argument_is(
    command: CommandInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def words(text: str) -> str:
        return " ".join(re.sub("[╭╮╰╯─│]", " ", text).split())

    assert command.callback is not None
    monkeypatch.setenv("COLUMNS", "600")
    assert run([str(command.name), "--help"]) == 0
    shown = words(capsys.readouterr().out)
    for line in linked(str(inspect.getdoc(command.callback))).splitlines():
        assert words(line) in shown  # `[trials]` would be swallowed as markup
    for parameter in inspect.signature(command.callback).parameters.values():
        assert words(linked(parameter.default.help)) in shown
    assert f"Example: fedmf {command.name} " in shown
